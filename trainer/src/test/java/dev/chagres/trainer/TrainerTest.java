package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.Batches;
import dev.chagres.batch.SequencePacker;
import dev.chagres.batch.TokenSequences;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.ZeroStage;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

@Tag("L0")
@Timeout(120)
class TrainerTest {
    private static final Esm2Config CONFIG = new Esm2Config(2, 32, 2, 64);
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 512, 64, 4);
    private static final LearningRateSchedule SCHEDULE =
            new LearningRateSchedule(1e-3f, 2, 8, LearningRateSchedule.Decay.LINEAR, 0.1f);
    private static final Trainer TRAINER = Trainer.of(CONFIG, SHAPE).withSeed(7).withSchedule(SCHEDULE);

    private final List<Double> losses = new ArrayList<>();

    private static TokenSequences sequences() {
        return new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), 7, 1 << 20));
    }

    private double[] train(Trainer trainer, int steps) throws InterruptedException {
        losses.clear();
        trainer.withCallback(Callback.eachStep(step -> losses.add(step.loss()))).train(TrainerTest::sequences, steps);
        return losses.stream().mapToDouble(Double::doubleValue).toArray();
    }

    private static void assumeDevices(int ranks) {
        DevicesNeeded.assume(ranks);
    }

    /** What ranks do with a model that knows of none. */
    @ParameterizedTest
    @EnumSource
    void everyKindOfRanksTakesTheStepsOfOne(MeshDimension dimension) throws InterruptedException {
        assumeDevices(2);
        double[] expected = train(TRAINER, 6);
        Trainer ranked = TRAINER.withMesh(MeshShape.ofOne().with(dimension, 2));
        assertArrayEquals(
                expected,
                train(
                        dimension == MeshDimension.SHARD
                                ? ranked.withSharding(FullyShardedConfig.of(ZeroStage.THREE))
                                : ranked,
                        6),
                1e-4);
    }

    /** A classifier of tokens, of the published form, whose classes are the tokens themselves: ranks, captured steps and eight bits. */
    @ParameterizedTest
    @EnumSource(names = "CONTEXT", mode = EnumSource.Mode.EXCLUDE)
    void aClassifierTrainsOnRanks(MeshDimension dimension) throws InterruptedException {
        assumeDevices(2);
        Esm2ClassifierConfig config = new Esm2ClassifierConfig(
                CONFIG.withForm(Esm2Form.published()), Esm2ClassifierConfig.Task.SEQUENCES, EsmVocabulary.SIZE);
        Trainer trainer = Trainer.of(config, SHAPE).withSeed(7).withSchedule(SCHEDULE);
        double[] expected = train(trainer, 5);
        assertTrue(expected[4] < expected[0], () -> "losses: expected to fall, got " + Arrays.toString(expected));
        Trainer ranked = trainer.withMesh(MeshShape.ofOne().with(dimension, 2));
        FullyShardedConfig three = FullyShardedConfig.of(ZeroStage.THREE);
        assertArrayEquals(
                expected, train(dimension == MeshDimension.SHARD ? ranked.withSharding(three) : ranked, 5), 1e-4);
        assertArrayEquals(expected, train(trainer.withCapturedSteps(), 5), 1e-4);
        assertArrayEquals(
                expected, train(trainer.withDtype(DType.BFLOAT16).withRecipe(DelayedScaling.standard()), 5), 2e-1);
    }

    @Test
    void aSavedRunGoesOnWithTheSameBits(@TempDir Path folder) throws InterruptedException {
        Path file = folder.resolve("state");
        double[] whole = train(TRAINER, 8);
        // @start region="trainer"
        Trainer trainer = Trainer.of(CONFIG, SHAPE).withSeed(7).withSchedule(SCHEDULE);
        trainer.withSave(file, 2).train(TrainerTest::sequences, 5);
        // @end
        double[] rest = train(trainer.withResume(file), 8);
        assertArrayEquals(new double[] {whole[5], whole[6], whole[7]}, rest);
        assertEquals(0, trainer.withResume(file).train(TrainerTest::sequences, 5), "nothing is left of five steps");
    }

    @Test
    void otherPrecisionsAndCapturedStepsLearnNearlyTheSame() throws InterruptedException {
        double[] expected = train(TRAINER, 6);
        assertArrayEquals(expected, train(TRAINER.withCapturedSteps(), 6), 1e-4);
        assertArrayEquals(expected, train(TRAINER.withDtype(DType.BFLOAT16), 6), 3e-2);
        assertArrayEquals(
                expected, train(TRAINER.withDtype(DType.BFLOAT16).withRecipe(DelayedScaling.standard()), 6), 6e-2);
    }

    /** Notes what it hears of. */
    private static final class Noting implements Callback {
        private final List<String> calls = new ArrayList<>();
        private final int last;

        Noting(int last) {
            this.last = last;
        }

        @Override
        public void onStep(TrainingRun run, StepMetrics step) {
            calls.add("step " + step.step());
            if (step.step() == last) {
                run.stop();
            }
        }

        @Override
        public boolean isDue(int steps) {
            return steps == 2;
        }

        @Override
        public void onCheckpoint(TrainingRun run) {
            calls.add("checkpoint " + run.steps());
        }

        @Override
        public void onEnd(TrainingRun run) {
            calls.add("end " + run.steps());
            assertNull(run.explainSteps());
            assertEquals(List.of(), run.castStatistics());
        }
    }

    /** When it hears of a step, the next one is under way, and the batch of the one after it is there. */
    @Test
    void aCallbackHearsOfStepsAndMayStopTheRun() throws InterruptedException {
        var noting = new Noting(3);
        assertEquals(5, TRAINER.withCallback(noting).train(TrainerTest::sequences, 8));
        assertEquals("[step 1, step 2, checkpoint 2, step 3, step 4, step 5, end 5]", noting.calls.toString());
    }

    @Test
    void aRunEndsForACallbackThatFailsAndTellsIt(@TempDir Path folder) {
        Path file = folder.resolve("state");
        var failure = new IllegalStateException("no more");
        var noting = new Noting(9);
        Callback failing = Callback.eachStep(step -> {
            if (step.step() == 2) {
                throw failure;
            }
        });
        Trainer trainer = TRAINER.withSave(file, 0).withCallback(noting).withCallback(failing);
        assertEquals(
                failure, assertThrows(IllegalStateException.class, () -> trainer.train(TrainerTest::sequences, 8)));
        assertEquals("end 2", noting.calls.getLast());
    }

    @Test
    void aStateIsSavedAtACheckpointAlone(@TempDir Path folder) {
        Callback early = new Callback() {
            @Override
            public void onStep(TrainingRun run, StepMetrics step) {
                run.save(folder.resolve("early"), Map.of());
            }
        };
        Trainer trainer = TRAINER.withCallback(early);
        var e = assertThrows(IllegalStateException.class, () -> trainer.train(TrainerTest::sequences, 8));
        assertEquals("save: expected a call of onCheckpoint, where the state is whole", e.getMessage());
    }

    @Test
    void textsGoIntoTheFileAndOtherFilesAreRefused(@TempDir Path folder) throws Exception {
        Path file = folder.resolve("state");
        TRAINER.withSave(file, 0)
                .withText("purpose", "a test")
                .withText("of", "texts")
                .train(TrainerTest::sequences, 1);
        try (var saved = SafetensorsFile.open(file)) {
            assertEquals("a test", saved.metadata().get("purpose"));
            assertEquals("texts", saved.metadata().get("of"));
        }
        Path other = Files.writeString(folder.resolve("other"), "no state");
        Trainer resuming = TRAINER.withResume(other);
        var e = assertThrows(TrainingException.class, () -> resuming.train(TrainerTest::sequences, 2));
        assertTrue(e.getMessage().startsWith("resume: " + other + ": "), e.getMessage());
    }

    /** Batches of one rank: its own ones of all, a micro-batch each. */
    private record Own(SequencePacker packer, Batch batch, int rank, int ranks) implements Batches {
        @Override
        public @Nullable Batch take() {
            long labelled = 0;
            Batch own = new Batch(batch.shape());
            for (int i = 0; i < ranks; i++) {
                packer.fill(i == rank ? own : batch);
                labelled += (i == rank ? own : batch).labelled();
            }
            own.partOf(labelled);
            return own;
        }

        @Override
        public void recycle(Batch taken) {}

        @Override
        public void stop() {}
    }

    private static List<Double> trainOwn(Rank rank, int steps) throws InterruptedException {
        List<Double> losses = new ArrayList<>();
        var shape = new BatchShape(BatchLayout.PACKED, 128, 64);
        try (var packer = new SequencePacker(shape, sequences())) {
            int made = Trainer.of(CONFIG, shape)
                    .withSeed(7)
                    .withSchedule(SCHEDULE)
                    .withRanks(rank.count())
                    .withCallback(Callback.eachStep(step -> losses.add(step.loss())))
                    .train(rank, new Own(packer, new Batch(shape), rank.index(), rank.count()), steps);
            assertEquals(steps, made);
        }
        return losses;
    }

    @Test
    void ranksWithBatchesOfTheirOwnTakeTheStepsOfOne() throws InterruptedException {
        assumeDevices(4);
        double[] expected = train(TRAINER, 5);
        List<List<Double>> parts = Ranks.local(4).run(rank -> trainOwn(rank, 5));
        for (int step = 0; step < 5; step++) {
            int at = step;
            assertEquals(
                    expected[step],
                    parts.stream().mapToDouble(part -> part.get(at)).sum(),
                    1e-4);
        }
    }

    @Test
    void whatRanksWithBatchesOfTheirOwnCannotDoIsRefused(@TempDir Path folder) {
        Trainer resuming = TRAINER.withResume(folder);
        Trainer split = TRAINER.withMesh(MeshShape.ofOne().with(MeshDimension.TENSOR, 2));
        Ranks.local(1).each(rank -> {
            Batches none = new Own(new SequencePacker(SHAPE, sequences()), new Batch(SHAPE), 0, 1);
            String begin = "train: expected a new run of ranks that have all layers and whole sequences, for each has"
                    + " batches of its own, got ";
            assertEquals(
                    begin + folder,
                    assertThrows(IllegalStateException.class, () -> resuming.train(rank, none, 1))
                            .getMessage());
            assertEquals(
                    begin + "tp",
                    assertThrows(IllegalStateException.class, () -> split.train(rank, none, 1))
                            .getMessage());
        });
    }

    @Test
    void stepsOfAPipelineAreNotCaptured() {
        Trainer trainer = TRAINER.withMesh(MeshShape.ofOne().with(MeshDimension.PIPELINE, 2))
                .withCapturedSteps();
        assertEquals(
                "withCapturedSteps: expected ranks that have all weights, layers and tokens of their micro-batches, got pp",
                assertThrows(IllegalStateException.class, () -> trainer.train(TrainerTest::sequences, 1))
                        .getMessage());
    }

    @Test
    void aModelWithoutLayersIsNotDivided() {
        assumeDevices(2);
        Trainer trainer = Trainer.of((device, plan, memory) -> new Esm2(device, CONFIG, plan, memory), SHAPE)
                .withMesh(MeshShape.ofOne().with(MeshDimension.PIPELINE, 2));
        var e = assertThrows(TrainingException.class, () -> trainer.train(TrainerTest::sequences, 1));
        assertTrue(
                e.getMessage()
                        .contains("model: expected a LayeredModel whose factory tells its parts, which the ranks of a"
                                + " pipeline need"),
                e.getMessage());
    }
}

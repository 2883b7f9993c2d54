package dev.chagres.trainer.callback;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.batch.Batch;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TokenSequences;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.data.FastaSequences;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.HeldOut;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.models.esm.Esm2ClassifierConfig;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Recipe;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.ZeroStage;
import dev.chagres.trainer.Callback;
import dev.chagres.trainer.DevicesNeeded;
import dev.chagres.trainer.Trainer;
import dev.chagres.trainer.TrainingRun;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

@Tag("L0")
@Timeout(120)
class EvaluationTest {
    private static final Esm2Config CONFIG = new Esm2Config(2, 32, 2, 64);
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 512, 64, 4);
    private static final BatchShape MICRO_BATCH = new BatchShape(BatchLayout.PACKED, 256, 64);
    private static final HeldOut HELD_OUT = new HeldOut(0.05);
    private static final Trainer TRAINER = Trainer.of(CONFIG, SHAPE)
            .withSeed(7)
            .withSchedule(new LearningRateSchedule(1e-2f, 2, 8, LearningRateSchedule.Decay.LINEAR, 0.1f));

    private final List<Double> losses = new ArrayList<>();
    private final List<Evaluation.Result> results = new ArrayList<>();

    private static TokenSequences training() {
        return new MaskedProteins(new ShuffledSequences(FastaSource.shipped().without(HELD_OUT), 7, 1 << 20));
    }

    private static TokenSequences heldOut() {
        return new MaskedProteins(new FastaSequences(FastaSource.shipped().only(HELD_OUT)));
    }

    private final class Noting implements Callback {
        @Override
        public void onEvaluation(TrainingRun run, Evaluation.Result result) {
            results.add(result);
        }
    }

    private List<Double> train(Trainer trainer, int steps) throws InterruptedException {
        losses.clear();
        results.clear();
        trainer.withCallback(Callback.eachStep(step -> losses.add(step.loss())))
                .withCallback(new Noting())
                .train(EvaluationTest::training, steps);
        return List.copyOf(losses);
    }

    private static void assumeDevices(int ranks) {
        DevicesNeeded.assume(ranks);
    }

    private static Evaluation evaluation() {
        // @start region="evaluation"
        Evaluation evaluation =
                Evaluation.of(EvaluationTest::heldOut, MICRO_BATCH).withEvery(2);
        // @end
        return evaluation;
    }

    @Test
    void theLossOfHeldOutDataFalls() throws InterruptedException {
        train(TRAINER.withEvaluation(evaluation()), 5);
        assertEquals(
                List.of(2, 4, 5), results.stream().map(Evaluation.Result::step).toList());
        assertTrue(results.getLast().loss() < results.getFirst().loss(), results.toString());
        assertEquals(Math.log(33), results.getFirst().loss(), 0.5);
        for (Evaluation.Result result : results) {
            assertEquals(Math.exp(result.loss()), result.perplexity());
            assertTrue(result.accuracy() > 0.02 && result.accuracy() < 0.5, result.toString());
            assertEquals(evaluation().check(), result.sequences());
            assertEquals(results.getFirst().labelled(), result.labelled());
        }
    }

    private static Trainer precision(String name) {
        Recipe recipe = switch (name) {
            case "delayed" -> DelayedScaling.standard();
            case "current" -> Float8CurrentScaling.standard();
            default -> null;
        };
        Trainer trainer = TRAINER.withDtype(
                name.equals("fp32") ? DType.FLOAT32 : name.equals("fp16") ? DType.FLOAT16 : DType.BFLOAT16);
        return recipe == null ? trainer : trainer.withRecipe(recipe);
    }

    @ParameterizedTest
    @ValueSource(strings = {"fp32", "fp16", "bf16", "delayed", "current"})
    void evaluatingLeavesEveryLossAsItWas(String name) throws InterruptedException {
        Trainer trainer = precision(name);
        List<Double> expected = train(trainer, 7);
        assertEquals(expected, train(trainer.withEvaluation(evaluation().withEvery(1)), 7));
        assertEquals(7, results.size());
    }

    /** Weights that replayed steps have changed are cast again. */
    @ParameterizedTest
    @ValueSource(strings = {"fp32", "delayed"})
    void replayedStepsAreEvaluatedAsOthersAre(String name) throws InterruptedException {
        Trainer trainer = precision(name);
        Trainer captured = trainer.withCapturedSteps();
        List<Double> expected = train(captured, 7);
        train(trainer.withEvaluation(evaluation()), 7);
        List<Evaluation.Result> enqueued = List.copyOf(results);
        assertEquals(expected, train(captured.withEvaluation(evaluation()), 7));
        for (int i = 0; i < enqueued.size(); i++) {
            assertEquals(enqueued.get(i).loss(), results.get(i).loss(), name.equals("fp32") ? 1e-4 : 3e-2);
        }
    }

    /** Casts see the same tensors, for micro-batches hold the same sequences. */
    @ParameterizedTest
    @ValueSource(strings = {"bf16", "delayed", "current"})
    void ranksFindTheSameInEveryPrecision(String name) throws InterruptedException {
        assumeDevices(2);
        // Changes no weight: gradients of several ranks sum in another order.
        var still = new LearningRateSchedule(1e-30f, 0, 0, LearningRateSchedule.Decay.CONSTANT, 1);
        Trainer trainer = precision(name).withSchedule(still).withEvaluation(evaluation());
        train(trainer, 4);
        List<Evaluation.Result> one = List.copyOf(results);
        train(trainer.withRanks(2), 4);
        for (int i = 0; i < one.size(); i++) {
            assertEquals(one.get(i).loss(), results.get(i).loss(), 1e-6);
            assertEquals(one.get(i).accuracy(), results.get(i).accuracy(), 1e-6);
        }
    }

    @ParameterizedTest
    @EnumSource
    void everyKindOfRanksFindsTheSame(MeshDimension dimension) throws InterruptedException {
        assumeDevices(2);
        train(TRAINER.withEvaluation(evaluation()), 2);
        Evaluation.Result expected = results.getFirst();
        Trainer ranked = TRAINER.withMesh(MeshShape.ofOne().with(dimension, 2));
        Trainer sharded =
                dimension == MeshDimension.SHARD ? ranked.withSharding(FullyShardedConfig.of(ZeroStage.THREE)) : ranked;
        List<Double> without = train(sharded, 4);
        assertEquals(without, train(sharded.withEvaluation(evaluation()), 4));
        assertEquals(expected.loss(), results.getFirst().loss(), 1e-6);
        assertEquals(expected.accuracy(), results.getFirst().accuracy(), 1e-6);
        assertEquals(expected.labelled(), results.getFirst().labelled());
    }

    /** Its ranks that split layers have all classes each. */
    @ParameterizedTest
    @EnumSource(names = {"TENSOR", "PIPELINE"})
    void aClassifierTellsItsAccuracy(MeshDimension dimension) throws InterruptedException {
        assumeDevices(2);
        var config = new Esm2ClassifierConfig(
                CONFIG.withForm(Esm2Form.published()), Esm2ClassifierConfig.Task.SEQUENCES, EsmVocabulary.SIZE);
        Trainer trainer = Trainer.of(config, SHAPE).withSeed(7).withEvaluation(evaluation());
        train(trainer, 2);
        Evaluation.Result one = results.getFirst();
        assertTrue(one.accuracy() >= 0 && one.accuracy() < 0.5, one.toString());
        train(trainer.withMesh(MeshShape.ofOne().with(dimension, 2)), 2);
        assertEquals(one.loss(), results.getFirst().loss(), 1e-5);
        assertEquals(one.accuracy(), results.getFirst().accuracy(), 0.01);
    }

    @Test
    void dataWithoutLabelsAreRefusedBeforeTheFirstStep() {
        TokenSequences unlabelled = new TokenSequences() {
            private int left = 3;

            @Override
            public boolean advance() {
                return left-- > 0;
            }

            @Override
            public int length() {
                return 4;
            }

            @Override
            public int write(int[] ids, int[] labels, int start, int count) {
                Arrays.fill(labels, start, start + count, Batch.IGNORED);
                return 0;
            }
        };
        Trainer trainer = TRAINER.withEvaluation(Evaluation.of(() -> unlabelled, MICRO_BATCH));
        assertEquals(
                "evaluation: expected data with labelled tokens, got 3 sequences without any",
                assertThrows(IllegalArgumentException.class, () -> trainer.train(EvaluationTest::training, 1))
                        .getMessage());
        assertEquals(
                "evaluation: expected data with labelled tokens, got no sequence",
                assertThrows(IllegalArgumentException.class, () -> trainer.train(EvaluationTest::training, 1))
                        .getMessage());
        assertEquals(
                "microBatch: expected the shape of one, got one of 4 micro-batches",
                assertThrows(IllegalArgumentException.class, () -> Evaluation.of(EvaluationTest::heldOut, SHAPE))
                        .getMessage());
        assertArrayEquals(new Object[0], losses.toArray());
    }
}

package dev.chagres.trainer.callback;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TokenSequences;
import dev.chagres.checkpoint.CheckpointFolder;
import dev.chagres.checkpoint.Retention;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.ModelFiles;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.data.FastaSequences;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.HeldOut;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.models.esm.Esm2;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.esm.Esm2Form;
import dev.chagres.models.huggingface.Esm2Checkpoint;
import dev.chagres.models.huggingface.SaveConfig;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.ZeroStage;
import dev.chagres.trainer.Callback;
import dev.chagres.trainer.DevicesNeeded;
import dev.chagres.trainer.Trainer;
import java.io.IOException;
import java.lang.foreign.ValueLayout;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.stream.Stream;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;

/** Checkpoints of a trainer: runs go on from them, and they are folders of transformers. */
@Tag("L0")
class CheckpointsTest {
    private static final Esm2Config CONFIG = new Esm2Config(2, 64, 2, 32).withForm(Esm2Form.published());
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 128, 32, 2);
    private static final ModelFiles FILES =
            Esm2Checkpoint.files(CONFIG, DType.FLOAT32).orElseThrow();
    private static final Trainer TRAINER = Trainer.of(CONFIG, SHAPE).withSeed(7).withModelFiles(FILES);

    @TempDir
    private Path folder;

    private static TokenSequences sequences() {
        return new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), 7, 1 << 20));
    }

    private static Evaluation evaluation() {
        FastaSource few = FastaSource.shipped().only(new HeldOut(0.03));
        return Evaluation.of(
                        () -> new MaskedProteins(new FastaSequences(few)), new BatchShape(BatchLayout.PACKED, 128, 32))
                .withEvery(2);
    }

    private static double[] train(Trainer trainer, int steps) throws InterruptedException {
        List<Double> losses = new ArrayList<>();
        trainer.withCallback(Callback.eachStep(step -> losses.add(step.loss())))
                .train(CheckpointsTest::sequences, steps);
        return losses.stream().mapToDouble(Double::doubleValue).toArray();
    }

    @Test
    void aRunGoesOnFromItsLastCheckpointOrAnother() throws InterruptedException, IOException {
        Path run = folder.resolve("run");
        double[] whole = train(TRAINER, 6);
        // @start region="checkpoints"
        Checkpoints checkpoints = Checkpoints.in(run).withEvery(2).with(new Retention(2, 0, 0));
        TRAINER.withCheckpoints(checkpoints).train(CheckpointsTest::sequences, 5);
        // @end
        assertEquals(5, checkpoints.saved());
        assertEquals(List.of(4L, 5L), CheckpointFolder.of(run).steps());
        assertArrayEquals(new double[] {whole[5]}, train(TRAINER.withResume(run), 6));
        Path step = CheckpointFolder.of(run).step(4);
        assertArrayEquals(new double[] {whole[4], whole[5]}, train(TRAINER.withResume(step), 6));
        DevicesNeeded.assume(2);
        Trainer ranked = TRAINER.withMesh(MeshShape.ofOne().with(MeshDimension.SHARD, 2))
                .withSharding(FullyShardedConfig.of(ZeroStage.THREE));
        Path again = folder.resolve("again");
        assertArrayEquals(
                new double[] {whole[4], whole[5]},
                train(ranked.withResume(step).withCheckpoints(Checkpoints.in(again)), 6),
                1e-5);
        assertEquals(List.of(6L), CheckpointFolder.of(again).steps());
    }

    /** Steps after which weights are read are enqueued, the others replayed. */
    @Test
    void checkpointsInTheBackgroundHaveTheSameBytesAndStepsTheSameLosses() throws InterruptedException, IOException {
        for (Trainer trainer : List.of(TRAINER, TRAINER.withCapturedSteps())) {
            double[][] losses = new double[2][];
            for (Checkpoints.Mode mode : Checkpoints.Mode.values()) {
                Path run = folder.resolve(mode + "-" + (trainer == TRAINER));
                Checkpoints checkpoints = Checkpoints.in(run).withEvery(2).withMode(mode);
                losses[mode.ordinal()] = train(trainer.withCheckpoints(checkpoints), 7);
                assertEquals(List.of(2L, 4L, 6L, 7L), CheckpointFolder.of(run).steps());
                assertEquals(7, checkpoints.saved());
            }
            assertArrayEquals(losses[1], losses[0]);
            Path one = folder.resolve("BACKGROUND-" + (trainer == TRAINER));
            Path other = folder.resolve("BLOCKING-" + (trainer == TRAINER));
            try (Stream<Path> files = Files.walk(one)) {
                for (Path file : files.filter(Files::isRegularFile).toList()) {
                    assertEquals(-1, Files.mismatch(file, other.resolve(one.relativize(file))), file.toString());
                }
            }
        }
    }

    @Test
    void eachCheckpointIsAFolderOfTransformers() throws InterruptedException, IOException {
        Path run = folder.resolve("run");
        TRAINER.withCheckpoints(Checkpoints.in(run)).train(CheckpointsTest::sequences, 2);
        Path step = CheckpointFolder.of(run).step(2);
        try (Stream<Path> files = Files.list(step)) {
            assertEquals(
                    List.of(
                            "chagres.json",
                            "config.json",
                            "model.safetensors",
                            "special_tokens_map.json",
                            "state-00001-of-00001.safetensors",
                            "tokenizer_config.json",
                            "vocab.txt"),
                    files.map(file -> file.getFileName().toString()).sorted().toList());
        }
        Path exported = folder.resolve("exported");
        try (Device device = Device.open();
                Esm2 model = Esm2Checkpoint.open(device, step, DType.FLOAT32);
                Esm2 loaded = new Esm2(device, CONFIG, DType.FLOAT32, 1);
                SafetensorsFile state = SafetensorsFile.open(step)) {
            RunState.of(loaded.parameters()).load(step);
            for (var parameter : model.parameters().all()) {
                int theirs = (int) FILES.tensors(parameter.name()).stream()
                        .mapToLong(tensor -> tensor.shape().count())
                        .sum();
                float[] weight =
                        loaded.parameters().get(parameter.name()).weight().toFloats(device.stream());
                assertArrayEquals(
                        Arrays.copyOf(weight, theirs),
                        Arrays.copyOf(parameter.weight().toFloats(device.stream()), theirs),
                        parameter.name());
            }
            assertEquals(2, state.entry("step").bytes().get(ValueLayout.JAVA_LONG_UNALIGNED, 0));
            Esm2Checkpoint.save(model, exported, SaveConfig.standard());
        }
        for (String name : List.of("config.json", "model.safetensors", "tokenizer_config.json", "vocab.txt")) {
            assertEquals(-1, Files.mismatch(exported.resolve(name), step.resolve(name)), name);
        }
    }

    @Test
    void theBestStayAndEarlyStoppingGoesOnCounting() throws InterruptedException {
        Path run = folder.resolve("run");
        Checkpoints checkpoints = Checkpoints.in(run).withEvery(2).with(new Retention(1, 0, 1));
        var never = new EarlyStopping(2, 1e9); // no loss is that much lower than the first one
        Trainer trainer = TRAINER.withEvaluation(evaluation()).withCheckpoints(checkpoints);
        assertEquals(3, trainer.withCallback(never).train(CheckpointsTest::sequences, 3));
        try (SafetensorsFile last = SafetensorsFile.open(run)) {
            Map<String, String> texts = last.metadata();
            assertEquals("2", texts.get("early-stopping.best_step"));
            assertEquals("1", texts.get("early-stopping.without"));
            assertEquals(Double.toString(never.best()), texts.get("early-stopping.best"));
            assertTrue(Double.parseDouble(texts.get(Retention.METRIC)) > 0);
        }
        var again = new EarlyStopping(2, 1e9);
        assertEquals(1, trainer.withResume(run).withCallback(again).train(CheckpointsTest::sequences, 100));
        assertEquals(never.best(), again.best());
        assertTrue(again.reason().isPresent());
        assertEquals(4L, CheckpointFolder.of(run).steps().getLast());
    }

    @Test
    void argumentsAreChecked() {
        Path file = Path.of("state");
        assertEquals(
                "steps: expected 0 or more, got -1",
                assertThrows(
                                IllegalArgumentException.class,
                                () -> Checkpoints.file(file).withEvery(-1))
                        .getMessage());
        assertEquals(
                "retention: expected checkpoints in a folder, got the file state",
                assertThrows(
                                IllegalArgumentException.class,
                                () -> Checkpoints.file(file).with(Retention.ALL))
                        .getMessage());
        assertEquals(
                "interval: expected a positive time, got PT0S",
                assertThrows(
                                IllegalArgumentException.class,
                                () -> Checkpoints.file(file).withEvery(Duration.ZERO))
                        .getMessage());
        assertEquals(
                "state, every PT30M and at the end",
                Checkpoints.file(file).withEvery(Duration.ofMinutes(30)).toString());
        assertEquals(
                "state, every 3 steps and at the end",
                Checkpoints.file(file).withEvery(3).toString());
    }
}

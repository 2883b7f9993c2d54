package dev.chagres.trainer;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.batch.BatchLayout;
import dev.chagres.batch.BatchShape;
import dev.chagres.batch.TokenSequences;
import dev.chagres.bindings.Provider;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.models.data.FastaSequences;
import dev.chagres.models.data.FastaSource;
import dev.chagres.models.data.HeldOut;
import dev.chagres.models.data.MaskedProteins;
import dev.chagres.models.data.ShuffledSequences;
import dev.chagres.models.esm.Esm2Config;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.optim.Adafactor;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.LearningRateSchedule;
import dev.chagres.optim.Lion;
import dev.chagres.optim.Muon;
import dev.chagres.optim.OffloadedConfig;
import dev.chagres.optim.OptimizerConfig;
import dev.chagres.optim.SGD;
import dev.chagres.optim.SGD.Momentum;
import dev.chagres.optim.ScheduleFreeAdamW;
import dev.chagres.pass.ActivationOffload;
import dev.chagres.sharding.FullyShardedConfig;
import dev.chagres.sharding.ZeroStage;
import dev.chagres.trainer.callback.Checkpoints;
import dev.chagres.trainer.callback.Evaluation;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Any optimizer trains a model: on ranks that divide work and state, in captured steps, and from a file, also on other ranks. */
@Tag("L0")
@Timeout(120)
class OptimizersTrainingTest {
    private static final Esm2Config CONFIG = new Esm2Config(2, 32, 2, 64);
    private static final BatchShape SHAPE = new BatchShape(BatchLayout.PACKED, 512, 64, 4);
    private static final int STEPS = 6;

    private enum Kind {
        SGD(new SGD.Config(0.9f, 0.01f).withKind(Momentum.NESTEROV), 3e-2f),
        LION(Lion.Config.standard().withWeightDecay(0.1f), 3e-4f),
        ADAMW_8_BIT(AdamW.Config.standard().withMomentDType(DType.BYTE), 2e-3f),
        LION_8_BIT(Lion.Config.standard().withMomentDType(DType.BYTE), 3e-4f),
        ADAFACTOR(Adafactor.Config.standard(), 3e-2f),
        MUON(Muon.Config.standard(), 2e-3f),
        SCHEDULE_FREE(ScheduleFreeAdamW.Config.standard(), 3e-3f),
        AVERAGED(new SGD.Config(0.9f, 0.01f).withAverage(0.8f), 3e-2f);

        private final OptimizerConfig config;
        private final float rate;

        Kind(OptimizerConfig config, float rate) {
            this.config = config;
            this.rate = rate;
        }

        private Trainer trainer() {
            return trainer(CONFIG);
        }

        private Trainer trainer(Esm2Config model) {
            return Trainer.of(model, SHAPE)
                    .withSeed(7)
                    .withOptimizer(config, 1)
                    .withSchedule(new LearningRateSchedule(rate, 2, 8, LearningRateSchedule.Decay.CONSTANT, 1));
        }
    }

    private final List<Double> losses = new ArrayList<>();

    private static TokenSequences sequences() {
        return new MaskedProteins(new ShuffledSequences(FastaSource.shipped(), 7, 1 << 20));
    }

    private static TokenSequences heldOut() {
        return new MaskedProteins(new FastaSequences(FastaSource.shipped().only(new HeldOut(0.05))));
    }

    private double[] train(Trainer trainer, int steps) throws InterruptedException {
        losses.clear();
        trainer.withCallback(Callback.eachStep(step -> losses.add(step.loss())))
                .train(OptimizersTrainingTest::sequences, steps);
        return losses.stream().mapToDouble(Double::doubleValue).toArray();
    }

    private static void assumeDevices(int ranks) {
        DevicesNeeded.assume(ranks);
    }

    private static Trainer sharded(Kind kind, ZeroStage stage, int ranks) {
        return kind.trainer()
                .withMesh(MeshShape.ofOne().with(MeshDimension.SHARD, ranks))
                .withSharding(FullyShardedConfig.of(stage));
    }

    /** Of eight bits a rounding error may choose another code, and Lion another sign, which the loss hardly shows. */
    @ParameterizedTest
    @EnumSource
    void ranksTakeTheStepsOfOne(Kind kind) throws InterruptedException {
        double[] expected = train(kind.trainer(), STEPS);
        assertTrue(
                expected[STEPS - 1] < expected[0], () -> "losses: expected to fall, got " + Arrays.toString(expected));
        assertArrayEquals(expected, train(kind.trainer().withCapturedSteps(), STEPS), 1e-4);
        assumeDevices(4);
        assertArrayEquals(expected, train(kind.trainer().withRanks(4), STEPS), 1e-3);
        for (ZeroStage stage : ZeroStage.values()) {
            assertArrayEquals(expected, train(sharded(kind, stage, 4), STEPS), 1e-3, stage.toString());
        }
        for (MeshDimension dimension : List.of(MeshDimension.TENSOR, MeshDimension.PIPELINE)) {
            Trainer split = kind.trainer().withMesh(MeshShape.ofOne().with(dimension, 2));
            assertArrayEquals(expected, train(split, STEPS), 2e-3, dimension.toString());
        }
    }

    @ParameterizedTest
    @EnumSource
    void aSavedRunGoesOnWithTheSameBits(Kind kind, @TempDir Path folder) throws InterruptedException {
        Path file = folder.resolve("state");
        Trainer trainer = kind.trainer().withDtype(DType.BFLOAT16);
        double[] whole = train(trainer, STEPS);
        train(trainer.withSave(file, 2), 4);
        assertArrayEquals(new double[] {whole[4], whole[5]}, train(trainer.withResume(file), STEPS));
    }

    /** Moments and masters in the host's memory: the bits of those on the device, alone and sharded, and in files. */
    @Test
    void offloadedStateHasTheBitsOfTheDevices(@TempDir Path folder) throws InterruptedException {
        AdamW.Config adam = AdamW.Config.standard();
        Path file = folder.resolve("state");
        for (int ranks : new int[] {1, 2}) {
            if (ranks > 1) {
                assumeDevices(ranks);
            }
            Trainer trainer = Kind.SGD
                    .trainer()
                    .withDtype(DType.BFLOAT16)
                    .withMesh(MeshShape.ofOne().with(MeshDimension.SHARD, ranks));
            if (ranks > 1) {
                trainer = trainer.withSharding(FullyShardedConfig.of(ZeroStage.THREE));
            }
            Trainer offloaded = trainer.withOptimizer(new OffloadedConfig(adam, 4096), 1);
            double[] expected = train(trainer.withOptimizer(adam, 1), STEPS);
            assertArrayEquals(expected, train(offloaded, STEPS));
            train(offloaded.withSave(file, 2), 4);
            assertArrayEquals(
                    new double[] {expected[4], expected[5]},
                    train(trainer.withOptimizer(adam, 1).withResume(file), STEPS));
            assertArrayEquals(new double[] {expected[4], expected[5]}, train(offloaded.withResume(file), STEPS));
        }
    }

    @Test
    void offloadedStateIsNotCaptured() {
        AdamW.Config adam = AdamW.Config.standard();
        Trainer trainer = Kind.SGD.trainer().withOptimizer(adam.offloaded(), 1).withCapturedSteps();
        String text = assertThrows(IllegalStateException.class, () -> train(trainer, 1))
                .getMessage();
        assertEquals(
                "withCapturedSteps: expected an optimizer with its state on the device, got " + adam.offloaded(), text);
    }

    /** Inputs of layers in the host's memory: the bits of those on the device, alone, sharded, split and in stages of a pipeline. */
    @ParameterizedTest
    @EnumSource(
            value = MeshDimension.class,
            names = {"REPLICATE", "SHARD", "TENSOR", "PIPELINE"})
    void offloadedActivationsHaveTheBitsOfTheDevices(MeshDimension dimension) throws InterruptedException {
        Esm2Config deep = new Esm2Config(12, 32, 2, 64).withRecomputation(Recomputation.LAYERS);
        Trainer alone =
                Trainer.of(deep, SHAPE).withSeed(7).withDtype(DType.BFLOAT16).withOptimizer(AdamW.Config.standard(), 1);
        Trainer trainer = alone;
        if (dimension != MeshDimension.REPLICATE) {
            assumeDevices(2);
            trainer = alone.withMesh(MeshShape.ofOne().with(dimension, 2));
        }
        if (dimension == MeshDimension.SHARD) {
            trainer = trainer.withSharding(FullyShardedConfig.of(ZeroStage.THREE));
        }
        double[] expected = train(trainer, 3);
        assertArrayEquals(expected, train(trainer.withOffload(ActivationOffload.all()), 3));
        assertArrayEquals(expected, train(trainer.withOffload(new ActivationOffload(6)), 3));
        if (Provider.current() == Provider.REFERENCE) {
            StepEstimate with = trainer.withOffload(ActivationOffload.all()).estimate();
            // Of a pipeline's first rank two passes have a stage of six layers each.
            int copied = dimension == MeshDimension.PIPELINE ? 2 * 2 : 8;
            assertEquals(copied * 128L * 32 * Short.BYTES, with.hostBytes());
        }
    }

    @Test
    void offloadedActivationsAreNotCaptured() {
        Trainer trainer =
                Kind.SGD.trainer().withOffload(new ActivationOffload(5)).withCapturedSteps();
        assertEquals(
                "withCapturedSteps: expected inputs of layers on the device, got withOffload(5)",
                assertThrows(IllegalStateException.class, () -> train(trainer, 1))
                        .getMessage());
    }

    /** A file of four ranks, each with a quarter of every group, is that of one rank and of two. */
    @ParameterizedTest
    @EnumSource
    void otherRanksGoOn(Kind kind, @TempDir Path folder) throws InterruptedException {
        assumeDevices(4);
        Path file = folder.resolve("state");
        double[] whole = train(sharded(kind, ZeroStage.TWO, 4), STEPS);
        train(sharded(kind, ZeroStage.TWO, 4).withSave(file, 4), 4);
        double[] rest = {whole[4], whole[5]};
        assertArrayEquals(rest, train(sharded(kind, ZeroStage.TWO, 4).withResume(file), STEPS));
        assertArrayEquals(rest, train(sharded(kind, ZeroStage.THREE, 2).withResume(file), STEPS), 1e-3);
        assertArrayEquals(rest, train(kind.trainer().withResume(file), STEPS), 1e-3);
    }

    private static Trainer split(Kind kind, int tensor, int shards) {
        Trainer trainer = kind.trainer(new Esm2Config(1, 32, 4, 64))
                .withMesh(MeshShape.ofOne().with(MeshDimension.SHARD, shards).with(MeshDimension.TENSOR, tensor));
        return shards == 1 ? trainer : trainer.withSharding(FullyShardedConfig.of(ZeroStage.THREE));
    }

    /** Parts of a row of 32 are no whole blocks of eight bits: the same parts go on with the same bits, others from the nearest codes. */
    @ParameterizedTest
    @EnumSource(names = {"ADAMW_8_BIT", "LION_8_BIT"})
    void blocksOfSeveralRanksGoOn(Kind kind, @TempDir Path folder) throws InterruptedException {
        assumeDevices(4);
        double close = Provider.current() == Provider.REFERENCE ? 1e-4 : 1e-3; // of losses about 3.3
        Path saved = folder.resolve("saved");
        Trainer two = split(kind, 2, 1);
        double[] whole = train(two, STEPS);
        double[] rest = {whole[4], whole[5]};
        boolean file = kind == Kind.ADAMW_8_BIT;
        train(file ? two.withSave(saved, 4) : two.withCheckpoints(Checkpoints.in(saved)), 4);
        assertArrayEquals(rest, train(two.withResume(saved), STEPS));
        assertArrayEquals(rest, train(split(kind, 1, 1).withResume(saved), STEPS), close);
        assertArrayEquals(rest, train(split(kind, 2, 2).withResume(saved), STEPS), close);
        assertArrayEquals(rest, train(split(kind, file ? 4 : 1, file ? 1 : 4).withResume(saved), STEPS), close);
        Path ofOne = folder.resolve("one");
        train(split(kind, 1, 1).withSave(ofOne, 4), 4);
        assertArrayEquals(rest, train(two.withResume(ofOne), STEPS), 2 * close);
    }

    /** What is evaluated are averages, the same on all ranks, and training goes on as if nothing had been evaluated. */
    @Test
    void averagesAreEvaluated() throws InterruptedException {
        double[] expected = train(Kind.SCHEDULE_FREE.trainer(), STEPS);
        Evaluation.Result alone = evaluated(Kind.SCHEDULE_FREE.trainer(), expected, 0);
        assumeDevices(4);
        for (Trainer trainer : List.of(
                Kind.SCHEDULE_FREE.trainer().withRanks(4),
                sharded(Kind.SCHEDULE_FREE, ZeroStage.ONE, 4),
                sharded(Kind.SCHEDULE_FREE, ZeroStage.THREE, 4))) {
            assertEquals(alone.loss(), evaluated(trainer, expected, 1e-3).loss(), 1e-3);
        }
    }

    private Evaluation.Result evaluated(Trainer trainer, double[] expected, double bound) throws InterruptedException {
        List<Evaluation.Result> results = new ArrayList<>();
        BatchShape one = new BatchShape(BatchLayout.PACKED, 128, 64, 1);
        Evaluation evaluation =
                Evaluation.of(OptimizersTrainingTest::heldOut, one).withEvery(2);
        Trainer noting = trainer.withEvaluation(evaluation).withCallback(new Callback() {
            @Override
            public void onEvaluation(TrainingRun run, Evaluation.Result result) {
                results.add(result);
            }
        });
        assertArrayEquals(expected, train(noting, STEPS), bound);
        assertEquals(3, results.size());
        return results.getLast();
    }
}

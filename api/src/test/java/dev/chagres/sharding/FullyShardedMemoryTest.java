package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Linear;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** What ranks hold and send, of groups of 4.1 MiB of weights, which is what gets memory of its own. */
@Tag("L0")
@Tag("L2")
class FullyShardedMemoryTest {
    private static final int RANKS = 4;
    private static final int GROUPS = 8;
    private static final int HIDDEN = 1040;
    private static final long MIB = 1 << 20;
    private static final long GROUP = 4L * HIDDEN * HIDDEN;
    private static final long MODEL = GROUPS * GROUP;
    /** Buffers: one is in use while the other travels. */
    private static final long TWO = 2 * GROUP;
    /** Chunks of memory are rounded up, and a pass has activations of a few KiB. */
    private static final long SLACK = 3 * MIB;

    private static final AdamW.Config ADAM = AdamW.Config.standard();

    /** By rank: the most bytes held, and what travelled in the last step. */
    private record Use(long peak, CollectiveBytes sent) {}

    private static Sequential layers(ModelPlan plan) {
        return Sequential.of(
                GROUPS,
                i -> new Linear(HIDDEN, HIDDEN, Bias.ABSENT, Initializer.normal(0.04f), plan.group("layers." + i)));
    }

    private static void microBatch(Layer layers, Pass pass) {
        pass.begin();
        Tensor x = pass.scope().tensor(DType.FLOAT32, 2, HIDDEN);
        x.zero(pass.stream());
        layers.backward(layers.forward(x, pass), pass);
    }

    private static long whole() {
        ModelPlan plan = new ModelPlan();
        Sequential layers = layers(plan);
        try (Device device = Device.open();
                Parameters parameters = Parameters.allocate(device, plan, DType.FLOAT32, 3);
                AdamW optimizer = new AdamW(parameters, ADAM);
                Pass pass = Pass.training(device)) {
            GradientNorm norm = new GradientNorm(parameters, 1);
            for (int step = 0; step < 3; step++) {
                microBatch(layers, pass);
                norm.compute();
                optimizer.step(1e-3f, norm);
            }
            return device.peakHeldBytes();
        }
    }

    private static Use sharded(Rank rank, FullyShardedConfig config, int microBatches) {
        ModelPlan plan = new ModelPlan();
        Sequential layers = layers(plan);
        Device device = rank.device();
        MeshShape shape = MeshShape.ofOne().with(MeshDimension.SHARD, RANKS);
        try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                FullySharded training = FullySharded.allocate(plan, DType.FLOAT32, 3, config, mesh);
                AdamW optimizer = new AdamW(training.parameters(), ADAM);
                Pass pass = Pass.training(device)) {
            training.follow(pass);
            GradientNorm norm = new GradientNorm(training.parameters(), 1);
            for (int step = 0; step < 3; step++) {
                training.takeBytes();
                for (int i = 0; i < microBatches; i++) {
                    if (i == microBatches - 1) {
                        training.lastMicroBatch();
                    }
                    microBatch(layers, pass);
                }
                training.sumGradients();
                norm.compute();
                optimizer.step(1e-3f, norm);
            }
            return new Use(device.peakHeldBytes(), training.takeBytes());
        }
    }

    /** A rank with everything holds weights, gradients and two moments: 4 times the weights. */
    private static long expected(FullyShardedConfig config, int microBatches) {
        long part = MODEL / RANKS;
        boolean addsUp = microBatches > 1 && config.gradientSync() == GradientSync.LAST_MICRO_BATCH;
        long weights = config.reshard() == Reshard.AFTER_STEP ? MODEL : TWO;
        // A later micro-batch's sum, which is added to the first's.
        long addend = microBatches > 1 && config.gradientSync() == GradientSync.EACH_MICRO_BATCH ? GROUP / RANKS : 0;
        return switch (config.stage()) {
            case ONE -> MODEL + MODEL + part + 2 * part;
            case TWO -> MODEL + (addsUp ? MODEL : TWO) + part + 2 * part;
            case THREE -> part + weights + (addsUp ? MODEL : TWO) + part + 2 * part + addend;
        };
    }

    @ParameterizedTest
    @CsvSource({
        "ONE, AFTER_FORWARD, LAST_MICRO_BATCH, 1",
        "ONE, AFTER_FORWARD, LAST_MICRO_BATCH, 2",
        "TWO, AFTER_FORWARD, LAST_MICRO_BATCH, 1",
        "TWO, AFTER_FORWARD, LAST_MICRO_BATCH, 2",
        "THREE, AFTER_FORWARD, EACH_MICRO_BATCH, 1",
        "THREE, AFTER_FORWARD, EACH_MICRO_BATCH, 2",
        "THREE, AFTER_FORWARD, LAST_MICRO_BATCH, 3",
        "THREE, AFTER_STEP, EACH_MICRO_BATCH, 2",
        "THREE, AFTER_STEP, LAST_MICRO_BATCH, 3"
    })
    void ranksHoldAndSendWhatTheConfigurationSays(
            ZeroStage stage, Reshard reshard, GradientSync gradientSync, int microBatches) {
        DevicesNeeded.assume(RANKS);
        FullyShardedConfig config =
                FullyShardedConfig.of(stage).withReshard(reshard).withGradientSync(gradientSync);
        long other = whole() - 4 * MODEL; // workspaces and activations
        assertTrue(other > 0 && other < 64 * MIB, () -> "beside the model " + other);
        List<Use> uses = Ranks.local(RANKS).run(rank -> sharded(rank, config, microBatches));
        long expected = expected(config, microBatches) + other;
        for (Use use : uses) {
            assertEquals(expected, use.peak, SLACK, "peak memory");
            assertEquals(
                    MODEL * (gradientSync == GradientSync.EACH_MICRO_BATCH ? microBatches : 1),
                    use.sent.reduceScatter(),
                    "bytes of gradients");
            // Forward leaves the last two groups where backward begins; the next forward begins with the first two.
            long again = MODEL - TWO;
            long gathered = MODEL + again + (microBatches - 1) * (again + again);
            boolean gathersAgain = stage == ZeroStage.THREE && reshard == Reshard.AFTER_FORWARD;
            assertEquals(gathersAgain ? gathered : MODEL, use.sent.allGather(), "bytes of weights");
            assertEquals(0, use.sent.allReduce());
        }
    }
}

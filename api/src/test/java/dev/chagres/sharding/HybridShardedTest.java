package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Linear;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import dev.chagres.sharding.RankedRun.Variant;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** Sharded copies of a model compute what one rank computes that accumulates as many micro-batches. */
@Tag("L0")
@Tag("L2")
class HybridShardedTest {
    private static final long SEED = 7;

    private static MeshShape shape(int copies, int shards) {
        return MeshShape.ofOne().with(MeshDimension.REPLICATE, copies).with(MeshDimension.SHARD, shards);
    }

    @ParameterizedTest
    @CsvSource({
        "2, 2, THREE, EACH_COPY, 2, DROPOUT",
        "2, 2, TWO, ALL_RANKS, 2, DROPOUT",
        "3, 2, THREE, ALL_RANKS, 1, FROZEN_BOTTOM",
        "2, 3, TWO, EACH_COPY, 1, RECOMPUTED",
        "4, 2, ONE, ALL_RANKS, 1, PLAIN",
        "4, 1, THREE, ALL_RANKS, 1, PLAIN",
        "1, 4, THREE, ALL_RANKS, 1, PLAIN"
    })
    void ranksComputeWhatOneRankAccumulates(
            int copies, int shards, ZeroStage stage, OptimizerSharding optimizer, int microBatches, Variant variant) {
        FullyShardedConfig config = FullyShardedConfig.of(stage).withOptimizer(optimizer);
        MeshShape shape = shape(copies, shards);
        DevicesNeeded.assume(shape.ranks());
        RankedRun expected = RankedRun.ofOne(shape.ranks() * microBatches, DType.FLOAT32, variant);
        expected.assertSame(Ranks.local(shape.ranks()).run(rank -> {
            // @start region="hybrid"
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                return RankedRun.of(
                        rank,
                        (plan, dtype, r) -> FullySharded.allocate(plan, dtype, SEED, config, mesh),
                        microBatches,
                        DType.FLOAT32,
                        variant);
            }
            // @end
        }));
    }

    private static final int HIDDEN = 64;
    private static final long MODEL = 4L * HIDDEN * HIDDEN * Float.BYTES;

    private static CollectiveBytes sent(Rank rank, FullyShardedConfig config, int microBatches, boolean announced) {
        ModelPlan plan = new ModelPlan();
        Sequential layers = Sequential.of(
                4, i -> new Linear(HIDDEN, HIDDEN, Bias.ABSENT, Initializer.normal(0.1f), plan.group("layers." + i)));
        try (Mesh mesh = Mesh.of(rank.communicator(), shape(2, 2));
                FullySharded training = FullySharded.allocate(plan, DType.FLOAT32, SEED, config, mesh);
                AdamW optimizer = new AdamW(training.parameters(), AdamW.Config.standard());
                Pass pass = Pass.training(rank.device())) {
            training.follow(pass);
            GradientNorm norm = new GradientNorm(training.parameters(), 1);
            for (int step = 0; step < 2; step++) {
                training.takeBytes();
                for (int i = 0; i < microBatches; i++) {
                    pass.begin();
                    if (announced && i == microBatches - 1) {
                        training.lastMicroBatch();
                    }
                    Tensor x = pass.scope().tensor(DType.FLOAT32, 2, HIDDEN);
                    x.zero(pass.stream());
                    layers.backward(layers.forward(x, pass), pass);
                }
                training.sumGradients();
                norm.compute();
                optimizer.step(1e-3f, norm);
            }
            return training.takeBytes();
        }
    }

    /** Two copies of two parts: what a copy's ranks sum whole, copies sum in halves. */
    @ParameterizedTest
    @EnumSource(ZeroStage.class)
    void whatTravels(ZeroStage stage) {
        DevicesNeeded.assume(4);
        int microBatches = 2;
        int reductions = stage == ZeroStage.THREE ? microBatches : 1;
        // Forward leaves the last two groups where backward begins; the next forward begins with the first two.
        long again = MODEL / 2;
        long gathers = stage == ZeroStage.THREE ? MODEL + again + (microBatches - 1) * 2 * again : MODEL;
        for (int announced = 0; announced < 2; announced++) {
            boolean told = announced == 1;
            FullyShardedConfig each = FullyShardedConfig.of(stage);
            for (CollectiveBytes bytes : Ranks.local(4).run(rank -> sent(rank, each, microBatches, told))) {
                assertEquals(new CollectiveBytes(gathers, reductions * MODEL, MODEL / 2), bytes);
            }
            FullyShardedConfig all = each.withOptimizer(OptimizerSharding.ALL_RANKS);
            for (CollectiveBytes bytes : Ranks.local(4).run(rank -> sent(rank, all, microBatches, told))) {
                assertEquals(new CollectiveBytes(gathers + MODEL / 2, reductions * (MODEL + MODEL / 2), 0), bytes);
            }
        }
    }

    @ParameterizedTest
    @ValueSource(ints = {1, 3})
    void whatTravelsOnceAStep(int microBatches) {
        DevicesNeeded.assume(4);
        FullyShardedConfig each = FullyShardedConfig.of(ZeroStage.THREE)
                .withReshard(Reshard.AFTER_STEP)
                .withGradientSync(GradientSync.LAST_MICRO_BATCH);
        for (CollectiveBytes bytes : Ranks.local(4).run(rank -> sent(rank, each, microBatches, true))) {
            assertEquals(new CollectiveBytes(MODEL, MODEL, MODEL / 2), bytes);
        }
        FullyShardedConfig all = each.withOptimizer(OptimizerSharding.ALL_RANKS);
        for (CollectiveBytes bytes : Ranks.local(4).run(rank -> sent(rank, all, microBatches, false))) {
            assertEquals(new CollectiveBytes(MODEL + MODEL / 2, MODEL + MODEL / 2, 0), bytes);
        }
    }

    private static ModelPlan plan() {
        ModelPlan plan = new ModelPlan();
        new Linear(16, 16, Initializer.normal(0.1f), plan.group("layer"));
        return plan;
    }

    @Test
    void explained() {
        DevicesNeeded.assume(4);
        Ranks.local(4).each(rank -> {
            FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE);
            try (Mesh mesh = Mesh.of(rank.communicator(), shape(2, 2))) {
                try (FullySharded training = FullySharded.allocate(plan(), DType.FLOAT32, 1, config, mesh)) {
                    String name = "ZeRO stage 3 on rank " + rank.index() + " of 4, in 2 copies";
                    assertEquals(name, training.toString());
                    assertEquals(
                            name
                                    + ": gradients reduce-scattered group by group on their own stream, from memory"
                                    + " for two groups of each size; weights gathered group by group on another"
                                    + " stream before their layers run, one group ahead; of 2 copies of the model"
                                    + " each updates its own weights: gradient shards are all-reduced over them once"
                                    + " a step on their own stream",
                            training.explain());
                }
                FullyShardedConfig all = config.withOptimizer(OptimizerSharding.ALL_RANKS);
                try (FullySharded training = FullySharded.allocate(plan(), DType.FLOAT32, 1, all, mesh)) {
                    assertTrue(
                            training.explain()
                                    .endsWith("; of 2 copies of the model each rank updates another shard: gradients"
                                            + " are reduce-scattered among them, too, and updated weights"
                                            + " gathered"),
                            training.explain());
                }
            }
        });
    }

    @Test
    void misuse() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    OptimizerSharding optimizer = OptimizerSharding.values()[rank.index()];
                    FullyShardedConfig config =
                            FullyShardedConfig.of(ZeroStage.TWO).withOptimizer(optimizer);
                    try (Mesh mesh = Mesh.of(rank.communicator(), shape(2, 1))) {
                        FullySharded.allocate(plan(), DType.FLOAT32, 1, config, mesh);
                    }
                }));
        assertEquals(
                "optimizer: expected the same on all ranks, got ALL_RANKS on rank 1 and EACH_COPY on rank 0",
                failure.getCause().getMessage());
    }

    /** A backward call after the sum over copies would add this copy's gradients to it. */
    @Test
    void nothingIsAddedToTheSum() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            ModelPlan plan = new ModelPlan();
            Linear layer = new Linear(16, 16, Initializer.normal(0.1f), plan.group("layer"));
            FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE);
            try (Mesh mesh = Mesh.of(rank.communicator(), shape(2, 1));
                    FullySharded training = FullySharded.allocate(plan, DType.FLOAT32, 1, config, mesh);
                    Pass pass = Pass.training(rank.device())) {
                training.follow(pass);
                pass.begin();
                training.lastMicroBatch();
                Tensor x = pass.scope().tensor(DType.FLOAT32, 2, 16);
                x.zero(pass.stream());
                layer.backward(layer.forward(x, pass), pass);
                Tensor y = layer.forward(x, pass);
                assertThrown(
                        IllegalStateException.class,
                        "gradient of layer.weight: summed over the ranks already, got another backward call; call"
                                + " lastMicroBatch only before the step's last micro-batch, with all its forward"
                                + " calls before its backward calls, and not at all with several passes under way at"
                                + " once",
                        () -> layer.backward(y, pass));
            }
        });
    }
}

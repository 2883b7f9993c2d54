package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.sharding.RankedRun.Variant;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Stage 3 whose weights stay gathered, and whose gradients are summed once a step; {@link FullyShardedMemoryTest} counts their bytes. */
@Tag("L0")
@Tag("L2")
class ReshardTest {
    private static final long SEED = 7;
    private static final FullyShardedConfig THREE = FullyShardedConfig.of(ZeroStage.THREE);

    private static MeshShape shape(int copies, int shards) {
        return MeshShape.ofOne().with(MeshDimension.REPLICATE, copies).with(MeshDimension.SHARD, shards);
    }

    private static List<RankedRun> train(
            MeshShape shape, FullyShardedConfig config, int microBatches, DType dtype, Variant variant) {
        return Ranks.local(shape.ranks()).run(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                return RankedRun.of(
                        rank,
                        (plan, type, r) -> FullySharded.allocate(plan, type, SEED, config, mesh),
                        microBatches,
                        dtype,
                        variant);
            }
        });
    }

    @ParameterizedTest
    @CsvSource({
        "1, 2, EACH_COPY, AFTER_STEP, EACH_MICRO_BATCH, 2, DROPOUT",
        "1, 3, EACH_COPY, AFTER_STEP, LAST_MICRO_BATCH, 2, RECOMPUTED",
        "1, 4, EACH_COPY, AFTER_FORWARD, LAST_MICRO_BATCH, 1, FROZEN_BOTTOM",
        "1, 2, EACH_COPY, AFTER_FORWARD, LAST_MICRO_BATCH, 3, PLAIN",
        "2, 2, EACH_COPY, AFTER_STEP, LAST_MICRO_BATCH, 2, FROZEN_BOTTOM",
        "2, 2, ALL_RANKS, AFTER_STEP, LAST_MICRO_BATCH, 1, PLAIN",
        "2, 1, EACH_COPY, AFTER_FORWARD, LAST_MICRO_BATCH, 2, RECOMPUTED"
    })
    void ranksComputeWhatOneRankAccumulates(
            int copies,
            int shards,
            OptimizerSharding optimizer,
            Reshard reshard,
            GradientSync gradientSync,
            int microBatches,
            Variant variant) {
        DevicesNeeded.assume(copies * shards);
        FullyShardedConfig config =
                THREE.withOptimizer(optimizer).withReshard(reshard).withGradientSync(gradientSync);
        RankedRun expected = RankedRun.ofOne(copies * shards * microBatches, DType.FLOAT32, variant);
        expected.assertSame(train(shape(copies, shards), config, microBatches, DType.FLOAT32, variant));
    }

    /** Which gather a layer reads from changes no bit, in eight bits and in windows neither. */
    @ParameterizedTest
    @CsvSource({
        "FLOAT32, PLAIN, DEVICE",
        "FLOAT32, RECOMPUTED, COPY_ENGINE",
        "BFLOAT16, DELAYED_SCALING, DEVICE",
        "BFLOAT16, CURRENT_SCALING, COPY_ENGINE"
    })
    void weightsThatStayHaveTheSameBits(DType dtype, Variant variant, WeightGather gather) {
        DevicesNeeded.assume(2);
        FullyShardedConfig config = THREE.withWeightGather(gather);
        List<RankedRun> expected = train(shape(1, 2), config, 2, dtype, variant);
        List<RankedRun> actual = train(shape(1, 2), config.withReshard(Reshard.AFTER_STEP), 2, dtype, variant);
        float tolerance = Provider.current() == Provider.REFERENCE ? 0 : 1e-2f;
        for (int rank = 0; rank < expected.size(); rank++) {
            assertArrayEquals(expected.get(rank).losses(), actual.get(rank).losses(), tolerance);
            assertArrayEquals(expected.get(rank).norms(), actual.get(rank).norms(), tolerance);
        }
    }

    @Test
    void otherStagesHaveNothingToChoose() {
        for (ZeroStage stage : List.of(ZeroStage.ONE, ZeroStage.TWO)) {
            FullyShardedConfig config = FullyShardedConfig.of(stage);
            assertEquals(Reshard.AFTER_FORWARD, config.reshard());
            assertEquals(GradientSync.LAST_MICRO_BATCH, config.gradientSync());
            assertThrown(
                    IllegalArgumentException.class,
                    "reshard: expected AFTER_FORWARD in stage " + stage
                            + ", in which each rank has all weights, got AFTER_STEP",
                    () -> config.withReshard(Reshard.AFTER_STEP));
            assertThrown(
                    IllegalArgumentException.class,
                    "gradientSync: expected LAST_MICRO_BATCH in stage " + stage
                            + ", which sums gradients once a step, got EACH_MICRO_BATCH",
                    () -> config.withGradientSync(GradientSync.EACH_MICRO_BATCH));
        }
        assertEquals(GradientSync.EACH_MICRO_BATCH, THREE.gradientSync());
    }

    private static ModelPlan plan() {
        ModelPlan plan = new ModelPlan();
        new Linear(16, 16, Initializer.normal(0.1f), plan.group("layer"));
        return plan;
    }

    private static String refused(FullyShardedConfig first, FullyShardedConfig second) {
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    FullyShardedConfig own = rank.index() == 0 ? first : second;
                    try (Mesh mesh = Mesh.of(rank.communicator(), shape(1, 2))) {
                        FullySharded.allocate(plan(), DType.FLOAT32, 1, own, mesh);
                    }
                }));
        return String.valueOf(failure.getCause().getMessage());
    }

    /** They would wait for each other in other collectives. */
    @Test
    void ranksThatChooseOtherwiseAreRefused() {
        DevicesNeeded.assume(2);
        assertEquals(
                "reshard: expected the same on all ranks, got AFTER_STEP on rank 1 and AFTER_FORWARD on rank 0",
                refused(THREE, THREE.withReshard(Reshard.AFTER_STEP)));
        assertEquals(
                "gradientSync: expected the same on all ranks, got LAST_MICRO_BATCH on rank 1 and EACH_MICRO_BATCH on"
                        + " rank 0",
                refused(THREE, THREE.withGradientSync(GradientSync.LAST_MICRO_BATCH)));
    }

    @Test
    void explained() {
        DevicesNeeded.assume(2);
        FullyShardedConfig config =
                THREE.withReshard(Reshard.AFTER_STEP).withGradientSync(GradientSync.LAST_MICRO_BATCH);
        Ranks.local(2).each(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape(1, 2));
                    FullySharded training = FullySharded.allocate(plan(), DType.FLOAT32, 1, config, mesh)) {
                String text = training.explain();
                assertTrue(
                        text.endsWith(
                                ": gradients reduce-scattered group by group on their own stream, from memory for two"
                                        + " groups of each size, for all where a step has several micro-batches;"
                                        + " weights gathered group by group on another stream before their layers"
                                        + " run, one group ahead,"
                                        + " and kept until the step changes them"),
                        text);
            }
        });
    }
}

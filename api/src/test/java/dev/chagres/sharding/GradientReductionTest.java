package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.memory.Leaks;
import dev.chagres.launch.RankJvms;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Recipe;
import dev.chagres.sharding.WeightGatherTraining.Trained;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CyclicBarrier;
import java.util.concurrent.TimeUnit;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Gradients that copy engines bring to the ranks that keep them have the sums of {@code ncclReduceScatter}, and as many bytes travel. */
@Tag("L0")
@Tag("L2")
@Timeout(120)
class GradientReductionTest {
    private static final boolean REFERENCE = Provider.current() == Provider.REFERENCE;
    private static final String BY_ENGINES = ", gradients reduced by copy engines";

    /**
     * ‖a − b‖ / ‖a‖ of all tensors after {@link WeightGatherTraining#STEPS} steps, where sums are rounded to 16 bits or not: Adam's steps turn
     * round where a gradient is 0 but for rounding.
     */
    private static final double ROUNDED = 5e-2;

    @TempDir
    private Path folder;

    private static List<Trained> train(
            FullyShardedConfig config, int ranks, int copies, DType dtype, @Nullable Recipe recipe) {
        return Ranks.local(ranks).run(rank -> WeightGatherTraining.train(rank, config, copies, dtype, recipe));
    }

    private static void assertSame(List<Trained> expected, List<Trained> actual, double tolerance) {
        for (int rank = 0; rank < expected.size(); rank++) {
            Trained one = expected.get(rank);
            Trained other = actual.get(rank);
            assertEquals(one.bytes(), other.bytes(), "bytes of rank " + rank);
            assertEquals(one.weights().keySet(), other.weights().keySet());
            double distance = 0;
            double norm = 0;
            for (Map.Entry<String, float[]> weight : one.weights().entrySet()) {
                float[] value = other.weights().get(weight.getKey());
                if (tolerance == 0) {
                    assertArrayEquals(weight.getValue(), value, weight.getKey());
                }
                for (int i = 0; i < value.length; i++) {
                    distance += Math.pow(value[i] - weight.getValue()[i], 2);
                    norm += Math.pow(weight.getValue()[i], 2);
                }
            }
            assertEquals(0, Math.sqrt(distance / norm), tolerance, "distance on rank " + rank);
        }
    }

    @ParameterizedTest
    @CsvSource({
        "ONE, 2, 1, EACH_COPY, FLOAT32, FLOAT32, LAST_MICRO_BATCH",
        "ONE, 3, 1, EACH_COPY, BFLOAT16, BFLOAT16, LAST_MICRO_BATCH",
        "TWO, 4, 1, EACH_COPY, FLOAT32, FLOAT32, LAST_MICRO_BATCH",
        "TWO, 4, 2, ALL_RANKS, BFLOAT16, BFLOAT16, LAST_MICRO_BATCH",
        "THREE, 1, 1, EACH_COPY, FLOAT32, FLOAT32, EACH_MICRO_BATCH",
        "THREE, 2, 1, EACH_COPY, FLOAT32, FLOAT32, EACH_MICRO_BATCH",
        "THREE, 4, 1, EACH_COPY, BFLOAT16, FLOAT32, EACH_MICRO_BATCH",
        "THREE, 4, 1, EACH_COPY, BFLOAT16, BFLOAT16, EACH_MICRO_BATCH",
        "THREE, 3, 1, EACH_COPY, FLOAT32, FLOAT16, LAST_MICRO_BATCH",
        "THREE, 4, 2, EACH_COPY, BFLOAT16, BFLOAT16, EACH_MICRO_BATCH",
        "THREE, 4, 2, ALL_RANKS, FLOAT32, FLOAT32, EACH_MICRO_BATCH",
        "THREE, 4, 2, ALL_RANKS, BFLOAT16, BFLOAT16, EACH_MICRO_BATCH",
        "THREE, 4, 2, ALL_RANKS, BFLOAT16, BFLOAT16, LAST_MICRO_BATCH"
    })
    void copyEnginesReduceAsKernelsDo(
            ZeroStage stage,
            int ranks,
            int copies,
            OptimizerSharding optimizer,
            DType dtype,
            DType reduceType,
            GradientSync sync) {
        DevicesNeeded.assume(ranks);
        FullyShardedConfig config = FullyShardedConfig.of(stage)
                .withOptimizer(optimizer)
                .withReduceType(reduceType)
                .withGradientSync(sync);
        List<Trained> expected = train(config, ranks, copies, dtype, null);
        List<Trained> actual =
                train(config.withGradientReduction(GradientReduction.COPY_ENGINE), ranks, copies, dtype, null);
        // The reference adds up the ranks in their order, as the kernel does.
        assertSame(expected, actual, REFERENCE && reduceType == DType.FLOAT32 ? 0 : ROUNDED);
        String described = actual.getFirst().described();
        if (REFERENCE) {
            assertEquals(expected.getFirst().described() + BY_ENGINES, described);
        } else {
            assertTrue(described.contains(", gradients reduced "), described);
        }
    }

    /** The reference rounds the sum of {@code ncclReduceScatter} once, so that it has the bits of the rounded FP32 sum. */
    @Test
    void theSumIsRoundedToFp32Alone() {
        DevicesNeeded.assume(4);
        List<float[]> rounded = gradients(GradientReduction.REDUCE_SCATTER);
        List<float[]> sums = gradients(GradientReduction.COPY_ENGINE);
        int more = 0;
        double distance = 0;
        double norm = 0;
        for (int rank = 0; rank < sums.size(); rank++) {
            for (int i = 0; i < sums.get(rank).length; i++) {
                float sum = sums.get(rank)[i];
                float other = rounded.get(rank)[i];
                if (REFERENCE) {
                    // BFLOAT16 has 8 bits of significand: half a step is 2^-8 of the value at most.
                    assertEquals(sum, other, Math.abs(sum) * 0x1p-8f + 1e-6f);
                }
                distance += Math.pow(sum - other, 2);
                norm += Math.pow(sum, 2);
                more += (Float.floatToRawIntBits(sum) & 0xffff) != 0 ? 1 : 0;
            }
        }
        // NCCL rounds after each addition.
        assertEquals(0, Math.sqrt(distance / norm), 1e-2);
        assertTrue(more > 0, "no sum has more than 16 bits");
    }

    /** Returns this rank's part of a layer's gradients after a backward call. */
    private static List<float[]> gradients(GradientReduction reduction) {
        FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE)
                .withReduceType(DType.BFLOAT16)
                .withGradientReduction(reduction);
        return Ranks.local(4).run(rank -> {
            ModelPlan plan = new ModelPlan();
            Linear layer = new Linear(48, 64, Initializer.normal(0.1f), plan.group("layer"));
            MeshShape shape = MeshShape.ofOne().with(MeshDimension.SHARD, rank.count());
            try (Mesh mesh = Mesh.of(rank.communicator(), shape);
                    FullySharded strategy = FullySharded.allocate(plan, DType.BFLOAT16, 1, config, mesh);
                    Pass pass = Pass.training(rank.device())) {
                strategy.follow(pass);
                pass.begin();
                strategy.lastMicroBatch();
                Tensor x = pass.scope().tensor(DType.BFLOAT16, 16, 48);
                x.set(pass.stream(), WeightGatherTraining.input(rank.index(), 0));
                layer.backward(layer.forward(x, pass), pass);
                strategy.sumGradients();
                return strategy.parameters().gradients().toFloats(pass.stream());
            }
        });
    }

    /** With weights gathered by copy engines, too, and in eight bits. */
    @Test
    void besideGathersInWindows() {
        DevicesNeeded.assume(4);
        FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE)
                .withReduceType(DType.BFLOAT16)
                .withWeightGather(WeightGather.COPY_ENGINE);
        Recipe recipe = DelayedScaling.standard();
        assertSame(
                train(config, 4, 2, DType.BFLOAT16, recipe),
                train(config.withGradientReduction(GradientReduction.COPY_ENGINE), 4, 2, DType.BFLOAT16, recipe),
                ROUNDED);
    }

    /** Where more groups of a size are written at a time than windows hold, kernels reduce the further ones. */
    @Test
    void moreGroupsInUseThanAWindowHas() {
        DevicesNeeded.assume(2);
        FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE);
        List<List<Trained>> runs = List.of(GradientReduction.REDUCE_SCATTER, GradientReduction.COPY_ENGINE).stream()
                .map(reduction -> Ranks.local(2)
                        .run(rank -> WeightGatherTraining.train(
                                rank,
                                config.withGradientReduction(reduction),
                                1,
                                DType.FLOAT32,
                                null,
                                WeightGatherTraining::recomputedTogether)))
                .toList();
        assertSame(runs.getFirst(), runs.getLast(), REFERENCE ? 0 : ROUNDED);
    }

    /** Ranks that are processes, with the bits of ranks that are threads; also where NCCL makes no windows. */
    @ParameterizedTest
    @CsvSource({"THREE, 2, 1, 1", "THREE, 2, 1, 0", "TWO, 4, 2, 1"})
    void processesToo(ZeroStage stage, int ranks, int copies, String enabled) throws Exception {
        DevicesNeeded.assume(ranks);
        List<Trained> expected =
                train(FullyShardedConfig.of(stage), ranks, copies, DType.BFLOAT16, DelayedScaling.standard());
        String[] arguments = {
            stage.name(), WeightGather.DEVICE.name(), Integer.toString(copies), GradientReduction.COPY_ENGINE.name()
        };
        Map<String, String> environment = Map.of("NCCL_WIN_ENABLE", enabled);
        try (RankJvms jvms = new RankJvms(folder, ranks, environment, WeightGatherProgram.class, arguments)) {
            for (int rank = 0; rank < ranks; rank++) {
                jvms.awaitEnd(rank, 0);
                Trained one = expected.get(rank);
                String how = enabled.equals("1")
                        ? BY_ENGINES
                        : ", gradients reduced without windows, for NCCL made none: NCCL_WIN_ENABLE=0 is set";
                if (REFERENCE) {
                    assertEquals(one.described() + how + "; DEVICE " + one.digest(), jvms.last(rank));
                } else {
                    assertTrue(jvms.last(rank).startsWith(one.described() + ", gradients reduced "), jvms.last(rank));
                }
            }
        }
    }

    @Test
    void ranksThatReduceOtherwiseAreRefused() {
        DevicesNeeded.assume(2);
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> Ranks.local(2).each(rank -> {
                    ModelPlan plan = new ModelPlan();
                    plan.declare("weight", Initializer.zeros(), 8);
                    FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.TWO)
                            .withGradientReduction(GradientReduction.values()[rank.index()]);
                    try (Mesh mesh =
                            Mesh.of(rank.communicator(), MeshShape.ofOne().with(MeshDimension.SHARD, rank.count()))) {
                        FullySharded.allocate(plan, DType.FLOAT32, 1, config, mesh);
                    }
                }));
        assertEquals(
                "gradientReduction: expected the same on all ranks, got COPY_ENGINE on rank 1 and REDUCE_SCATTER on rank 0",
                failure.getCause().getMessage());
    }

    /** Ranks that freeze different parameters want windows of different sizes. Nothing that was opened before stays open. */
    @ParameterizedTest
    @CsvSource({"TWO, 1", "THREE, 1", "THREE, 2"})
    void aRefusedWindowLeavesNothingOpen(ZeroStage stage, int copies) throws Exception {
        int ranks = 2 * copies;
        DevicesNeeded.assume(ranks);
        CyclicBarrier together = new CyclicBarrier(ranks);
        FullyShardedConfig config = FullyShardedConfig.of(stage)
                .withOptimizer(OptimizerSharding.ALL_RANKS)
                .withGradientReduction(GradientReduction.COPY_ENGINE);
        MeshShape shape =
                MeshShape.ofOne().with(MeshDimension.REPLICATE, copies).with(MeshDimension.SHARD, 2);
        Ranks.local(ranks).each(rank -> {
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                // Communicators of a mesh along several dimensions are made when they are first asked for.
                mesh.along(MeshDimension.REPLICATE, MeshDimension.SHARD, MeshDimension.CONTEXT);
                mesh.along(MeshDimension.SHARD, MeshDimension.CONTEXT);
                together.await(60, TimeUnit.SECONDS);
                Set<Leaks.Trace> before = Set.copyOf(Leaks.open());
                together.await(60, TimeUnit.SECONDS);
                ModelPlan plan = new ModelPlan();
                Parameter weight = plan.declare("weight", Initializer.zeros(), 4096);
                plan.declare("bias", Initializer.zeros(), 8);
                if (mesh.coordinate(MeshDimension.SHARD) == 0) {
                    weight.freeze();
                }
                IllegalStateException refused = assertThrows(
                        IllegalStateException.class, () -> FullySharded.allocate(plan, DType.FLOAT32, 1, config, mesh));
                assertTrue(
                        String.valueOf(refused.getMessage())
                                .startsWith("window of gradients: expected the same on all ranks, got "),
                        refused.getMessage());
                together.await(60, TimeUnit.SECONDS);
                assertEquals(List.of(), openSince(before));
                together.await(60, TimeUnit.SECONDS);
            }
        });
    }

    private static List<String> openSince(Set<Leaks.Trace> before) {
        return Leaks.open().stream()
                .filter(trace -> !before.contains(trace))
                .map(Throwable::getMessage)
                .map(String::valueOf)
                .toList();
    }
}

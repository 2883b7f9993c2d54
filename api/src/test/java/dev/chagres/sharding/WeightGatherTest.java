package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.bindings.Provider;
import dev.chagres.launch.RankJvms;
import dev.chagres.launch.Ranks;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.RankFailedException;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8BlockScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Recipe;
import dev.chagres.sharding.WeightGatherTraining.Trained;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Weights that are gathered in windows of NCCL's memory are the same bits, and as many bytes travel. */
@Tag("L0")
@Tag("L2")
@Timeout(120)
class WeightGatherTest {
    private static final boolean REFERENCE = Provider.current() == Provider.REFERENCE;

    /** What products compute in. */
    private enum Precision {
        FP32(DType.FLOAT32, null),
        BF16(DType.BFLOAT16, null),
        DELAYED(DType.BFLOAT16, DelayedScaling.standard()),
        CURRENT(DType.BFLOAT16, Float8CurrentScaling.standard()),
        BLOCKS(DType.BFLOAT16, Float8BlockScaling.standard());

        private final DType dtype;
        private final @Nullable Recipe recipe;

        Precision(DType dtype, @Nullable Recipe recipe) {
            this.dtype = dtype;
            this.recipe = recipe;
        }
    }

    /** What a rank's device still has when everything of the training is closed, such as workspaces. */
    private record Ended(Trained trained, long held) {}

    @TempDir
    private Path folder;

    private static List<Ended> train(
            FullyShardedConfig config, WeightGather gather, int ranks, int copies, Precision precision) {
        FullyShardedConfig gathered = config.withWeightGather(gather);
        return Ranks.local(ranks).run(rank -> {
            Trained trained = WeightGatherTraining.train(rank, gathered, copies, precision.dtype, precision.recipe);
            return new Ended(trained, rank.device().heldBytes());
        });
    }

    private static void assertSame(List<Ended> expected, List<Ended> actual) {
        for (int rank = 0; rank < expected.size(); rank++) {
            Trained one = expected.get(rank).trained();
            Trained other = actual.get(rank).trained();
            assertEquals(expected.get(rank).held(), actual.get(rank).held(), "held by rank " + rank);
            assertEquals(one.bytes(), other.bytes(), "bytes of rank " + rank);
            assertEquals(one.weights().keySet(), other.weights().keySet());
            for (Map.Entry<String, float[]> weight : one.weights().entrySet()) {
                // Gathers only move; on GPUs it is sums whose order may be another one from run to run.
                assertArrayEquals(
                        weight.getValue(),
                        other.weights().get(weight.getKey()),
                        REFERENCE ? 0 : 2e-2f,
                        weight.getKey());
            }
            for (int step = 0; REFERENCE && step < WeightGatherTraining.STEPS; step++) {
                assertArrayEquals(one.outputs().get(step), other.outputs().get(step), "output of step " + step);
            }
        }
    }

    @ParameterizedTest
    @CsvSource({
        "ONE, 2, 1, FP32",
        "ONE, 4, 1, BF16",
        "TWO, 4, 1, FP32",
        "TWO, 3, 1, DELAYED",
        "THREE, 1, 1, BF16",
        "THREE, 2, 1, FP32",
        "THREE, 4, 1, BF16",
        "THREE, 3, 1, FP32",
        "THREE, 2, 1, DELAYED",
        "THREE, 4, 1, CURRENT",
        "THREE, 4, 1, BLOCKS",
        "ONE, 4, 2, BF16",
        "TWO, 4, 2, FP32",
        "THREE, 4, 2, BF16",
        "THREE, 4, 2, DELAYED",
        "THREE, 4, 2, BLOCKS"
    })
    void windowsChangeNothing(ZeroStage stage, int ranks, int copies, Precision precision) {
        DevicesNeeded.assume(ranks);
        FullyShardedConfig config = FullyShardedConfig.of(stage);
        List<Ended> expected = train(config, WeightGather.DEVICE, ranks, copies, precision);
        List<Ended> actual = train(config, WeightGather.COPY_ENGINE, ranks, copies, precision);
        assertSame(expected, actual);
        Trained first = actual.getFirst().trained();
        String described = expected.getFirst().trained().described();
        if (REFERENCE) {
            assertEquals(WeightGather.COPY_ENGINE, first.made());
            assertEquals(described + ", weights gathered in registered windows by copy engines", first.described());
        } else {
            assertTrue(first.described().contains(", weights gathered "), first.described());
        }
        assertTrue(!described.contains("gathered"));
        if (stage == ZeroStage.THREE) {
            assertEquals(
                    first.held().getFirst(),
                    first.held().getLast(),
                    "memory for weights that the first step has taken");
        }
    }

    /** A window has room for two groups of a size; where more are in use at a time further ones lie in the device's memory. */
    @ParameterizedTest
    @EnumSource(
            value = Precision.class,
            names = {"BF16", "CURRENT", "DELAYED"})
    void moreGroupsInUseThanAWindowHas(Precision precision) {
        DevicesNeeded.assume(2);
        FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE);
        List<List<Ended>> runs = new ArrayList<>();
        for (WeightGather each : WeightGather.values()) {
            runs.add(Ranks.local(2)
                    .run(rank -> new Ended(
                            WeightGatherTraining.train(
                                    rank,
                                    config.withWeightGather(each),
                                    1,
                                    precision.dtype,
                                    precision.recipe,
                                    WeightGatherTraining::recomputedTogether),
                            rank.device().heldBytes())));
        }
        assertSame(runs.getFirst(), runs.getLast());
        List<Long> held = runs.getLast().getFirst().trained().held();
        assertTrue(held.getLast() > held.getFirst(), () -> "no further buffer was taken: " + held);
        if (precision == Precision.BF16) {
            long chunk =
                    1 << 20; // what a scope takes for its first tensor, and none where both groups lie in the window
            long window = 2 * 2L * WeightGatherTraining.HIDDEN * WeightGatherTraining.HIDDEN;
            long plain = runs.getFirst().getFirst().trained().held().getFirst();
            assertEquals(plain - chunk + window, held.getFirst());
        }
    }

    /** Updated weights are gathered among all copies, too, which is not what the windows are for. */
    @ParameterizedTest
    @EnumSource(ZeroStage.class)
    void allRanksUpdate(ZeroStage stage) {
        DevicesNeeded.assume(4);
        FullyShardedConfig config = FullyShardedConfig.of(stage).withOptimizer(OptimizerSharding.ALL_RANKS);
        List<Ended> expected = train(config, WeightGather.DEVICE, 4, 2, Precision.BF16);
        assertSame(expected, train(config, WeightGather.COPY_ENGINE, 4, 2, Precision.BF16));
    }

    /** Ranks that are processes, with the bits of ranks that are threads; also where NCCL makes no windows. */
    @ParameterizedTest
    @CsvSource({"THREE, 2, 1, 1", "THREE, 2, 1, 0", "ONE, 4, 2, 1"})
    void processesToo(ZeroStage stage, int ranks, int copies, String enabled) throws Exception {
        DevicesNeeded.assume(ranks);
        List<Ended> expected =
                train(FullyShardedConfig.of(stage), WeightGather.DEVICE, ranks, copies, Precision.DELAYED);
        String[] arguments = {
            stage.name(),
            WeightGather.COPY_ENGINE.name(),
            Integer.toString(copies),
            GradientReduction.REDUCE_SCATTER.name()
        };
        Map<String, String> environment = Map.of("NCCL_WIN_ENABLE", enabled);
        try (RankJvms jvms = new RankJvms(folder, ranks, environment, WeightGatherProgram.class, arguments)) {
            for (int rank = 0; rank < ranks; rank++) {
                jvms.awaitEnd(rank, 0);
                String how = enabled.equals("0")
                        ? ", weights gathered without windows, for NCCL made none: NCCL_WIN_ENABLE=0 is set; "
                        : ", weights gathered in registered windows by copy engines; ";
                Trained one = expected.get(rank).trained();
                WeightGather made = enabled.equals("0") ? WeightGather.DEVICE : WeightGather.COPY_ENGINE;
                if (REFERENCE) {
                    assertEquals(one.described() + how + made + " " + one.digest(), jvms.last(rank));
                } else {
                    assertTrue(jvms.last(rank).startsWith(one.described() + ", weights gathered "), jvms.last(rank));
                }
            }
        }
    }

    private static String refused(Ranks ranks, boolean otherPlan) {
        RankFailedException failure = assertThrows(
                RankFailedException.class,
                () -> ranks.each(rank -> {
                    boolean other = rank.index() == 1;
                    ModelPlan plan = new ModelPlan();
                    plan.declare("weight", Initializer.zeros(), otherPlan && other ? 80_000 : 8);
                    FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.TWO)
                            .withWeightGather(other || otherPlan ? WeightGather.COPY_ENGINE : WeightGather.DEVICE);
                    try (Mesh mesh =
                            Mesh.of(rank.communicator(), MeshShape.ofOne().with(MeshDimension.SHARD, rank.count()))) {
                        FullySharded.allocate(plan, DType.FLOAT32, 1, config, mesh);
                    }
                }));
        return String.valueOf(failure.getCause().getMessage());
    }

    @Test
    void ranksThatGatherOtherwiseAreRefused() {
        DevicesNeeded.assume(2);
        assertEquals(
                "weightGather: expected the same on all ranks, got COPY_ENGINE on rank 1 and DEVICE on rank 0",
                refused(Ranks.local(2), false));
        String text = refused(Ranks.local(2), true);
        assertTrue(
                text.matches(
                        "window of weights: expected the same on all ranks, got \\d+ bytes on rank 1 and \\d+ bytes on"
                                + " rank 0; build the same plan, with the same types and strategy, on each"),
                text);
    }
}

package dev.chagres.sharding;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Bias;
import dev.chagres.layer.Linear;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Sequential;
import dev.chagres.sharding.RankedRun.Saved;
import dev.chagres.sharding.RankedRun.Sharing;
import dev.chagres.sharding.RankedRun.Span;
import dev.chagres.sharding.RankedRun.Variant;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** Ranks with a sharded model compute what one rank computes that has all of it and accumulates as many micro-batches. */
@Tag("L0")
@Tag("L2")
class FullyShardedTest {
    private static final long SEED = 7;

    private static Sharing stage(ZeroStage stage) {
        return (plan, dtype, rank) -> {
            // @start region="sharded"
            FullySharded strategy = FullySharded.allocate(plan, dtype, SEED, stage, rank.communicator());
            // @end
            return strategy;
        };
    }

    @ParameterizedTest
    @EnumSource(OptimizerSharding.class)
    void aConfigurationNeedsNoMesh(OptimizerSharding optimizer) {
        DevicesNeeded.assume(2);
        FullyShardedConfig config = FullyShardedConfig.of(ZeroStage.THREE)
                .withOptimizer(optimizer)
                .withReshard(Reshard.AFTER_STEP)
                .withGradientSync(GradientSync.LAST_MICRO_BATCH);
        Sharing sharing = (plan, dtype, rank) -> {
            FullySharded made = FullySharded.allocate(plan, dtype, SEED, config, rank.communicator());
            assertNull(made.mesh());
            assertTrue(made.explain().contains("kept until the step changes them"), made.explain());
            return made;
        };
        RankedRun.ofOne(4, DType.FLOAT32, Variant.GROUPS)
                .assertSame(Ranks.local(2).run(rank -> RankedRun.of(rank, sharing, 2, DType.FLOAT32, Variant.GROUPS)));
    }

    @ParameterizedTest
    @EnumSource(ZeroStage.class)
    void anyOptimizerUpdatesItsShards(ZeroStage zero) {
        DevicesNeeded.assume(2);
        for (Variant variant : List.of(Variant.SGD, Variant.AVERAGED, Variant.SCHEDULE_FREE, Variant.OFFLOADED)) {
            RankedRun.ofOne(4, DType.BFLOAT16, variant)
                    .assertSame(
                            Ranks.local(2).run(rank -> RankedRun.of(rank, stage(zero), 2, DType.BFLOAT16, variant)));
        }
    }

    /** What shares a scale belongs to one rank, however many there are: a file of four ranks loads on two, and on one, byte for byte. */
    @Test
    void statesOfEightBitsAreThoseOfAnyNumberOfRanks(@TempDir Path folder) throws IOException {
        DevicesNeeded.assume(4);
        Path four = folder.resolve("four");
        Path two = folder.resolve("two");
        Path one = folder.resolve("one");
        Sharing sharing = stage(ZeroStage.TWO);
        Span trained = new Span(0, 3, null, four);
        Ranks.local(4).run(rank -> RankedRun.of(rank, sharing, 1, DType.BFLOAT16, Variant.EIGHT_BITS, trained));
        Span again = new Span(3, 3, four, two);
        Ranks.local(2).run(rank -> RankedRun.of(rank, sharing, 2, DType.BFLOAT16, Variant.EIGHT_BITS, again));
        RankedRun.ofOne(4, DType.BFLOAT16, Variant.EIGHT_BITS, new Span(3, 3, two, one));
        assertArrayEquals(Files.readAllBytes(four), Files.readAllBytes(two));
        assertArrayEquals(Files.readAllBytes(four), Files.readAllBytes(one));
    }

    @Test
    void offloadedStatesAreSavedAsThoseOnTheDevice(@TempDir Path folder) throws IOException {
        DevicesNeeded.assume(2);
        Sharing sharing = stage(ZeroStage.THREE);
        for (Variant variant : List.of(Variant.PLAIN, Variant.OFFLOADED)) {
            Span trained = new Span(0, 3, null, folder.resolve(variant.name()));
            Ranks.local(2).run(rank -> RankedRun.of(rank, sharing, 2, DType.BFLOAT16, variant, trained));
        }
        assertArrayEquals(Files.readAllBytes(folder.resolve("PLAIN")), Files.readAllBytes(folder.resolve("OFFLOADED")));
    }

    /** Stage 3 sums each micro-batch, also one that comes after the last. */
    @Test
    void aMicroBatchAfterTheLastIsSummedInStage3() {
        DevicesNeeded.assume(2);
        int hidden = 16;
        int rows = 2;
        int microBatches = 2;
        float[] expected = new float[hidden * hidden / 2];
        for (int i = 0; i < 2 * microBatches; i++) {
            for (int k = 0; k < expected.length; k++) {
                expected[k] += rows * (1 + i) * (1 + i);
            }
        }
        Ranks.local(2).each(rank -> {
            ModelPlan plan = new ModelPlan();
            Linear layer = new Linear(hidden, hidden, Bias.ABSENT, Initializer.ones(), plan.group("layer"));
            try (FullySharded strategy =
                            FullySharded.allocate(plan, DType.FLOAT32, SEED, ZeroStage.THREE, rank.communicator());
                    Pass pass = Pass.training(rank.device())) {
                strategy.follow(pass);
                for (int i = 0; i < microBatches; i++) {
                    pass.begin();
                    if (i == 0) {
                        strategy.lastMicroBatch();
                    }
                    Tensor x = pass.scope().tensor(DType.FLOAT32, rows, hidden);
                    float[] values = new float[rows * hidden];
                    Arrays.fill(values, 1 + rank.index() + 2 * i);
                    x.set(pass.stream(), values);
                    layer.forward(x, pass);
                    layer.backward(x, pass);
                }
                strategy.sumGradients();
                assertArrayEquals(expected, strategy.parameters().gradients().toFloats(pass.stream()));
            }
        });
    }

    @ParameterizedTest
    @CsvSource({
        "ONE, 8, 1, FROZEN_BOTTOM",
        "ONE, 3, 1, GROUPS",
        "TWO, 2, 2, DROPOUT",
        "TWO, 2, 2, GROUPS",
        "THREE, 3, 2, RECOMPUTED",
        "THREE, 4, 1, GROUPS"
    })
    void ranksComputeWhatOneRankAccumulates(ZeroStage stage, int ranks, int microBatches, Variant variant) {
        DevicesNeeded.assume(ranks);
        RankedRun expected = RankedRun.ofOne(ranks * microBatches, DType.FLOAT32, variant);
        expected.assertSame(
                Ranks.local(ranks).run(rank -> RankedRun.of(rank, stage(stage), microBatches, DType.FLOAT32, variant)));
    }

    /** The branches of a layer are gathered and summed one by one. */
    @ParameterizedTest
    @CsvSource({
        "ONE, 2, PLAIN",
        "TWO, 3, DROPOUT",
        "THREE, 2, RECOMPUTED",
        "THREE, 4, FROZEN_BOTTOM",
        "THREE, 3, DROPOUT"
    })
    void groupsCanBeBranches(ZeroStage stage, int ranks, Variant variant) {
        DevicesNeeded.assume(ranks);
        RankedRun.Sharing byBranch = (plan, dtype, rank) -> {
            // @start region="regrouped"
            ModelPlan branches = plan.regrouped(parameter -> {
                String name = parameter.name();
                if (name.contains("norm")) {
                    return name.contains("layers.0.") ? "norms" : "attention";
                }
                return name.contains(".mlp.") ? "mlp" : "attention";
            });
            // @end
            assertTrue(branches.groups().size() > plan.groups().size(), branches.toString());
            return stage(stage).share(branches, dtype, rank);
        };
        RankedRun.ofOne(ranks, DType.FLOAT32, variant)
                .assertSame(Ranks.local(ranks).run(rank -> RankedRun.of(rank, byBranch, 1, DType.FLOAT32, variant)));
    }

    /** Trains layers whose memory is of equal sizes, while the parameters in it are not; returns the norm of each step. */
    private static List<Float> norms(Rank rank, RankedRun.Sharing sharing) {
        ModelPlan plan = new ModelPlan();
        int[] sizes = {5, 4, 8, 4, 5, 3, 5, 4, 8};
        Sequential layers = Sequential.of(
                sizes.length - 1,
                i -> new Linear(
                        sizes[i], sizes[i + 1], Bias.ABSENT, Initializer.normal(0.5f), plan.group("layers." + i)));
        try (Strategy strategy = sharing.share(plan, DType.FLOAT32, rank);
                Parameters parameters = strategy.parameters();
                AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                Pass pass = Pass.training(rank.device())) {
            strategy.follow(pass);
            GradientNorm norm = new GradientNorm(parameters, 1);
            List<Float> norms = new ArrayList<>();
            for (int step = 0; step < 4; step++) {
                pass.begin();
                strategy.lastMicroBatch();
                Tensor x = pass.scope().tensor(DType.FLOAT32, 1, 5);
                x.set(pass.stream(), 1f, 2f, 3f, 4f, 5f + rank.index());
                Tensor y = layers.forward(x, pass);
                layers.backward(y, pass);
                strategy.sumGradients();
                norm.compute();
                norms.add(norm.norm().toFloats(pass.stream())[0]);
                optimizer.step(1e-2f, norm);
            }
            return norms;
        }
    }

    /** Groups of equal sizes take turns in memory: what one has left between the parameters of another is no gradient. */
    @ParameterizedTest
    @EnumSource(ZeroStage.class)
    void theNormCountsGradientsAlone(ZeroStage stage) {
        DevicesNeeded.assume(2);
        List<Float> expected = Ranks.local(2)
                .run(rank -> norms(
                        rank,
                        (plan, dtype, r) ->
                                DataParallel.of(Parameters.allocate(r.device(), plan, dtype, SEED), r.communicator())))
                .getFirst();
        for (List<Float> norms : Ranks.local(2).run(rank -> norms(rank, stage(stage)))) {
            for (int step = 0; step < expected.size(); step++) {
                assertEquals(expected.get(step), norms.get(step), 1e-4 * expected.get(step), "norm " + step);
            }
        }
    }

    /** BF16 weights have FP32 masters, of which each rank keeps a part; rounding differs with the order of sums. */
    @ParameterizedTest
    @EnumSource(ZeroStage.class)
    void mastersOfSixteenBitWeightsToo(ZeroStage stage) {
        DevicesNeeded.assume(3);
        RankedRun expected = RankedRun.ofOne(3, DType.BFLOAT16, Variant.PLAIN);
        var actual = Ranks.local(3).run(rank -> RankedRun.of(rank, stage(stage), 1, DType.BFLOAT16, Variant.PLAIN));
        expected.assertSame(actual);
        for (RankedRun run : actual) {
            run.state().forEach((name, saved) -> {
                float[] values = saved.values();
                Saved master = run.state().get(name + ".master");
                for (int i = 0; master != null && i < values.length; i++) {
                    assertEquals(DType.toBfloat16(master.values()[i]), DType.toBfloat16(values[i]), name);
                }
            });
        }
    }
}

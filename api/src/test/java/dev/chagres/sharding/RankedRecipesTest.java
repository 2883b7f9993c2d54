package dev.chagres.sharding;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.checkpoint.RunState;
import dev.chagres.io.SafetensorsFile;
import dev.chagres.launch.Rank;
import dev.chagres.launch.Ranks;
import dev.chagres.layer.Linear;
import dev.chagres.mesh.Mesh;
import dev.chagres.mesh.MeshDimension;
import dev.chagres.mesh.MeshShape;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.UniqueId;
import dev.chagres.optim.AdamW;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.parameter.State;
import dev.chagres.pass.Pass;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.RankedRun.Sharing;
import dev.chagres.sharding.RankedRun.Span;
import dev.chagres.sharding.RankedRun.Variant;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.io.TempDir;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Ranks whose products are computed in eight bits take the steps of one rank that accumulates as many micro-batches. */
@Tag("L0")
@Tag("L2")
class RankedRecipesTest {
    @TempDir
    private Path folder;

    /** How many ranks keep what; a hybrid has two copies. */
    private enum Kept {
        DDP,
        ONE,
        TWO,
        THREE,
        HYBRID_EACH,
        HYBRID_ALL;

        private RankedRun run(Rank rank, int microBatches, Variant variant, Span span) {
            if (this == DDP) {
                Sharing sharing = (plan, dtype, r) ->
                        DataParallel.of(Parameters.allocate(r.device(), plan, dtype, 7), r.communicator());
                return RankedRun.of(rank, sharing, microBatches, DType.BFLOAT16, variant, span);
            }
            boolean hybrid = ordinal() > THREE.ordinal();
            FullyShardedConfig config = FullyShardedConfig.of(hybrid ? ZeroStage.THREE : ZeroStage.valueOf(name()))
                    .withOptimizer(this == HYBRID_ALL ? OptimizerSharding.ALL_RANKS : OptimizerSharding.EACH_COPY);
            int copies = hybrid ? 2 : 1;
            MeshShape shape = MeshShape.ofOne()
                    .with(MeshDimension.REPLICATE, copies)
                    .with(MeshDimension.SHARD, rank.count() / copies);
            try (Mesh mesh = Mesh.of(rank.communicator(), shape)) {
                Sharing sharing = (plan, dtype, r) -> FullySharded.allocate(plan, dtype, 7, config, mesh);
                return RankedRun.of(rank, sharing, microBatches, DType.BFLOAT16, variant, span);
            }
        }

        private List<RankedRun> run(int ranks, int microBatches, Variant variant, Span span) {
            return Ranks.local(ranks).run(rank -> run(rank, microBatches, variant, span));
        }
    }

    @ParameterizedTest
    @CsvSource({
        "DDP, 3, 1, DELAYED_SCALING",
        "DDP, 2, 2, CURRENT_SCALING",
        "DDP, 2, 1, BLOCK_SCALING",
        "ONE, 2, 2, DELAYED_SCALING",
        "ONE, 3, 1, CURRENT_SCALING",
        "TWO, 3, 1, DELAYED_SCALING",
        "TWO, 4, 1, BLOCK_SCALING",
        "THREE, 2, 2, DELAYED_SCALING",
        "THREE, 3, 1, DELAYED_SCALING",
        "THREE, 3, 1, CURRENT_SCALING",
        "THREE, 4, 1, BLOCK_SCALING",
        "HYBRID_EACH, 4, 1, DELAYED_SCALING",
        "HYBRID_ALL, 4, 1, CURRENT_SCALING",
        "HYBRID_ALL, 6, 1, BLOCK_SCALING"
    })
    void ranksComputeWhatOneRankAccumulates(Kept kept, int ranks, int microBatches, Variant variant) {
        DevicesNeeded.assume(ranks);
        RankedRun expected = RankedRun.ofOne(ranks * microBatches, DType.BFLOAT16, variant);
        List<RankedRun> actual = kept.run(ranks, microBatches, variant, Span.ALL);
        for (int step = 0; step < RankedRun.STEPS; step++) {
            float loss = loss(actual, step);
            // Sums in another order round a weight of 16 bits to its neighbour, on some processors.
            assertEquals(expected.losses()[step], loss, 1e-2 * loss, "loss of step " + step);
        }
        for (RankedRun run : actual) {
            RankedRun.assertClose(expected.first(), run.first(), 0);
            run.state()
                    .forEach((name, saved) -> assertArrayEquals(
                            actual.getFirst().state().get(name).values(), saved.values(), name + " on all ranks"));
        }
        float first = loss(actual, 0);
        assertEquals(expected.losses()[0], first, 1e-5 * first, "the same casts");
    }

    private static float loss(List<RankedRun> runs, int step) {
        float sum = 0;
        for (RankedRun run : runs) {
            sum += run.losses()[step];
        }
        return sum;
    }

    /** What a rank computes that only takes part in another's micro-batch leaves scales and their history as they are. */
    @ParameterizedTest
    @CsvSource({"DDP, 3, 1", "TWO, 2, 2", "THREE, 2, 2", "THREE, 4, 1", "HYBRID_EACH, 4, 1", "HYBRID_ALL, 8, 1"})
    void scalesAfterAStepAreThoseOfOneRank(Kept kept, int ranks, int microBatches) {
        DevicesNeeded.assume(ranks);
        Path one = folder.resolve("one");
        Path several = folder.resolve("several");
        RankedRun.ofOne(ranks * microBatches, DType.BFLOAT16, Variant.DELAYED_SCALING, new Span(0, 1, null, one));
        kept.run(ranks, microBatches, Variant.DELAYED_SCALING, new Span(0, 1, null, several));
        int compared = 0;
        try (SafetensorsFile expected = SafetensorsFile.open(one);
                SafetensorsFile actual = SafetensorsFile.open(several)) {
            for (String name : expected.entries().keySet()) {
                if (name.endsWith(".scale") || name.endsWith(".amax_history")) {
                    assertEquals(
                            -1,
                            expected.entry(name)
                                    .bytes()
                                    .mismatch(actual.entry(name).bytes()),
                            name);
                    compared++;
                }
            }
        }
        assertTrue(compared > 20, compared + " scales and histories");
    }

    private static ModelPlan linear() {
        ModelPlan plan = new ModelPlan();
        new Linear(32, 32, Initializer.normal(0.1f), plan.group("layer"));
        return plan;
    }

    /** Rank 1 sees larger values; both ranks remember them, and their scales are the same. */
    @Test
    void scalesAreThoseOfAllRanks() {
        DevicesNeeded.assume(2);
        List<List<float[]>> states = Ranks.local(2).run(rank -> {
            ModelPlan plan = new ModelPlan();
            Linear layer = new Linear(32, 32, Initializer.normal(0.1f), plan.group("layer"));
            try (Parameters parameters = Parameters.allocate(rank.device(), plan, DType.BFLOAT16, 1);
                    Strategy strategy = DataParallel.of(parameters, rank.communicator());
                    Pass pass = Pass.training(rank.device())) {
                Quantizers quantizers = Quantizers.allocate(parameters, DelayedScaling.standard());
                strategy.reduceAmax(quantizers);
                pass.autocast(quantizers);
                pass.begin();
                Tensor x = pass.scope().tensor(DType.BFLOAT16, 16, 32);
                float[] values = new float[16 * 32];
                values[5] = 1 + 2 * rank.index();
                x.set(rank.device().stream(), values);
                layer.backward(layer.forward(x, pass), pass);
                strategy.sumGradients();
                strategy.takeBytes();
                parameters.nextStep();
                // An input and a weight forward, a gradient backward.
                assertEquals(new CollectiveBytes(0, 0, 3 * Float.BYTES), strategy.takeBytes());
                State state = quantizers.state();
                List<float[]> all = new ArrayList<>();
                state.tensors().values().forEach(tensor -> all.add(tensor.toFloats(rank.device().stream())));
                float inputScale = state.tensors().entrySet().stream()
                        .filter(entry -> entry.getKey().endsWith("input.scale"))
                        .map(entry -> entry.getValue().toFloats(rank.device().stream())[0])
                        .findFirst()
                        .orElseThrow();
                assertEquals(448f / 3, inputScale, 1e-3, "the largest input is rank 1's");
                return all;
            }
        });
        for (int i = 0; i < states.getFirst().size(); i++) {
            assertArrayEquals(states.getFirst().get(i), states.get(1).get(i));
        }
    }

    @Test
    void scalesOfOneRankAreNotSavedAsThoseOfAll() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            try (Parameters parameters = Parameters.allocate(rank.device(), linear(), DType.BFLOAT16, 1);
                    Quantizers quantizers = Quantizers.allocate(parameters, DelayedScaling.standard());
                    AdamW optimizer = new AdamW(parameters, AdamW.Config.standard());
                    Strategy strategy = DataParallel.of(parameters, rank.communicator())) {
                assertThrown(
                        IllegalStateException.class,
                        "state: expected scales reduced over all ranks, got those of only this rank; call"
                                + " reduceAmax(quantizers) of the strategy before the first step",
                        () -> RunState.of(strategy)
                                .optimizer(optimizer)
                                .with(quantizers)
                                .specs());
                strategy.reduceAmax(quantizers);
                RunState.of(strategy).optimizer(optimizer).with(quantizers);
            }
        });
    }

    /** A rank with other scales would cast its part of weights as the others do not read it. */
    @Test
    void recipesOfRanksAreCompared() {
        DevicesNeeded.assume(2);
        Ranks.local(2).each(rank -> {
            DelayedScaling recipe = DelayedScaling.standard().withMargin(rank.index());
            try (Parameters parameters = Parameters.allocate(rank.device(), linear(), DType.BFLOAT16, 1);
                    Quantizers others = Quantizers.allocate(parameters, recipe);
                    Quantizers same = Quantizers.allocate(parameters, DelayedScaling.standard());
                    Strategy strategy = DataParallel.of(parameters, rank.communicator())) {
                IllegalStateException refusal =
                        assertThrows(IllegalStateException.class, () -> strategy.reduceAmax(others));
                assertTrue(
                        refusal.getMessage()
                                        .startsWith(
                                                "quantizers: recipe and places, by their checksum: expected the same on all"
                                                        + " ranks, got ")
                                && refusal.getMessage()
                                        .endsWith("; give Quantizers.allocate the same recipe and groups on each, here "
                                                + recipe),
                        refusal.getMessage());
                strategy.reduceAmax(same);
            }
        });
    }

    @Test
    void misuse() {
        try (Device device = Device.open();
                Communicator one = Communicator.open(device, UniqueId.create(), 1, 0, CommunicatorConfig.standard());
                Parameters parameters = Parameters.allocate(device, linear(), DType.BFLOAT16, 1);
                Parameters others = Parameters.allocate(device, linear(), DType.BFLOAT16, 1);
                Quantizers quantizers = Quantizers.allocate(parameters, DelayedScaling.standard());
                Quantizers foreign = Quantizers.allocate(others, Float8CurrentScaling.standard())) {
            Strategy strategy = DataParallel.of(parameters, one);
            assertThrown(
                    IllegalArgumentException.class,
                    "quantizers: expected those of this strategy's parameters, got " + foreign + " of others",
                    () -> strategy.reduceAmax(foreign));
            strategy.reduceAmax(quantizers);
            assertThrown(
                    IllegalStateException.class,
                    "reduceAmax: expected quantizers that are not reduced yet, got " + quantizers,
                    () -> strategy.reduceAmax(quantizers));
            strategy.close();
            parameters.nextStep(); // asks no rank any more
        }
    }
}

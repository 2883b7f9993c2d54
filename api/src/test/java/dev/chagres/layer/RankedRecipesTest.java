package dev.chagres.layer;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.DevicesNeeded;
import dev.chagres.Tensor;
import dev.chagres.layer.RankedRun.Sharing;
import dev.chagres.layer.RankedRun.Variant;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;
import dev.chagres.model.Parameters;
import dev.chagres.model.State;
import dev.chagres.nccl.Communicator;
import dev.chagres.nccl.CommunicatorConfig;
import dev.chagres.nccl.UniqueId;
import dev.chagres.recipe.DelayedScaling;
import dev.chagres.recipe.Float8CurrentScaling;
import dev.chagres.recipe.Quantizers;
import dev.chagres.sharding.CollectiveBytes;
import dev.chagres.sharding.DataParallel;
import dev.chagres.sharding.FullySharded;
import dev.chagres.sharding.Ranks;
import dev.chagres.sharding.Strategy;
import dev.chagres.sharding.ZeroStage;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Ranks whose products are computed in eight bits take the steps of one rank that accumulates as many micro-batches. */
@Tag("L0")
@Tag("L2")
class RankedRecipesTest {
    private static Sharing sharing(String strategy) {
        return (plan, dtype, rank) -> strategy.equals("DDP")
                ? DataParallel.of(Parameters.allocate(rank.device(), plan, dtype, 7), rank.communicator())
                : FullySharded.allocate(plan, dtype, 7, ZeroStage.valueOf(strategy), rank.communicator());
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
        "THREE, 3, 1, CURRENT_SCALING",
        "THREE, 4, 1, BLOCK_SCALING"
    })
    void ranksComputeWhatOneRankAccumulates(String strategy, int ranks, int microBatches, Variant variant) {
        DevicesNeeded.assume(ranks);
        RankedRun expected = RankedRun.ofOne(ranks * microBatches, DType.BFLOAT16, variant);
        List<RankedRun> actual = Ranks.local(ranks)
                .run(rank -> RankedRun.of(rank, sharing(strategy), microBatches, DType.BFLOAT16, variant));
        for (int step = 0; step < RankedRun.STEPS; step++) {
            float loss = 0;
            for (RankedRun run : actual) {
                loss += run.losses()[step];
            }
            // Sums in another order round to other weights of 16 bits.
            assertEquals(expected.losses()[step], loss, 1e-2 * expected.losses()[step], "loss of step " + step);
        }
        float first = 0;
        for (RankedRun run : actual) {
            first += run.losses()[0];
            RankedRun.assertClose(expected.first(), run.first(), 0);
            run.state()
                    .forEach((name, saved) -> assertArrayEquals(
                            actual.getFirst().state().get(name).values(), saved.values(), name + " on all ranks"));
        }
        assertEquals(expected.losses()[0], first, 1e-5 * first, "the same casts");
    }

    private static ModelPlan linear() {
        ModelPlan plan = new ModelPlan();
        new Linear(32, 32, Initializer.normal(0.1f), plan.group("layer"));
        return plan;
    }

    /** Rank 1 sees larger values; both ranks remember them, and their scales are the same. */
    @Test
    void scalesAreThoseOfAllRanks() {
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

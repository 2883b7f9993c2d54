package dev.chagres.recipe;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;

import dev.chagres.DType;
import dev.chagres.Graph;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.layer.Linear;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** A tied weight whose own parameters take no step is cast anew when the scales of those that multiply by it change. */
@Tag("L0")
@Tag("L1")
class ScalesOfTiedWeightsTest {
    private static final int SIZE = 32;
    private static final int STEPS = 4;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** How a step ends. */
    private enum End {
        CALL,
        LAUNCH,
        /** By a call, behind which the weight is cast anew in any case. */
        FORGETTING
    }

    private static float[] waves(float factor) {
        float[] values = new float[SIZE * SIZE];
        for (int i = 0; i < values.length; i++) {
            values[i] = factor * (float) Math.sin(i);
        }
        return values;
    }

    private static List<float[]> outputs(End end) {
        ModelPlan plan = new ModelPlan();
        Linear base = new Linear(SIZE, SIZE, Initializer.normal(0.5f), plan.group("base"));
        ModelPlan tiedPlan = new ModelPlan();
        Linear tied = Linear.tied(base.weight(), tiedPlan.group("tied"));
        List<float[]> outputs = new ArrayList<>();
        DelayedScaling recipe = DelayedScaling.standard().withAmaxHistoryLength(2);
        try (Parameters owners = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1);
                Parameters parameters = Parameters.allocate(open.device(), tiedPlan, DType.BFLOAT16, 1);
                Quantizers quantizers = Quantizers.allocate(parameters, recipe);
                Pass pass = Pass.training(open.device());
                Scope scope = open.device().openScope()) {
            base.weight().weight().set(open.stream(), waves(0.7f));
            owners.changed();
            pass.autocast(quantizers);
            Tensor x = scope.tensor(DType.BFLOAT16, SIZE, SIZE);
            x.set(open.stream(), waves(1));
            parameters.nextStep();
            try (Graph graph = open.stream().capture(parameters::nextStep)) {
                for (int i = 0; i < STEPS; i++) {
                    outputs.add(tied.forward(x, pass.begin()).toFloats(open.stream()));
                    if (end == End.LAUNCH) {
                        graph.launch();
                    } else {
                        parameters.nextStep();
                    }
                    if (end == End.FORGETTING) {
                        quantizers.forgetWeights();
                    }
                }
            }
        }
        return outputs;
    }

    private static void assertAsCastAnew(End end) {
        List<float[]> expected = outputs(End.FORGETTING);
        List<float[]> actual = outputs(end);
        for (int i = 0; i < STEPS; i++) {
            assertArrayEquals(expected.get(i), actual.get(i), "step " + i);
        }
    }

    @Test
    void followStepsOfCalls() {
        assertAsCastAnew(End.CALL);
    }

    @Test
    void followStepsOfLaunches() {
        assertAsCastAnew(End.LAUNCH);
    }
}

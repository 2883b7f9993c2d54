package dev.chagres.optim;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.util.HashMap;
import java.util.Map;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Steps of {@code Lion} against double precision. */
@Tag("L0")
@Tag("L1")
class LionTest {
    private static final float RATE = 1e-2f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static double[] gradient(Parameter parameter, int step) {
        double[] values = new double[(int) parameter.shape().count()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(step + 0.37 * i);
        }
        return values;
    }

    private static float[] stepped(Parameter parameter, float[] first, Lion.Config config, int steps) {
        double decay = parameter.shape().rank() > 1 ? config.weightDecay() : 0;
        float[] result = new float[first.length];
        for (int i = 0; i < first.length; i++) {
            double weight = first[i];
            double mean = 0;
            for (int step = 0; step < steps; step++) {
                double g = gradient(parameter, step)[i];
                weight -= RATE
                        * (Math.signum(config.beta1() * mean + (1 - (double) config.beta1()) * g) + decay * weight);
                mean = config.beta2() * mean + (1 - (double) config.beta2()) * g;
            }
            result[i] = (float) weight;
        }
        return result;
    }

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void agreesWithDoublePrecision(DType dtype) {
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.normal(1), 17, 9);
        plan.declare("b", Initializer.normal(1), 33);
        Lion.Config config = Lion.Config.standard().withWeightDecay(0.1f);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, dtype, 3);
                Lion lion = new Lion(parameters, config)) {
            Map<String, float[]> first = new HashMap<>();
            parameters.all().forEach(one -> first.put(one.name(), open.read(one.weight())));
            // @start region="optimizer"
            for (int step = 0; step < 10; step++) {
                gradients(parameters, step); // forward and backward
                lion.step(RATE);
            }
            // @end
            assertEquals(10, lion.step());
            for (Parameter one : parameters.all()) {
                float[] expected = stepped(one, first.get(one.name()), config, 10);
                Tensor master = lion.state().tensors().getOrDefault(one.name() + ".master", one.weight());
                assertArrayEquals(expected, open.read(master), 2e-6f, one.name());
            }
        }
    }

    private static void gradients(Parameters parameters, int step) {
        parameters.completeGradients();
        parameters.all().forEach(parameter -> open.set(parameter.gradient(), gradient(parameter, step)));
    }
}

package dev.chagres.optim;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** Steps of {@code ScheduleFreeAdamW} against double precision, and its averages. */
@Tag("L0")
@Tag("L1")
class ScheduleFreeAdamWTest {
    private static final ScheduleFreeAdamW.Config CONFIG =
            ScheduleFreeAdamW.Config.standard().withWeightDecay(0.1f).withPowers(1, 2);
    private static final float RATE = 1e-2f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Parameters parameters(DType dtype) {
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.normal(1), 17, 9);
        plan.declare("b", Initializer.normal(1), 33);
        return Parameters.allocate(open.device(), plan, dtype, 3);
    }

    private static double[] gradient(Parameter parameter, int step) {
        double[] values = new double[(int) parameter.shape().count()];
        for (int i = 0; i < values.length; i++) {
            values[i] = (float) Math.sin(step + 0.37 * i);
        }
        return values;
    }

    private static void gradients(Parameters parameters, int step) {
        parameters.completeGradients();
        parameters.all().forEach(parameter -> open.set(parameter.gradient(), gradient(parameter, step)));
    }

    /** Returns x, then y, after steps in double precision. */
    private static float[][] stepped(Parameter parameter, float[] first, int steps) {
        double decay = parameter.shape().rank() > 1 ? CONFIG.weightDecay() : 0;
        double b1 = CONFIG.beta1();
        double b2 = CONFIG.beta2();
        double[] x = new double[first.length];
        double[] z = new double[first.length];
        double[] v = new double[first.length];
        for (int i = 0; i < first.length; i++) {
            x[i] = first[i];
            z[i] = first[i];
        }
        double sum = 0;
        for (int step = 1; step <= steps; step++) {
            double weight = step * (double) RATE * RATE;
            sum += weight;
            double[] gradient = gradient(parameter, step - 1);
            for (int i = 0; i < first.length; i++) {
                double g = gradient[i];
                v[i] = b2 * v[i] + (1 - b2) * g * g;
                double y = (1 - b1) * z[i] + b1 * x[i];
                double root = Math.sqrt(v[i] / (1 - Math.pow(b2, step)));
                z[i] -= RATE * (g / (root + CONFIG.epsilon()) + decay * y);
                x[i] += weight / sum * (z[i] - x[i]);
            }
        }
        float[][] result = new float[2][first.length];
        for (int i = 0; i < first.length; i++) {
            result[0][i] = (float) x[i];
            result[1][i] = (float) ((1 - b1) * z[i] + b1 * x[i]);
        }
        return result;
    }

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void agreesWithDoublePrecision(DType dtype) {
        try (Parameters parameters = parameters(dtype)) {
            List<float[]> first = parameters.all().stream()
                    .map(one -> open.read(one.weight()))
                    .toList();
            // @start region="optimizer"
            try (ScheduleFreeAdamW optimizer = new ScheduleFreeAdamW(parameters, CONFIG)) {
                for (int step = 0; step < 10; step++) {
                    gradients(parameters, step); // forward and backward
                    optimizer.step(RATE);
                }
                optimizer.beginEvaluation(); // the weights are averages now: evaluate them, save them
                optimizer.endEvaluation();
                // @end
                assertEquals(10, optimizer.step());
                float rounding = dtype == DType.FLOAT32 ? 2e-6f : 0.02f;
                for (int i = 0; i < first.size(); i++) {
                    Parameter one = parameters.all().get(i);
                    float[][] expected = stepped(one, first.get(i), 10);
                    assertArrayEquals(expected[1], open.read(one.weight()), rounding, one.name());
                    float[] averages = open.read(optimizer.state().tensors().get(one.name() + ".x"));
                    assertArrayEquals(expected[0], averages, 2e-6f, one.name());
                    optimizer.beginEvaluation();
                    assertArrayEquals(expected[0], open.read(one.weight()), rounding, one.name());
                    optimizer.endEvaluation();
                }
            }
        }
    }

    /** An evaluation between steps leaves no trace. */
    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16"})
    void goesOnWithTheSameBitsAfterAnEvaluation(DType dtype) {
        try (Parameters parameters = parameters(dtype);
                Parameters others = parameters(dtype);
                Optimizer evaluated = CONFIG.make(parameters, List.of());
                Optimizer other = CONFIG.make(others, List.of())) {
            for (int step = 0; step < 6; step++) {
                gradients(parameters, step);
                gradients(others, step);
                evaluated.step(RATE);
                other.step(RATE);
                evaluated.beginEvaluation();
                evaluated.beginEvaluation();
                evaluated.endEvaluation();
                evaluated.endEvaluation();
            }
            for (Parameter one : parameters.all()) {
                assertArrayEquals(open.read(others.get(one.name()).weight()), open.read(one.weight()), one.name());
            }
        }
    }

    /** Weights that were written from outside are the averages, too. */
    @Test
    void beginsAgainAtChangedWeights() {
        try (Parameters parameters = parameters(DType.FLOAT32);
                Optimizer optimizer = CONFIG.make(parameters, List.of())) {
            gradients(parameters, 0);
            optimizer.step(RATE);
            Parameter b = parameters.get("b");
            double[] values = gradient(b, 5);
            open.set(b.weight(), values);
            optimizer.beginEvaluation();
            float[] averages = open.read(b.weight());
            optimizer.endEvaluation();
            for (int i = 0; i < averages.length; i++) {
                assertEquals((float) values[i], averages[i]);
                assertEquals((float) values[i], open.read(b.weight())[i], 1e-6f);
            }
        }
    }

    @Test
    void neitherStepsNorSavesWhileEvaluated() {
        String text = "ScheduleFreeAdamW: expected the weights of training, got those of an evaluation; call"
                + " ScheduleFreeAdamW.endEvaluation() first";
        try (Parameters parameters = parameters(DType.FLOAT32);
                Optimizer optimizer = CONFIG.make(parameters, List.of())) {
            gradients(parameters, 0);
            optimizer.beginEvaluation();
            assertThrown(IllegalStateException.class, text, () -> optimizer.step(RATE));
            assertThrown(IllegalStateException.class, text, optimizer::state);
            optimizer.endEvaluation();
            optimizer.step(RATE);
            assertEquals(1, optimizer.step());
            optimizer.close();
            assertThrown(
                    IllegalStateException.class,
                    "the ScheduleFreeAdamW of device 0 is closed; make another with new ScheduleFreeAdamW(parameters, config)",
                    optimizer::beginEvaluation);
        }
    }
}

package dev.chagres.optim;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.EnumSource;

/** The moving average of weights that an optimizer keeps beside them. */
@Tag("L0")
@Tag("L1")
class WeightAverageTest {
    private static final float RATE = 0.05f;
    private static final float DECAY = 0.9f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Parameters parameters(DType dtype) {
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.normal(1), 17, 9);
        plan.declareAs(DType.FLOAT32, "b", Initializer.normal(1), 33);
        return Parameters.allocate(open.device(), plan, dtype, 3);
    }

    private static void gradients(Parameters parameters, int step) {
        parameters.completeGradients();
        for (Parameter one : parameters.all()) {
            double[] values = new double[(int) one.shape().count()];
            Arrays.setAll(values, i -> (float) Math.sin(step + 0.37 * i));
            open.set(one.gradient(), values);
        }
    }

    @ParameterizedTest
    @EnumSource(
            value = DType.class,
            names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void agreesWithDoublePrecisionAndLeavesNoTraceInTheWeights(DType dtype) {
        try (Parameters parameters = parameters(dtype);
                Parameters others = parameters(dtype);
                Optimizer other = AdamW.Config.standard().make(others, List.of())) {
            double[][] expected = new double[2][];
            for (int i = 0; i < 2; i++) {
                expected[i] = doubles(open.read(parameters.all().get(i).weight()));
            }
            // @start region="average"
            AveragedConfig config = AdamW.Config.standard().withAverage(DECAY);
            try (Optimizer optimizer = config.make(parameters, List.of())) {
                for (int step = 0; step < 10; step++) {
                    gradients(parameters, step); // forward and backward
                    optimizer.step(RATE);
                    // @end
                    gradients(others, step);
                    other.step(RATE);
                    for (int i = 0; i < 2; i++) {
                        Parameter one = parameters.all().get(i);
                        Tensor master = optimizer.state().tensors().get(one.name() + ".master");
                        float[] weight = open.read(master == null ? one.weight() : master);
                        for (int j = 0; j < weight.length; j++) {
                            expected[i][j] += (1 - DECAY) * (weight[j] - expected[i][j]);
                        }
                    }
                    optimizer.beginEvaluation();
                    optimizer.beginEvaluation();
                    optimizer.endEvaluation();
                    optimizer.endEvaluation();
                    // @start region="average"
                }
                optimizer.beginEvaluation(); // the weights are the average now: evaluate them, save them
                // @end
                for (int i = 0; i < 2; i++) {
                    Parameter one = parameters.all().get(i);
                    float rounding = one.weight().dtype() == DType.FLOAT32 ? 2e-6f : 0.02f;
                    assertArrayEquals(floats(expected[i]), open.read(one.weight()), rounding, one.name());
                }
                // @start region="average"
                optimizer.endEvaluation();
                // @end
                for (int i = 0; i < 2; i++) {
                    Parameter one = parameters.all().get(i);
                    assertArrayEquals(
                            floats(expected[i]),
                            open.read(optimizer.state().tensors().get(one.name() + ".ema")),
                            2e-6f,
                            one.name());
                    assertArrayEquals(open.read(others.get(one.name()).weight()), open.read(one.weight()), one.name());
                }
                // @start region="average"
            }
            // @end
        }
    }

    private static double[] doubles(float... values) {
        double[] result = new double[values.length];
        Arrays.setAll(result, i -> values[i]);
        return result;
    }

    private static float[] floats(double... values) {
        float[] result = new float[values.length];
        for (int i = 0; i < values.length; i++) {
            result[i] = (float) values[i];
        }
        return result;
    }

    @Test
    void beginsAgainAtChangedWeights() {
        try (Parameters parameters = parameters(DType.FLOAT32);
                Optimizer optimizer = SGD.Config.standard().withAverage(DECAY).make(parameters, List.of())) {
            gradients(parameters, 0);
            optimizer.step(RATE);
            Parameter b = parameters.get("b");
            double[] values = new double[33];
            Arrays.setAll(values, i -> i);
            open.set(b.weight(), values);
            optimizer.beginEvaluation();
            assertArrayEquals(floats(values), open.read(b.weight()));
            optimizer.endEvaluation();
            assertArrayEquals(floats(values), open.read(b.weight()));
        }
    }

    /** Masters that come to the device by chunks are averaged there. */
    @ParameterizedTest
    @EnumSource(AdamW.Masters.class)
    void mastersInTheHostsMemoryHaveTheSameAverage(AdamW.Masters masters) {
        AdamW.Config adam = AdamW.Config.standard().withMasters(masters);
        try (Parameters own = parameters(DType.BFLOAT16);
                Parameters others = parameters(DType.BFLOAT16);
                Optimizer here = adam.withAverage(DECAY).make(own, List.of());
                Optimizer there =
                        new OffloadedConfig(adam, 1024).withAverage(DECAY).make(others, List.of())) {
            for (int step = 0; step < 3; step++) {
                gradients(own, step);
                here.step(RATE);
                gradients(others, step);
                there.step(RATE);
            }
            for (String name : List.of("a.ema", "b.ema")) {
                float[] expected = open.read(here.state().tensors().get(name));
                assertArrayEquals(expected, open.read(there.state().tensors().get(name)), name);
            }
        }
    }

    @Test
    void refusesWhatCannotBe() {
        assertThrown(
                IllegalArgumentException.class,
                "decay: expected a number above 0 and below 1, got 1.0",
                () -> AdamW.Config.standard().withAverage(1));
        OptimizerConfig averaged = ScheduleFreeAdamW.Config.standard();
        assertThrown(
                IllegalArgumentException.class,
                "updates: expected an optimizer that keeps no average of its own, got " + averaged,
                () -> averaged.withAverage(DECAY));
        try (Parameters parameters = parameters(DType.FLOAT32);
                Optimizer optimizer = Lion.Config.standard().withAverage(DECAY).make(parameters, List.of())) {
            assertEquals(true, optimizer.toString().endsWith("average of weights with decay 0.9"), optimizer::toString);
            gradients(parameters, 0);
            optimizer.beginEvaluation();
            assertThrown(
                    IllegalStateException.class,
                    "Lion: expected the weights of training, got those of an evaluation; call Lion.endEvaluation() first",
                    () -> optimizer.step(RATE));
            // The optimizer may be closed while the weights are the average.
        }
    }
}

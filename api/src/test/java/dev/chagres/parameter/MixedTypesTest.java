package dev.chagres.parameter;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.witness.AdamWWitness;
import dev.chagres.witness.Rounding;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** Parameters of several types, some frozen, in groups: AdamW against double precision, parameter by parameter. */
@Tag("L0")
@Tag("L1")
class MixedTypesTest {
    private static final float DECAY = 0.1f;
    private static final AdamW.Config CONFIG = new AdamW.Config(0.9f, 0.98f, 1e-8f, DECAY);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static ModelPlan plan(int ranks) {
        ModelPlan plan = new ModelPlan();
        plan.padGroups(ranks);
        Initializer normal = Initializer.normal(1);
        for (int i = 0; i < 2; i++) {
            ModelPlan group = plan.group("layers." + i);
            group.declareAs(DType.FLOAT32, "norm", Initializer.ones(), 33);
            group.declare("matrix", normal, 17, 9);
            group.declare("bias", Initializer.zeros(), 17);
            group.declareAs(DType.FLOAT16, "half", normal, 5, 5);
            group.declareAs(DType.FLOAT32, "scale", normal, 3, 7);
            group.declare("frozen", normal, 4, 40).freeze();
        }
        plan.declareAs(DType.BFLOAT16, "loose", normal, 1);
        return plan;
    }

    private static double[] doubles(Tensor tensor) {
        float[] values = open.read(tensor);
        double[] doubles = new double[values.length];
        Arrays.setAll(doubles, i -> values[i]);
        return doubles;
    }

    @ParameterizedTest
    @CsvSource({"BFLOAT16, 1", "BFLOAT16, 3", "FLOAT32, 2", "FLOAT16, 1"})
    void everyParameterFollowsTheFormula(DType dtype, int ranks) {
        try (Parameters parameters = Parameters.allocate(open.device(), plan(ranks), dtype, 3);
                AdamW adam = new AdamW(parameters, CONFIG)) {
            GradientNorm norm = new GradientNorm(parameters, 1000);
            Map<Parameter, AdamWWitness> witnesses = new LinkedHashMap<>();
            Map<Parameter, float[]> frozen = new LinkedHashMap<>();
            for (Parameter parameter : parameters.all()) {
                if (parameter.isFrozen()) {
                    frozen.put(parameter, open.read(parameter.weight()));
                    continue;
                }
                double[] weights = doubles(parameter.weight());
                double[] decay = new double[weights.length];
                Arrays.fill(decay, parameter.decays() ? DECAY : 0);
                witnesses.put(
                        parameter, new AdamWWitness(CONFIG.beta1(), CONFIG.beta2(), CONFIG.epsilon(), decay, weights));
            }
            for (int step = 1; step <= 10; step++) {
                float rate = 1e-2f;
                parameters.completeGradients();
                double squares = 0;
                Map<Parameter, double[]> gradients = new LinkedHashMap<>();
                for (Parameter parameter : witnesses.keySet()) {
                    double[] gradient =
                            open.normal(DType.FLOAT32, (int) parameter.shape().count(), 1);
                    open.set(parameter.gradient(), gradient);
                    gradients.put(parameter, gradient);
                    squares += Arrays.stream(gradient).map(g -> g * g).sum();
                }
                norm.compute();
                assertEquals(Math.sqrt(squares), open.read(norm.norm())[0], 1e-5 * Math.sqrt(squares));
                adam.step(rate, norm);
                witnesses.forEach((parameter, witness) ->
                        check(adam, parameter, witness.step(rate, gradients.get(parameter), 1)));
            }
            frozen.forEach((parameter, weights) -> {
                assertArrayEquals(weights, open.read(parameter.weight()), parameter.name());
                assertFalse(adam.state().tensors().containsKey(parameter.name() + ".exp_avg"));
            });
            assertGapsAreZero(parameters);
        }
    }

    private static void check(AdamW adam, Parameter parameter, double[] expected) {
        DType dtype = parameter.weight().dtype();
        Tensor master = dtype == DType.FLOAT32
                ? parameter.weight()
                : Objects.requireNonNull(adam.state().tensors().get(parameter.name() + ".master"));
        Tolerance tolerance = new Tolerance("Adam of mixed types", 2e-6, 2e-5);
        open.assertClose(parameter.name(), expected, open.read(master), 0, tolerance);
        assertArrayEquals(
                Rounding.round(doubles(master), dtype),
                doubles(parameter.weight()),
                () -> parameter + ": the weight is the rounded master");
    }

    /** Elements between the parameters of a vector are 0 and stay so. */
    private static void assertGapsAreZero(Parameters parameters) {
        for (ParameterRange range : parameters.ranges()) {
            double inside = 0;
            for (Parameter parameter : parameters.all()) {
                if (parameter.weight().dtype() == range.weights().dtype()) {
                    inside += Arrays.stream(doubles(parameter.weight()))
                            .map(Math::abs)
                            .sum();
                }
            }
            double all = Arrays.stream(doubles(range.weights())).map(Math::abs).sum();
            assertEquals(inside, all, 1e-9 * inside);
        }
    }
}

package dev.chagres.conformance;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.optim.AdamW;
import dev.chagres.optim.GradientNorm;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.parameter.Parameters;
import dev.chagres.witness.AdamWWitness;
import dev.chagres.witness.Rounding;
import java.util.Arrays;
import java.util.Map;
import java.util.Objects;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;
import org.junit.jupiter.params.provider.ValueSource;

/** {@code AdamW} and {@code GradientNorm} against double precision. */
@Tag("L0")
@Tag("L1")
class OptimizerConformance {
    private static final float BETA_1 = 0.9f;
    private static final float BETA_2 = 0.98f;
    private static final float EPSILON = 1e-8f;
    private static final float DECAY = 0.1f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    /** Declares matrices, which decay, and vectors, which do not, of awkward sizes and in a mixed order. */
    private static ModelPlan plan() {
        ModelPlan plan = new ModelPlan();
        plan.declare("a", Initializer.normal(1), 3, 5);
        plan.declare("b", Initializer.ones(), 1);
        plan.declare("c", Initializer.normal(0.02f), 129, 65);
        plan.declare("d", Initializer.normal(1), 1000);
        plan.declare("e", Initializer.zeros(), 1, 1);
        plan.declare("f", Initializer.normal(1), 17);
        return plan;
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void manySteps(DType dtype) {
        try (Parameters parameters = Parameters.allocate(open.device(), plan(), dtype, 7);
                AdamW adam = new AdamW(parameters, new AdamW.Config(BETA_1, BETA_2, EPSILON, DECAY))) {
            int count = (int) parameters.weights().count();
            double[] decay = new double[count];
            for (Parameter parameter : parameters.all()) {
                int offset = offset(parameters, parameter);
                Arrays.fill(decay, offset, offset + (int) parameter.shape().count(), parameter.decays() ? DECAY : 0);
            }
            double[] weights = doubles(master(adam, parameters));
            assertArrayEquals(
                    doubles(open.read(parameters.weights())), weights, "the master copy begins as the weights");
            AdamWWitness witness = new AdamWWitness(BETA_1, BETA_2, EPSILON, decay, weights);
            Tensor scale = open.scope().tensor(DType.FLOAT32, 1);
            for (int step = 1; step <= 40; step++) {
                double[] gradients = gradients(parameters);
                float rate = 1e-3f * step;
                open.set(scale, step % 3 == 0 ? 0.25 : 1);
                adam.step(rate, scale);
                assertEquals(step, adam.step());
                double[] expected = witness.step(rate, gradients, step % 3 == 0 ? 0.25 : 1);
                Tolerance tolerance = new Tolerance("Adam, 40 steps in FP32", 2e-6, 2e-5);
                open.assertClose("master after step " + step, expected, master(adam, parameters), 0, tolerance);
            }
            double[] rounded = Rounding.round(doubles(master(adam, parameters)), dtype);
            assertArrayEquals(rounded, doubles(open.read(parameters.weights())), "weights are the rounded master copy");
            assertEquals(dtype != DType.FLOAT32, adam.state().tensors().containsKey("a.master"));
            assertEquals(40, parameters.step());
            assertTrue(adam.byteSize() >= (dtype == DType.FLOAT32 ? 8L : 12L) * count);
        }
    }

    /** Returns the first element of a parameter in the vector of all weights, and in that of all gradients. */
    private static int offset(Parameters parameters, Parameter parameter) {
        Tensor all = parameters.weights();
        long bytes = parameter.weight().pointer().address() - all.pointer().address();
        long elements = bytes / all.dtype().byteSize();
        assertEquals(
                elements * Float.BYTES,
                parameter.gradient().pointer().address()
                        - parameters.gradients().pointer().address());
        return Math.toIntExact(elements);
    }

    /** Returns the FP32 weights in the order of {@link Parameters#weights}. */
    private static float[] master(AdamW adam, Parameters parameters) {
        if (parameters.dtype() == DType.FLOAT32) {
            return open.read(parameters.weights());
        }
        float[] all = new float[(int) parameters.weights().count()];
        Map<String, Tensor> state = adam.state().tensors();
        for (Parameter parameter : parameters.all()) {
            Tensor own = Objects.requireNonNull(state.get(parameter.name() + ".master"));
            assertEquals(parameter.shape(), own.shape());
            System.arraycopy(open.read(own), 0, all, offset(parameters, parameter), (int) own.count());
        }
        return all;
    }

    /**
     * Writes gradients as a backward pass does, of very different sizes, and returns all; elements between parameters have
     * none.
     */
    private static double[] gradients(Parameters parameters) {
        parameters.completeGradients();
        for (Parameter parameter : parameters.all()) {
            open.set(
                    parameter.gradient(),
                    open.normal(
                            DType.FLOAT32,
                            (int) parameter.shape().count(),
                            Math.pow(10, open.random().nextInt(-3, 2))));
        }
        return doubles(open.read(parameters.gradients()));
    }

    private static double[] doubles(float[] values) {
        double[] doubles = new double[values.length];
        for (int i = 0; i < values.length; i++) {
            doubles[i] = values[i];
        }
        return doubles;
    }

    @Test
    void matricesDecayAndVectorsDoNot() {
        try (Parameters parameters = Parameters.allocate(open.device(), plan(), DType.FLOAT32, 7);
                AdamW adam = new AdamW(parameters, new AdamW.Config(BETA_1, BETA_2, EPSILON, 0.5f))) {
            float[][] before = weights(parameters);
            Tensor scale = open.scope().tensor(DType.FLOAT32, 1);
            open.set(scale, 1);
            adam.step(0.5f, scale);
            float[][] after = weights(parameters);
            for (int p = 0; p < before.length; p++) {
                float factor = parameters.all().get(p).decays() ? 0.75f : 1;
                for (int i = 0; i < before[p].length; i++) {
                    assertEquals(before[p][i] * factor, after[p][i], 1e-7f * Math.abs(before[p][i]));
                }
            }
        }
    }

    private static float[][] weights(Parameters parameters) {
        return parameters.all().stream()
                .map(parameter -> open.read(parameter.weight()))
                .toArray(float[][]::new);
    }

    @Test
    void elementsBetweenParametersStayZero() {
        try (Parameters parameters = Parameters.allocate(open.device(), plan(), DType.BFLOAT16, 7);
                AdamW adam = new AdamW(parameters, new AdamW.Config(BETA_1, BETA_2, EPSILON, DECAY))) {
            Tensor scale = open.scope().tensor(DType.FLOAT32, 1);
            open.set(scale, 1);
            gradients(parameters);
            adam.step(0.1f, scale);
            double weights = 0;
            for (float[] own : weights(parameters)) {
                weights += sumOfSquares(own);
            }
            assertEquals(weights, sumOfSquares(open.read(parameters.weights())), 1e-9 * weights);
        }
    }

    private static double sumOfSquares(float[] values) {
        double sum = 0;
        for (float value : values) {
            sum += (double) value * value;
        }
        return sum;
    }

    @ParameterizedTest
    @CsvSource({"1, 1e9", "1000, 1", "65535, 1", "65536, 1", "65537, 0.5", "300001, 1e-3", "7, 1e-30"})
    void theNormIsThatOfAllGradients(int count, float maxNorm) {
        ModelPlan plan = new ModelPlan();
        plan.declare("matrix", Initializer.zeros(), 1, count);
        plan.declare("vector", Initializer.zeros(), 5);
        try (Parameters parameters = Parameters.allocate(open.device(), plan, DType.BFLOAT16, 1)) {
            GradientNorm norm = new GradientNorm(parameters, maxNorm);
            for (double deviation : new double[] {1, 1e-6, 1e6}) {
                double[] gradients =
                        open.normal(DType.FLOAT32, (int) parameters.gradients().count(), deviation);
                parameters.completeGradients();
                open.set(parameters.gradients(), gradients);
                norm.compute();
                double expected =
                        Math.sqrt(Arrays.stream(gradients).map(g -> g * g).sum());
                assertEquals(expected, open.read(norm.norm())[0], 2e-6 * expected);
                double scale = Math.min(1, maxNorm / (expected + 1e-6));
                assertEquals(scale, open.read(norm.scale())[0], 3e-6 * scale);
            }
            parameters.gradients().zero(open.stream());
            norm.compute();
            assertEquals(0, open.read(norm.norm())[0]);
        }
    }

    @Test
    void infinityAsMaximumNeverClips() {
        try (Parameters parameters = Parameters.allocate(open.device(), plan(), DType.FLOAT32, 1)) {
            GradientNorm norm = new GradientNorm(parameters, Float.POSITIVE_INFINITY);
            gradients(parameters);
            norm.compute();
            assertEquals(1, open.read(norm.scale())[0]);
        }
    }

    @Test
    void aClippedStepIsOneOfGradientsOfThatNorm() {
        try (Parameters clipped = Parameters.allocate(open.device(), plan(), DType.FLOAT32, 1);
                Parameters plain = Parameters.allocate(open.device(), plan(), DType.FLOAT32, 1);
                AdamW first = new AdamW(clipped, new AdamW.Config(BETA_1, BETA_2, 1e-3f, DECAY));
                AdamW second = new AdamW(plain, new AdamW.Config(BETA_1, BETA_2, 1e-3f, DECAY))) {
            // Less than the norm of any gradients that are drawn.
            GradientNorm norm = new GradientNorm(clipped, 0.01f);
            double[] gradients = gradients(clipped);
            norm.compute();
            double factor =
                    0.01 / Math.sqrt(Arrays.stream(gradients).map(g -> g * g).sum());
            plain.completeGradients();
            open.set(
                    plain.gradients(),
                    Arrays.stream(gradients).map(g -> g * factor).toArray());
            Tensor one = open.scope().tensor(DType.FLOAT32, 1);
            open.set(one, 1);
            first.step(0.1f, norm);
            second.step(0.1f, one);
            open.assertClose(
                    "weights",
                    doubles(open.read(plain.weights())),
                    clipped.weights(),
                    new Tolerance("Adam, clipped", 2e-6, 2e-5));
        }
    }

    /** A gradient that is no number gives the factor 0, and the step changes neither weights nor state. */
    @ParameterizedTest
    @ValueSource(floats = {Float.NaN, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY})
    void oneBadBatchDoesNotSpoilTheWeights(float bad) {
        try (Parameters parameters = Parameters.allocate(open.device(), plan(), DType.BFLOAT16, 7);
                AdamW adam = new AdamW(parameters, new AdamW.Config(BETA_1, BETA_2, EPSILON, DECAY))) {
            GradientNorm norm = new GradientNorm(parameters, 1);
            double[] gradients = gradients(parameters);
            gradients[11] = bad;
            open.set(parameters.gradients(), gradients);
            norm.compute();
            assertEquals(0, open.read(norm.scale())[0]);
            float[] before = open.read(parameters.weights());
            adam.step(0.1f, norm);
            assertArrayEquals(before, open.read(parameters.weights()));
            assertEquals(1, adam.step());
            gradients(parameters);
            norm.compute();
            adam.step(0.1f, norm);
            boolean moved = false;
            float[] after = master(adam, parameters);
            for (int i = 0; i < after.length; i++) {
                assertTrue(Float.isFinite(after[i]), "weight " + after[i]);
                moved |= after[i] != before[i];
            }
            assertTrue(moved, "the next batch counts again");
        }
    }

    @Test
    void aSteadyStepMakesNoGarbage() {
        try (Parameters parameters = Parameters.allocate(open.device(), plan(), DType.BFLOAT16, 7);
                AdamW adam = new AdamW(parameters, new AdamW.Config(BETA_1, BETA_2, EPSILON, DECAY))) {
            GradientNorm norm = new GradientNorm(parameters, 1);
            gradients(parameters);
            Allocation.assertNone(
                    "norm and Adam",
                    () -> {
                        norm.compute();
                        adam.step(1e-3f, norm);
                    },
                    100);
        }
    }

    @Test
    void refusesWhatDoesNotFit() {
        assertThrown(
                IllegalArgumentException.class,
                "beta1, beta2: expected numbers within [0, 1), got 1.0 and 0.9",
                () -> new AdamW.Config(1, 0.9f, 1, 0));
        assertThrown(
                IllegalArgumentException.class,
                "beta1, beta2: expected numbers within [0, 1), got 0.9 and NaN",
                () -> new AdamW.Config(0.9f, Float.NaN, 1, 0));
        assertThrown(
                IllegalArgumentException.class,
                "epsilon: expected a positive number, got 0.0",
                () -> new AdamW.Config(0.9f, 0.9f, 0, 0));
        assertThrown(
                IllegalArgumentException.class,
                "weightDecay: expected a number of at least 0, got -0.1",
                () -> new AdamW.Config(0.9f, 0.9f, 1, -0.1f));
        Parameters parameters = Parameters.allocate(open.device(), plan(), DType.FLOAT32, 7);
        AdamW adam = new AdamW(parameters, new AdamW.Config(BETA_1, BETA_2, EPSILON, DECAY));
        GradientNorm norm = new GradientNorm(parameters, 1);
        for (float maxNorm : new float[] {0, -1, Float.NaN}) {
            assertThrown(
                    IllegalArgumentException.class,
                    "maxNorm: expected a positive number, got " + maxNorm,
                    () -> new GradientNorm(parameters, maxNorm));
        }
        float[] before = open.read(parameters.weights());
        for (float rate : new float[] {-1e-3f, Float.NaN, Float.POSITIVE_INFINITY}) {
            assertThrown(
                    IllegalArgumentException.class,
                    "rate: expected a number of at least 0, got " + rate,
                    () -> adam.step(rate, norm.scale()));
        }
        assertThrown(
                IllegalArgumentException.class,
                "gradientScale: expected FLOAT32[1], got FLOAT32[2]",
                () -> adam.step(1, open.scope().tensor(DType.FLOAT32, 2)));
        assertThrown(
                IllegalArgumentException.class,
                "gradientScale: expected FLOAT32[1], got BFLOAT16[1]",
                () -> adam.step(1, open.scope().tensor(DType.BFLOAT16, 1)));
        try (Parameters others = Parameters.allocate(open.device(), plan(), DType.FLOAT32, 7)) {
            assertThrown(
                    IllegalArgumentException.class,
                    "norm: expected that of this optimizer's parameters, got another",
                    () -> adam.step(1, new GradientNorm(others, 1)));
        }
        assertEquals(0, adam.step());
        assertArrayEquals(before, open.read(parameters.weights()));
        parameters.close();
        parameters.close();
        String closed = "the parameters are closed; make others with Parameters.allocate";
        assertThrown(IllegalStateException.class, closed, () -> adam.step(1, norm.scale()));
        adam.close();
        adam.close();
        assertThrown(
                IllegalStateException.class,
                "the AdamW of device 0 is closed; make another with new AdamW(parameters, config)",
                () -> adam.step(1, norm.scale()));
    }

    @Test
    void aNormServesOneStepAndOnlyOnceComputed() {
        String message = "norm: compute() was not called since the last step; call it after the backward pass";
        try (Parameters parameters = Parameters.allocate(open.device(), plan(), DType.FLOAT32, 7);
                AdamW adam = new AdamW(parameters, AdamW.Config.standard())) {
            GradientNorm norm = new GradientNorm(parameters, 1);
            float[] before = open.read(parameters.weights());
            assertThrown(IllegalStateException.class, message, () -> adam.step(1, norm));
            assertEquals(0, adam.step());
            assertArrayEquals(before, open.read(parameters.weights()));
            norm.compute();
            adam.step(1, norm);
            assertThrown(IllegalStateException.class, message, () -> adam.step(1, norm));
            assertEquals(1, adam.step());
        }
    }

    @Test
    void weightsWrittenFromOutsideAreTaken() {
        try (Parameters parameters = Parameters.allocate(open.device(), plan(), DType.BFLOAT16, 7);
                AdamW adam = new AdamW(parameters, AdamW.Config.standard())) {
            float[] threes = new float[(int) parameters.weights().count()];
            Arrays.fill(threes, 3);
            parameters.weights().set(open.stream(), threes);
            parameters.changed();
            GradientNorm norm = new GradientNorm(parameters, 1);
            norm.compute();
            adam.step(0, norm);
            assertArrayEquals(threes, open.read(parameters.weights()));
            for (Parameter parameter : parameters.all()) {
                Tensor own = Objects.requireNonNull(adam.state().tensors().get(parameter.name() + ".master"));
                assertArrayEquals(Arrays.copyOf(threes, (int) own.count()), open.read(own), parameter.name());
            }
        }
    }
}

package dev.chagres.ops;

import static dev.chagres.conformance.Thrown.assertThrown;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import org.jspecify.annotations.Nullable;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;

/** {@code Adam} against double precision; what more steps do, {@code AdamWOptionsTest} says. */
@Tag("L0")
@Tag("L1")
class AdamConformance {
    private static final String SHARED = "'s; it is written to while that is read or written";

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    @ParameterizedTest
    @CsvSource({
        "1, L2, YES, 1",
        "7, DECOUPLED, YES, 1",
        "1000, DECOUPLED, NO, 5",
        "4096, L2, NO, 9",
        "33, DECOUPLED, YES, 70000"
    })
    void oneStep(int count, WeightDecay mode, BiasCorrection correction, int step) {
        double[] g = open.normal(DType.FLOAT32, count, 1);
        double[] w = open.normal(DType.FLOAT32, count, 1);
        double[] m = open.normal(DType.FLOAT32, count, 0.1);
        double[] v = new double[count];
        Tensor weight = vector(w);
        Tensor mean = vector(m);
        for (int i = 0; i < count; i++) {
            v[i] = (float) (0.5 + 0.4 * Math.sin(i));
        }
        Tensor square = vector(v);
        step(vector(g), weight, mean, square, null, step, mode, correction);
        double c1 = correction == BiasCorrection.NO ? 1 : 1 - Math.pow(0.9f, step);
        double c2 = correction == BiasCorrection.NO ? 1 : 1 - Math.pow(0.98f, step);
        for (int i = 0; i < count; i++) {
            double gradient = 0.5 * g[i] + (mode == WeightDecay.L2 ? 0.1f * w[i] : 0);
            m[i] = 0.9f * m[i] + (1 - (double) 0.9f) * gradient;
            v[i] = 0.98f * v[i] + (1 - (double) 0.98f) * gradient * gradient;
            double update = m[i] / c1 / (Math.sqrt(v[i] / c2) + 1e-8f);
            w[i] -= 0.01f * (update + (mode == WeightDecay.DECOUPLED ? 0.1f * w[i] : 0));
        }
        open.assertClose("mean", m, mean, Tolerances.rounded(DType.FLOAT32));
        open.assertClose("square", v, square, Tolerances.rounded(DType.FLOAT32));
        open.assertClose("weight", w, weight, Tolerances.rounded(DType.FLOAT32));
    }

    private static Tensor vector(double[] values) {
        return open.tensor(DType.FLOAT32, values, values.length);
    }

    private static void step(
            Tensor gradient,
            Tensor weight,
            Tensor mean,
            Tensor square,
            @Nullable Tensor master,
            int step,
            WeightDecay mode,
            BiasCorrection correction) {
        new Adam(0.9f, 0.98f, 1e-8f, mode, correction)
                .step(
                        new AdamRange(gradient, weight, mean, square, master, vector(new double[] {0.01f}), 0.1f),
                        open.ints(step),
                        vector(new double[] {0.5}),
                        open.ints(0),
                        open.stream());
    }

    private static Tensor of(DType dtype, long count) {
        return open.scope().tensor(dtype, count);
    }

    private static void refused(
            String text, Tensor gradient, Tensor weight, Tensor mean, Tensor square, @Nullable Tensor master) {
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> step(gradient, weight, mean, square, master, 1, WeightDecay.DECOUPLED, BiasCorrection.YES));
    }

    @Test
    void refusals() {
        Tensor g = of(DType.FLOAT32, 8);
        Tensor w = of(DType.FLOAT32, 8);
        Tensor m = of(DType.FLOAT32, 8);
        Tensor v = of(DType.FLOAT32, 8);
        Tensor half = of(DType.BFLOAT16, 8);
        refused(
                "gradient: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[8]",
                of(DType.INT32, 8),
                w,
                m,
                v,
                null);
        refused("weight: expected FLOAT32[8], got BFLOAT16[8]", g, half, m, v, null);
        refused("weight: expected FLOAT32[8], got FLOAT32[7]", g, of(DType.FLOAT32, 7), m, v, null);
        refused("mean: expected BFLOAT16[8], got FLOAT16[8]", g, w, of(DType.FLOAT16, 8), v, null);
        refused("square: expected FLOAT32[8], got BFLOAT16[8]", g, w, m, half, null);
        refused("mean: expected memory of its own, got some of weight" + SHARED, g, w, w, v, null);
        refused("weight: expected memory of its own, got some of gradient" + SHARED, g, g, m, v, null);
        refused("master: expected FLOAT32[8], got INT32[8]", g, half, m, v, of(DType.INT32, 8));
        refused("master: expected BYTE[16], got BYTE[8]", g, half, m, v, of(DType.BYTE, 8));
        refused(
                "weight: expected FLOAT16 or BFLOAT16 beside this master, got FLOAT32[8]",
                g,
                w,
                m,
                v,
                of(DType.FLOAT32, 8));
        refused(
                "weight: expected BFLOAT16 beside this master, got FLOAT16[8]",
                g,
                of(DType.FLOAT16, 8),
                m,
                v,
                of(DType.BYTE, 16));
        numbersRefused("beta1, beta2: expected numbers within [0, 1), got 1.0 and 0.9", 1, 0.9f, 0, 0);
        numbersRefused("epsilon: expected a number of at least 0, got NaN", 0.9f, 0.9f, Float.NaN, 0);
        numbersRefused("weightDecay: expected a number of at least 0, got -1.0", 0.9f, 0.9f, 0, -1);
    }

    private static void numbersRefused(String text, float beta1, float beta2, float epsilon, float decay) {
        Tensor x = of(DType.FLOAT32, 1);
        Tensor one = open.ints(1);
        assertThrown(
                IllegalArgumentException.class,
                text,
                () -> new Adam(beta1, beta2, epsilon, WeightDecay.L2, BiasCorrection.NO)
                        .step(
                                new AdamRange(
                                        x,
                                        of(DType.FLOAT32, 1),
                                        of(DType.FLOAT32, 1),
                                        of(DType.FLOAT32, 1),
                                        null,
                                        x,
                                        decay),
                                one,
                                x,
                                one,
                                open.stream()));
    }

    @Test
    void makesNoGarbage() {
        Tensor g = of(DType.FLOAT32, 8);
        Tensor w = of(DType.BFLOAT16, 8);
        Tensor m = of(DType.BFLOAT16, 8);
        Tensor v = of(DType.BFLOAT16, 8);
        Tensor remainder = of(DType.BYTE, 16);
        Tensor rate = vector(new double[] {0.01});
        Tensor one = open.ints(1);
        Tensor zero = open.ints(0);
        for (Tensor tensor : new Tensor[] {g, w, m, v, remainder}) {
            tensor.zero(open.stream());
        }
        Adam adam = new Adam(0.9f, 0.9f, 1e-8f, WeightDecay.L2, BiasCorrection.YES);
        AdamRange range = new AdamRange(g, w, m, v, remainder, rate, 0);
        Allocation.assertNone("Adam", () -> adam.step(range, one, rate, zero, open.stream()));
    }
}

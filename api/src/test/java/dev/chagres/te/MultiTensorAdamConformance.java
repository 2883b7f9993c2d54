package dev.chagres.te;

import static dev.chagres.conformance.Thrown.assertThrown;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import dev.chagres.witness.AdamWWitness;
import dev.chagres.witness.Rounding;
import java.util.Arrays;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;

/** {@code MultiTensorAdam} against double precision; {@code MultiTensorStepsConformance} has its step on eight bits. */
@Tag("L0")
@Tag("L1")
class MultiTensorAdamConformance {
    /** Some tens of roundings in FP32. */
    private static final Tolerance STEPS = new Tolerance("Adam, some steps in FP32", 2e-6, 2e-5);

    private static final float RATE = 1e-2f;

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private final MultiTensorData data = new MultiTensorData(open);

    private static AdamWWitness witness(double[] weights) {
        double[] decay = new double[weights.length];
        Arrays.fill(decay, MultiTensorData.DECAY);
        return new AdamWWitness(
                MultiTensorData.BETA_1, MultiTensorData.BETA_2, MultiTensorData.EPSILON, decay, weights.clone());
    }

    private static MultiTensorAdam of(WeightDecay mode, BiasCorrection correction) {
        return new MultiTensorAdam(
                MultiTensorData.BETA_1,
                MultiTensorData.BETA_2,
                MultiTensorData.EPSILON,
                mode,
                correction,
                MultiTensorData.DECAY);
    }

    private static void adam(TensorLists lists, int step, WeightDecay mode, BiasCorrection correction) {
        of(mode, correction).adam(lists, RATE, step, open.stream());
    }

    private static void adamParamRemainder(TensorLists lists, int step) {
        of(WeightDecay.DECOUPLED, BiasCorrection.YES).adamParamRemainder(lists, RATE, step, open.stream());
    }

    @Test
    void stepsOfWeights() {
        Tensor[] g = data.drawn(DType.BFLOAT16, 0.1);
        Tensor[] p = data.drawn(DType.FLOAT32, 1);
        double[] gradients = data.read(g);
        AdamWWitness witness = witness(data.read(p));
        try (TensorLists lists = TensorLists.of(g, p, data.zeros(DType.FLOAT32), data.zeros(DType.FLOAT32))) {
            for (int step = 1; step <= 3; step++) {
                adam(lists, step, WeightDecay.DECOUPLED, BiasCorrection.YES);
                double[] expected = witness.step(RATE, gradients, 1);
                open.assertClose("p", expected, MultiTensorData.floats(data.read(p)), 0, STEPS);
            }
        }
        assertArrayEquals(gradients, data.read(g), "gradients are read alone");
    }

    @Test
    void stepsOfMasters() {
        Tensor[] g = data.drawn(DType.FLOAT16, 0.1);
        Tensor[] p = data.zeros(DType.BFLOAT16);
        Tensor[] master = data.drawn(DType.FLOAT32, 1);
        AdamWWitness witness = witness(data.read(master));
        double[] expected = {};
        try (TensorLists lists = TensorLists.of(g, p, data.zeros(DType.FLOAT32), data.zeros(DType.FLOAT32), master)) {
            for (int step = 1; step <= 3; step++) {
                adam(lists, step, WeightDecay.DECOUPLED, BiasCorrection.YES);
                expected = witness.step(RATE, data.read(g), 1);
            }
        }
        open.assertClose("master", expected, MultiTensorData.floats(data.read(master)), 0, STEPS);
        assertArrayEquals(Rounding.round(data.read(master), DType.BFLOAT16), data.read(p), "p is the rounded master");
    }

    /** One step from zero moments of 16 bits, with L2 decay and no correction. */
    @Test
    void momentsOfSixteenBits() {
        Tensor[] g = data.drawn(DType.FLOAT32, 0.1);
        Tensor[] p = data.drawn(DType.FLOAT32, 1);
        Tensor[] m = data.zeros(DType.BFLOAT16);
        Tensor[] v = data.zeros(DType.BFLOAT16);
        double[] mean = data.read(g);
        double[] weights = data.read(p);
        double[] square = new double[mean.length];
        for (int i = 0; i < mean.length; i++) {
            double gradient = mean[i] + MultiTensorData.DECAY * weights[i];
            mean[i] = (1 - MultiTensorData.BETA_1) * gradient;
            square[i] = (1 - MultiTensorData.BETA_2) * gradient * gradient;
            weights[i] -= RATE * mean[i] / (Math.sqrt(square[i]) + MultiTensorData.EPSILON);
        }
        try (TensorLists lists = TensorLists.of(g, p, m, v)) {
            adam(lists, 1, WeightDecay.L2, BiasCorrection.NO);
        }
        open.assertClose("p", weights, MultiTensorData.floats(data.read(p)), 0, STEPS);
        open.assertClose("m", mean, MultiTensorData.floats(data.read(m)), 0, Tolerances.rounded(DType.BFLOAT16));
        open.assertClose("v", square, MultiTensorData.floats(data.read(v)), 0, Tolerances.rounded(DType.BFLOAT16));
    }

    /** p and remainder together are a master in FP32. */
    @Test
    void stepsOfWeightsWithRemainders() {
        Tensor[] g = data.drawn(DType.FLOAT32, 0.1);
        Tensor[] p = data.drawn(DType.BFLOAT16, 1);
        Tensor[] remainder = data.zeros(DType.INT16);
        AdamWWitness witness = witness(data.read(p));
        double[] expected = {};
        try (TensorLists lists =
                TensorLists.of(g, p, data.zeros(DType.FLOAT32), data.zeros(DType.FLOAT32), remainder)) {
            for (int step = 1; step <= 3; step++) {
                adamParamRemainder(lists, step);
                expected = witness.step(RATE, data.read(g), 1);
            }
        }
        float[] masters = new float[expected.length];
        double[] upper = data.read(p);
        int at = 0;
        for (Tensor lower : remainder) {
            for (short bits : lower.toShorts(open.stream())) {
                int high = Float.floatToRawIntBits((float) upper[at]) - (bits < 0 ? 0x10000 : 0);
                masters[at++] = Float.intBitsToFloat(high | Short.toUnsignedInt(bits));
            }
        }
        open.assertClose("masters", expected, masters, 0, STEPS);
        for (int i = 0; i < masters.length; i++) {
            assertEquals(masters[i], upper[i], Math.abs(masters[i]) * 0x1p-8, "p is the rounded master");
        }
    }

    /** No flag is looked at: what is not finite shows. */
    @Test
    void infiniteGradientsReachTheWeights() {
        Tensor[] p = {open.tensor(DType.FLOAT32, new double[] {1, 1}, 2)};
        Tensor[] g = {open.tensor(DType.FLOAT32, new double[] {Double.POSITIVE_INFINITY, 1}, 2)};
        try (TensorLists lists = TensorLists.of(g, p, zeros(DType.FLOAT32, 2), zeros(DType.FLOAT32, 2));
                TensorLists none = TensorLists.of(new Tensor[0], new Tensor[0], new Tensor[0], new Tensor[0])) {
            adam(none, 1, WeightDecay.DECOUPLED, BiasCorrection.YES);
            adam(lists, 1, WeightDecay.DECOUPLED, BiasCorrection.YES);
            float[] weights = open.read(p[0]);
            assertEquals(true, Float.isNaN(weights[0]));
            assertEquals(true, Float.isFinite(weights[1]));
            MultiTensorAdam adam = of(WeightDecay.DECOUPLED, BiasCorrection.YES);
            Allocation.assertNone("step", () -> adam.adam(lists, RATE, 2, open.stream()));
        }
    }

    private static Tensor[] zeros(DType dtype, long count) {
        Tensor tensor = open.scope().tensor(dtype, count);
        tensor.zero(open.stream());
        return new Tensor[] {tensor};
    }

    private static Tensor[] floats() {
        return zeros(DType.FLOAT32, 4);
    }

    @Test
    void refusedSteps() {
        try (TensorLists four = TensorLists.of(floats(), floats(), floats(), floats());
                TensorLists three = TensorLists.of(floats(), floats(), floats());
                TensorLists halves =
                        TensorLists.of(floats(), floats(), zeros(DType.FLOAT16, 4), zeros(DType.FLOAT16, 4));
                TensorLists mixed = TensorLists.of(floats(), floats(), floats(), zeros(DType.BFLOAT16, 4));
                TensorLists masters =
                        TensorLists.of(floats(), zeros(DType.INT32, 4), floats(), floats(), zeros(DType.BFLOAT16, 4))) {
            refused("lists: expected 4 lists, got 3", three, 1);
            refused("list 2, tensor 0: expected elements of FLOAT32 or BFLOAT16, got FLOAT16[4]", halves, 1);
            refused("list 3, tensor 0: expected elements of FLOAT32, got BFLOAT16[4]", mixed, 1);
            refused("list 1, tensor 0: expected elements of FLOAT32, FLOAT16 or BFLOAT16, got INT32[4]", masters, 1);
            refused("step: expected the number of a step, from 1 on, got 0", four, 0);
            assertThrown(
                    NullPointerException.class,
                    "biasCorrection: expected a value, got null",
                    () -> adam(four, 1, WeightDecay.L2, null));
        }
    }

    private static void refused(String text, TensorLists lists, int step) {
        assertThrown(IllegalArgumentException.class, text, () -> adam(lists, step, WeightDecay.L2, BiasCorrection.YES));
    }

    @Test
    void refusedRemainders() {
        try (TensorLists four = TensorLists.of(floats(), floats(), floats(), floats());
                TensorLists wide = TensorLists.of(floats(), floats(), floats(), floats(), zeros(DType.INT16, 4));
                TensorLists floats = TensorLists.of(floats(), zeros(DType.BFLOAT16, 4), floats(), floats(), floats())) {
            refusedRemainder("lists: expected 5 lists, got 4", four);
            refusedRemainder("list 1, tensor 0: expected elements of BFLOAT16, got FLOAT32[4]", wide);
            refusedRemainder("list 4, tensor 0: expected elements of INT16, got FLOAT32[4]", floats);
        }
    }

    private static void refusedRemainder(String text, TensorLists lists) {
        assertThrown(IllegalArgumentException.class, text, () -> adamParamRemainder(lists, 1));
    }
}

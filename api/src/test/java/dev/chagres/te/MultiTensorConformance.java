package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Shape;
import dev.chagres.Tensor;
import dev.chagres.conformance.Allocation;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
import dev.chagres.conformance.Tolerances;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.SgdStep;
import dev.chagres.te.MultiTensor.WeightDecay;
import dev.chagres.te.SgdConfig.DecayPlace;
import dev.chagres.te.SgdConfig.Momentum;
import dev.chagres.witness.AdamWWitness;
import dev.chagres.witness.Float8Witness;
import dev.chagres.witness.Rounding;
import java.util.Arrays;
import java.util.List;
import org.junit.jupiter.api.Tag;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.extension.RegisterExtension;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.CsvSource;
import org.junit.jupiter.params.provider.EnumSource;

/** {@code MultiTensor} against double precision, over tensors of very different sizes. */
@Tag("L0")
@Tag("L1")
class MultiTensorConformance {
    private static final int[] SIZES = {1, 3, 1000, 65_536, 65_537, 17};
    private static final float BETA_1 = 0.9f;
    private static final float BETA_2 = 0.98f;
    private static final float EPSILON = 1e-8f;
    private static final float DECAY = 0.1f;

    /** Some tens of roundings in FP32. */
    private static final Tolerance STEPS = new Tolerance("Adam, 10 steps in FP32", 2e-6, 2e-5);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private static Tensor scalar(double value) {
        return open.tensor(DType.FLOAT32, new double[] {value}, 1);
    }

    /** Returns one tensor a size, of drawn numbers. */
    private static Tensor[] drawn(DType dtype, double deviation) {
        return Arrays.stream(SIZES)
                .mapToObj(size -> open.tensor(dtype, open.normal(dtype, size, deviation), size))
                .toArray(Tensor[]::new);
    }

    private static Tensor[] zeros(DType dtype) {
        Tensor[] zeros = Arrays.stream(SIZES)
                .mapToObj(size -> open.scope().tensor(dtype, size))
                .toArray(Tensor[]::new);
        Arrays.stream(zeros).forEach(zero -> zero.zero(open.stream()));
        return zeros;
    }

    private static double[] read(Tensor[] tensors) {
        return Arrays.stream(tensors)
                .flatMapToDouble(tensor -> {
                    float[] values = open.read(tensor);
                    double[] doubles = new double[values.length];
                    Arrays.setAll(doubles, i -> values[i]);
                    return Arrays.stream(doubles);
                })
                .toArray();
    }

    private static float[] floats(double[] values) {
        float[] floats = new float[values.length];
        for (int i = 0; i < values.length; i++) {
            floats[i] = (float) values[i];
        }
        return floats;
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT32", "BFLOAT16", "FLOAT16"})
    void norm(DType dtype) {
        Tensor[] tensors = drawn(dtype, 3);
        Tensor flag = open.ints(0);
        Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        Tensor norm = open.unwritten(DType.FLOAT32, 1);
        try (TensorLists lists = TensorLists.of(tensors)) {
            // Twice: the kernels add to the partial sums.
            for (int round = 0; round < 2; round++) {
                MultiTensor.l2norm(flag, lists, partials, norm, open.stream());
                double expected =
                        Math.sqrt(Arrays.stream(read(tensors)).map(x -> x * x).sum());
                open.assertClose("norm", new double[] {expected}, norm, Tolerances.rounded(DType.FLOAT32));
                assertEquals(0, flag.toInts(open.stream())[0]);
            }
        }
    }

    @Test
    void normThatIsNotFiniteRaisesTheFlag() {
        for (float value : new float[] {Float.NaN, Float.POSITIVE_INFINITY, Float.NEGATIVE_INFINITY}) {
            Tensor[] tensors = drawn(DType.FLOAT32, 1);
            open.set(tensors[0], value);
            Tensor flag = open.ints(0);
            Tensor norm = open.unwritten(DType.FLOAT32, 1);
            try (TensorLists lists = TensorLists.of(tensors)) {
                Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
                MultiTensor.l2norm(flag, lists, partials, norm, open.stream());
            }
            assertEquals(1, flag.toInts(open.stream())[0], "flag of " + value);
            assertEquals(false, Float.isFinite(open.read(norm)[0]));
        }
    }

    @Test
    void stepsOfAdam() {
        Tensor[] g = zeros(DType.FLOAT32);
        Tensor[] p = drawn(DType.FLOAT32, 1);
        double[] weights = read(p);
        double[] decay = new double[weights.length];
        Arrays.fill(decay, DECAY);
        AdamWWitness witness = new AdamWWitness(BETA_1, BETA_2, EPSILON, decay, weights.clone());
        Tensor flag = open.ints(0);
        Tensor lr = scalar(0);
        Tensor step = open.ints(0);
        Tensor scale = scalar(0.5);
        try (TensorLists lists = TensorLists.of(g, p, zeros(DType.FLOAT32), zeros(DType.FLOAT32))) {
            for (int number = 1; number <= 10; number++) {
                double[] gradients = refill(g);
                open.set(lr, 1e-3f * number);
                step.set(open.stream(), number);
                adam(flag, lists, lr, step, WeightDecay.DECOUPLED, scale);
                double[] expected = witness.step(1e-3f * number, gradients, 0.5);
                open.assertClose("p after step " + number, expected, floats(read(p)), 0, STEPS);
                // The kernel leaves the gradients scaled.
                assertArrayEquals(Arrays.stream(gradients).map(x -> x * 0.5).toArray(), read(g), 1e-7);
            }
        }
    }

    private static double[] refill(Tensor[] gradients) {
        for (Tensor gradient : gradients) {
            open.set(gradient, open.normal(DType.FLOAT32, (int) gradient.count(), 0.1));
        }
        return read(gradients);
    }

    private static void adam(Tensor flag, TensorLists lists, Tensor lr, Tensor step, WeightDecay mode, Tensor scale) {
        MultiTensor.adamCapturable(
                flag, lists, lr, BETA_1, BETA_2, EPSILON, step, mode, BiasCorrection.YES, DECAY, scale, open.stream());
    }

    /** One step from zero moments: with L2 decay the gradient is g + w p, without correction the moments stay small. */
    @ParameterizedTest
    @EnumSource
    void decayAndCorrection(BiasCorrection correction) {
        Tensor[] g = drawn(DType.FLOAT32, 0.1);
        Tensor[] p = drawn(DType.FLOAT32, 1);
        double[] gradients = read(g);
        double[] expected = read(p);
        for (int i = 0; i < expected.length; i++) {
            double gradient = gradients[i] + DECAY * expected[i];
            double mean = (1 - BETA_1) * gradient;
            double square = (1 - BETA_2) * gradient * gradient;
            if (correction == BiasCorrection.YES) {
                mean /= 1 - BETA_1;
                square /= 1 - BETA_2;
            }
            expected[i] -= 1e-2f * mean / (Math.sqrt(square) + 1e-3f);
        }
        Tensor flag = open.ints(0);
        try (TensorLists lists = TensorLists.of(g, p, zeros(DType.FLOAT32), zeros(DType.FLOAT32))) {
            MultiTensor.adamCapturable(
                    flag,
                    lists,
                    scalar(1e-2f),
                    BETA_1,
                    BETA_2,
                    1e-3f,
                    open.ints(1),
                    WeightDecay.L2,
                    correction,
                    DECAY,
                    scalar(1),
                    open.stream());
        }
        open.assertClose("p", expected, floats(read(p)), 0, STEPS);
    }

    @Test
    void aRaisedFlagSkipsTheStep() {
        Tensor[] g = drawn(DType.FLOAT32, 1);
        Tensor[] p = drawn(DType.FLOAT32, 1);
        double[] before = read(p);
        try (TensorLists lists = TensorLists.of(g, p, zeros(DType.FLOAT32), zeros(DType.FLOAT32))) {
            adam(open.ints(1), lists, scalar(1), open.ints(1), WeightDecay.DECOUPLED, scalar(1));
        }
        assertArrayEquals(before, read(p));
    }

    /** Master weights: the same step as one over FP32 weights of which p is rounded. */
    @ParameterizedTest
    @EnumSource(names = {"BFLOAT16", "FLOAT16"})
    void masterWeights(DType dtype) {
        Tensor[] g = drawn(dtype, 0.1);
        Tensor[] p = zeros(dtype);
        Tensor[] master = drawn(DType.FLOAT32, 1);
        Tensor[] wide = zeros(DType.FLOAT32);
        Tensor[] weights = zeros(DType.FLOAT32);
        for (int i = 0; i < SIZES.length; i++) {
            weights[i].copyFrom(open.stream(), master[i]);
            open.set(wide[i], read(new Tensor[] {g[i]}));
        }
        Tensor flag = open.ints(0);
        try (TensorLists five = TensorLists.of(g, p, zeros(DType.FLOAT32), zeros(DType.FLOAT32), master);
                TensorLists four = TensorLists.of(wide, weights, zeros(DType.FLOAT32), zeros(DType.FLOAT32))) {
            for (int number = 1; number <= 3; number++) {
                Tensor lr = scalar(1e-2);
                Tensor step = open.ints(number);
                MultiTensor.adamCapturableMaster(
                        flag,
                        five,
                        lr,
                        BETA_1,
                        BETA_2,
                        EPSILON,
                        step,
                        WeightDecay.DECOUPLED,
                        BiasCorrection.YES,
                        DECAY,
                        scalar(1),
                        open.stream());
                adam(flag, four, lr, step, WeightDecay.DECOUPLED, scalar(1));
            }
        }
        assertArrayEquals(read(weights), read(master), 1e-6);
        assertArrayEquals(Rounding.round(read(master), dtype), read(p), "p is the rounded master");
    }

    @ParameterizedTest
    @EnumSource(names = {"FLOAT8_E4M3", "FLOAT8_E5M2"})
    void scalesOfMagnitudes(DType dtype) {
        double largest = Float8Witness.largest(dtype);
        for (QuantizationConfig.Scales scales : QuantizationConfig.Scales.values()) {
            Tensor[] amaxes = drawn(DType.FLOAT32, 5);
            open.set(amaxes[1], new double[] {0, Double.POSITIVE_INFINITY, 1e-30});
            Tensor[] written = zeros(DType.FLOAT32);
            Tensor[] inverses = zeros(DType.FLOAT32);
            double[] magnitudes = read(amaxes);
            QuantizationConfig config =
                    QuantizationConfig.standard().withScales(scales).withAmaxEpsilon(0.25f);
            try (TensorLists lists = TensorLists.of(amaxes, written, inverses)) {
                MultiTensor.computeScaleAndScaleInverse(lists, dtype, config, open.stream());
            }
            double[] scale = read(written);
            double[] inverse = read(inverses);
            for (int i = 0; i < magnitudes.length; i++) {
                double amax = Math.max(magnitudes[i], 0.25);
                double exact = Double.isInfinite(amax) ? 1 : largest / amax;
                if (scales == QuantizationConfig.Scales.POWER_OF_2) {
                    assertEquals(Math.scalb(1.0, Math.getExponent((float) exact)), scale[i]);
                } else {
                    assertEquals(exact, scale[i], exact * 2e-7);
                }
                assertEquals(1 / scale[i], inverse[i], 2e-7 / scale[i]);
            }
        }
    }

    /** Without a least magnitude nothing is divided by zero. */
    @Test
    void scalesOfNothing() {
        Tensor[] amax = {open.tensor(DType.FLOAT32, new double[] {0, 2e-38, Double.NaN}, 3)};
        Tensor[] scale = {open.unwritten(DType.FLOAT32, 3)};
        Tensor[] inverse = {open.unwritten(DType.FLOAT32, 3)};
        try (TensorLists lists = TensorLists.of(amax, scale, inverse);
                TensorLists none = TensorLists.of(new Tensor[0], new Tensor[0], new Tensor[0])) {
            QuantizationConfig config = QuantizationConfig.standard();
            MultiTensor.computeScaleAndScaleInverse(lists, DType.FLOAT8_E4M3, config, open.stream());
            MultiTensor.computeScaleAndScaleInverse(none, DType.FLOAT8_E4M3, config, open.stream());
            assertArrayEquals(new float[] {1, Float.MAX_VALUE, 1}, open.read(scale[0]));
            Allocation.assertNone(
                    "scales",
                    () -> MultiTensor.computeScaleAndScaleInverse(lists, DType.FLOAT8_E4M3, config, open.stream()));
        }
    }

    @Test
    void withoutTensors() {
        Tensor flag = open.ints(0);
        Tensor norm = open.unwritten(DType.FLOAT32, 1);
        Tensor buffer = open.scope().tensor(DType.FLOAT32, 10);
        Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        try (TensorLists one = TensorLists.ofRange(open.scope(), 10, 0, buffer);
                TensorLists four = TensorLists.of(new Tensor[0], new Tensor[0], new Tensor[0], new Tensor[0])) {
            assertEquals(0, one.tensorCount());
            MultiTensor.l2norm(flag, one, partials, norm, open.stream());
            adam(flag, four, scalar(1), open.ints(1), WeightDecay.DECOUPLED, scalar(1));
        }
        assertEquals(0, open.read(norm)[0]);
    }

    @Test
    void rangesOfBuffers() {
        double[] values = open.normal(DType.FLOAT32, 100, 1);
        Tensor buffer = open.tensor(DType.FLOAT32, values, 100);
        Tensor norm = open.unwritten(DType.FLOAT32, 1);
        Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        try (TensorLists lists = TensorLists.ofRange(open.scope(), 30, 50, buffer)) {
            assertEquals(List.of(1, 1), List.of(lists.listCount(), lists.tensorCount()));
            MultiTensor.l2norm(open.ints(0), lists, partials, norm, open.stream());
        }
        double expected =
                Math.sqrt(Arrays.stream(values, 30, 80).map(x -> x * x).sum());
        open.assertClose("norm", new double[] {expected}, norm, Tolerances.rounded(DType.FLOAT32));
    }

    @Test
    void makesNoGarbage() {
        Tensor flag = open.ints(0);
        Tensor norm = scalar(0);
        Tensor partials = open.unwritten(DType.FLOAT32, MultiTensor.NORM_PARTIALS);
        Tensor lr = scalar(1e-3);
        Tensor step = open.ints(1);
        Tensor scale = scalar(1);
        Tensor[] g = {of(DType.FLOAT32, 8), of(DType.FLOAT32, 3)};
        try (TensorLists one = TensorLists.of(g);
                TensorLists four = TensorLists.of(
                        g,
                        new Tensor[] {of(DType.FLOAT32, 8), of(DType.FLOAT32, 3)},
                        new Tensor[] {of(DType.FLOAT32, 8), of(DType.FLOAT32, 3)},
                        new Tensor[] {of(DType.FLOAT32, 8), of(DType.FLOAT32, 3)})) {
            Allocation.assertNone("norm and step", () -> {
                MultiTensor.l2norm(flag, one, partials, norm, open.stream());
                adam(flag, four, lr, step, WeightDecay.DECOUPLED, scale);
            });
        }
    }

    private static Tensor of(DType dtype, long... sizes) {
        Tensor tensor = open.scope().tensor(dtype, Shape.of(sizes));
        tensor.zero(open.stream());
        return tensor;
    }

    /** Adam on weights in eight bits is the step over the masters, of which the weights are the cast. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT8_E4M3", "FLOAT8_E5M2"})
    void weightsInEightBits(DType dtype) {
        Tensor[] g = drawn(DType.BFLOAT16, 0.1);
        Tensor[] p = Arrays.stream(SIZES)
                .mapToObj(size -> open.scope().tensor(dtype, size))
                .toArray(Tensor[]::new);
        Tensor[] master = drawn(DType.FLOAT32, 1);
        double[] weights = read(master);
        double[] decay = new double[weights.length];
        Arrays.fill(decay, DECAY);
        AdamWWitness witness = new AdamWWitness(BETA_1, BETA_2, EPSILON, decay, weights);
        double[] gradients = read(g);
        Tensor[] scale = cells(16);
        Tensor[] amax = cells(0);
        Tensor[] inverse = cells(0);
        open.set(amax[1], 1000f);
        Tensor[][] shaped = {g, p, zeros(DType.FLOAT32), zeros(DType.FLOAT32), master};
        double[] expected = {};
        try (TensorLists lists = TensorLists.ofScaled(shaped, scale, amax, inverse)) {
            for (int number = 1; number <= 3; number++) {
                MultiTensor.adamFp8(
                        lists,
                        1e-2f,
                        BETA_1,
                        BETA_2,
                        EPSILON,
                        number,
                        WeightDecay.DECOUPLED,
                        BiasCorrection.YES,
                        DECAY,
                        dtype,
                        open.stream());
                expected = witness.step(1e-2f, gradients, 1);
            }
        }
        open.assertClose("master", expected, floats(read(master)), 0, STEPS);
        for (int i = 0; i < SIZES.length; i++) {
            float[] stored = open.read(master[i]);
            double[] cast = new double[stored.length];
            float largest = i == 1 ? 1000 : 0;
            for (int j = 0; j < stored.length; j++) {
                cast[j] = Float8Witness.nearest(stored[j] * 16f, dtype);
                largest = Math.max(largest, Math.abs(stored[j]));
            }
            assertArrayEquals(cast, Float8Witness.values(p[i].toBytes(open.stream()), dtype), "p is the cast master");
            // The magnitudes of all three steps count.
            assertEquals(true, open.read(amax[i])[0] >= largest);
            assertEquals(1 / 16f, open.read(inverse[i])[0]);
        }
    }

    private static Tensor[] cells(double value) {
        return Arrays.stream(SIZES).mapToObj(size -> scalar(value)).toArray(Tensor[]::new);
    }

    @ParameterizedTest
    @CsvSource({
        "PLAIN, BEFORE_MOMENTUM, 0",
        "PLAIN, AFTER_MOMENTUM, 0.9",
        "PLAIN, BEFORE_MOMENTUM, 0.9",
        "NESTEROV, BEFORE_MOMENTUM, 0.9",
        "NESTEROV, AFTER_MOMENTUM, 0.9"
    })
    void stepsOfStochasticGradientDescent(Momentum kind, DecayPlace place, float momentum) {
        SgdConfig config = kind == Momentum.NESTEROV
                ? SgdConfig.of(1e-2f).withNesterov(momentum)
                : SgdConfig.of(1e-2f).withMomentum(momentum, momentum == 0 ? 0 : 0.25f);
        config = config.withWeightDecay(DECAY, place).withGradientScale(0.5f);
        Tensor[] g = drawn(DType.FLOAT16, 1);
        Tensor[] p = drawn(DType.FLOAT32, 1);
        Tensor[] v = drawn(DType.FLOAT32, 5);
        Tensor[] copy = zeros(DType.FLOAT16);
        double[] gradients = read(g);
        double[] weights = read(p);
        double[] sum = new double[weights.length];
        Tensor flag = open.ints(0);
        try (TensorLists lists = TensorLists.of(g, p, v, copy)) {
            for (SgdStep step : List.of(SgdStep.FIRST, SgdStep.LATER, SgdStep.LATER)) {
                MultiTensor.sgd(flag, lists, config, step, open.stream());
                for (int i = 0; i < weights.length; i++) {
                    boolean before = place == DecayPlace.BEFORE_MOMENTUM;
                    double d = 0.5 * gradients[i] + (before ? DECAY * weights[i] : 0);
                    if (momentum != 0) {
                        sum[i] = step == SgdStep.FIRST ? d : momentum * sum[i] + (1 - config.dampening()) * d;
                        d = kind == Momentum.NESTEROV ? d + momentum * sum[i] : sum[i];
                    }
                    weights[i] -= 1e-2f * (d + (before ? 0 : DECAY * weights[i]));
                }
            }
            open.assertClose("p", weights, floats(read(p)), 0, STEPS);
            assertArrayEquals(Rounding.round(read(p), DType.FLOAT16), read(copy), "the copy is the rounded weight");
            if (momentum != 0) {
                open.assertClose("v", sum, floats(read(v)), 0, STEPS);
            }
            double[] stored = read(p);
            flag.set(open.stream(), 1);
            MultiTensor.sgd(flag, lists, config, SgdStep.LATER, open.stream());
            assertArrayEquals(stored, read(p), "a raised flag skips the step");
        }
    }
}

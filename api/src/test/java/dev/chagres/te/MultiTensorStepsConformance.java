package dev.chagres.te;

import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;

import dev.chagres.DType;
import dev.chagres.Tensor;
import dev.chagres.conformance.OpenDevice;
import dev.chagres.conformance.Tolerance;
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

/** Steps of {@code MultiTensor}'s optimizers against double precision, over tensors of very different sizes. */
@Tag("L0")
@Tag("L1")
class MultiTensorStepsConformance {
    /** Some tens of roundings in FP32. */
    private static final Tolerance STEPS = new Tolerance("Adam, 10 steps in FP32", 2e-6, 2e-5);

    @RegisterExtension
    static final OpenDevice open = new OpenDevice();

    private final MultiTensorData data = new MultiTensorData(open);

    @Test
    void stepsOfAdam() {
        Tensor[] g = data.zeros(DType.FLOAT32);
        Tensor[] p = data.drawn(DType.FLOAT32, 1);
        double[] weights = data.read(p);
        double[] decay = new double[weights.length];
        Arrays.fill(decay, MultiTensorData.DECAY);
        AdamWWitness witness = new AdamWWitness(
                MultiTensorData.BETA_1, MultiTensorData.BETA_2, MultiTensorData.EPSILON, decay, weights.clone());
        Tensor flag = open.ints(0);
        Tensor lr = data.scalar(0);
        Tensor step = open.ints(0);
        Tensor scale = data.scalar(0.5);
        try (TensorLists lists = TensorLists.of(g, p, data.zeros(DType.FLOAT32), data.zeros(DType.FLOAT32))) {
            for (int number = 1; number <= 10; number++) {
                double[] gradients = refill(g);
                open.set(lr, 1e-3f * number);
                step.set(open.stream(), number);
                data.adam(flag, lists, lr, step, WeightDecay.DECOUPLED, scale);
                double[] expected = witness.step(1e-3f * number, gradients, 0.5);
                open.assertClose("p after step " + number, expected, MultiTensorData.floats(data.read(p)), 0, STEPS);
                // The kernel leaves the gradients scaled.
                assertArrayEquals(Arrays.stream(gradients).map(x -> x * 0.5).toArray(), data.read(g), 1e-7);
            }
        }
    }

    private double[] refill(Tensor[] gradients) {
        for (Tensor gradient : gradients) {
            open.set(gradient, open.normal(DType.FLOAT32, (int) gradient.count(), 0.1));
        }
        return data.read(gradients);
    }

    /** One step from zero moments: with L2 decay the gradient is g + w p, without correction the moments stay small. */
    @ParameterizedTest
    @EnumSource
    void decayAndCorrection(BiasCorrection correction) {
        Tensor[] g = data.drawn(DType.FLOAT32, 0.1);
        Tensor[] p = data.drawn(DType.FLOAT32, 1);
        double[] gradients = data.read(g);
        double[] expected = data.read(p);
        for (int i = 0; i < expected.length; i++) {
            double gradient = gradients[i] + MultiTensorData.DECAY * expected[i];
            double mean = (1 - MultiTensorData.BETA_1) * gradient;
            double square = (1 - MultiTensorData.BETA_2) * gradient * gradient;
            if (correction == BiasCorrection.YES) {
                mean /= 1 - MultiTensorData.BETA_1;
                square /= 1 - MultiTensorData.BETA_2;
            }
            expected[i] -= 1e-2f * mean / (Math.sqrt(square) + 1e-3f);
        }
        Tensor flag = open.ints(0);
        try (TensorLists lists = TensorLists.of(g, p, data.zeros(DType.FLOAT32), data.zeros(DType.FLOAT32))) {
            new MultiTensorAdam(
                            MultiTensorData.BETA_1,
                            MultiTensorData.BETA_2,
                            1e-3f,
                            WeightDecay.L2,
                            correction,
                            MultiTensorData.DECAY)
                    .adamCapturable(flag, lists, data.scalar(1e-2f), open.ints(1), data.scalar(1), open.stream());
        }
        open.assertClose("p", expected, MultiTensorData.floats(data.read(p)), 0, STEPS);
    }

    /** A factor that the device reads, over every pair of types; a number that is not finite raises the flag. */
    @Test
    void aFactorOnTheDevice() {
        for (DType from : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
            for (DType to : List.of(DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)) {
                Tensor[] x = data.drawn(from, 1);
                Tensor[] y = data.zeros(to);
                Tensor flag = open.ints(0);
                Tensor scale = data.scalar(-1536.25);
                double[] expected = Arrays.stream(data.read(x))
                        .map(value -> value * -1536.25)
                        .toArray();
                try (TensorLists lists = TensorLists.of(x, y)) {
                    MultiTensor.scaleTensor(flag, lists, scale, open.stream());
                    Tolerance rounding = new Tolerance("one rounding to " + to, 4e-3, 4e-3);
                    open.assertClose("y", expected, MultiTensorData.floats(data.read(y)), 0, rounding);
                    assertEquals(0, flag.toInts(open.stream())[0]);
                    float[] infinite = new float[(int) x[1].count()];
                    infinite[0] = Float.POSITIVE_INFINITY;
                    open.set(x[1], doubles(infinite));
                    MultiTensor.scaleTensor(flag, lists, scale, open.stream());
                    assertEquals(1, flag.toInts(open.stream())[0]);
                }
            }
        }
    }

    private static double[] doubles(float[] values) {
        double[] doubles = new double[values.length];
        Arrays.setAll(doubles, i -> values[i]);
        return doubles;
    }

    @Test
    void aRaisedFlagSkipsTheStep() {
        Tensor[] g = data.drawn(DType.FLOAT32, 1);
        Tensor[] p = data.drawn(DType.FLOAT32, 1);
        double[] before = data.read(p);
        try (TensorLists lists = TensorLists.of(g, p, data.zeros(DType.FLOAT32), data.zeros(DType.FLOAT32))) {
            data.adam(open.ints(1), lists, data.scalar(1), open.ints(1), WeightDecay.DECOUPLED, data.scalar(1));
        }
        assertArrayEquals(before, data.read(p));
    }

    /** Master weights: the same step as one over FP32 weights of which p is rounded. */
    @ParameterizedTest
    @EnumSource(names = {"BFLOAT16", "FLOAT16"})
    void masterWeights(DType dtype) {
        Tensor[] g = data.drawn(dtype, 0.1);
        Tensor[] p = data.zeros(dtype);
        Tensor[] master = data.drawn(DType.FLOAT32, 1);
        Tensor[] wide = data.zeros(DType.FLOAT32);
        Tensor[] weights = data.zeros(DType.FLOAT32);
        for (int i = 0; i < MultiTensorData.SIZES.length; i++) {
            weights[i].copyFrom(open.stream(), master[i]);
            open.set(wide[i], data.read(new Tensor[] {g[i]}));
        }
        Tensor flag = open.ints(0);
        try (TensorLists five = TensorLists.of(g, p, data.zeros(DType.FLOAT32), data.zeros(DType.FLOAT32), master);
                TensorLists four =
                        TensorLists.of(wide, weights, data.zeros(DType.FLOAT32), data.zeros(DType.FLOAT32))) {
            for (int number = 1; number <= 3; number++) {
                Tensor lr = data.scalar(1e-2);
                Tensor step = open.ints(number);
                new MultiTensorAdam(
                                MultiTensorData.BETA_1,
                                MultiTensorData.BETA_2,
                                MultiTensorData.EPSILON,
                                WeightDecay.DECOUPLED,
                                BiasCorrection.YES,
                                MultiTensorData.DECAY)
                        .adamCapturableMaster(flag, five, lr, step, data.scalar(1), open.stream());
                data.adam(flag, four, lr, step, WeightDecay.DECOUPLED, data.scalar(1));
            }
        }
        assertArrayEquals(data.read(weights), data.read(master), 1e-6);
        assertArrayEquals(Rounding.round(data.read(master), dtype), data.read(p), "p is the rounded master");
    }

    /** Adam on weights in eight bits is the step over the masters, of which the weights are the cast. */
    @ParameterizedTest
    @EnumSource(names = {"FLOAT8_E4M3", "FLOAT8_E5M2"})
    void weightsInEightBits(DType dtype) {
        Tensor[] g = data.drawn(DType.BFLOAT16, 0.1);
        Tensor[] p = Arrays.stream(MultiTensorData.SIZES)
                .mapToObj(size -> open.scope().tensor(dtype, size))
                .toArray(Tensor[]::new);
        Tensor[] master = data.drawn(DType.FLOAT32, 1);
        double[] weights = data.read(master);
        double[] decay = new double[weights.length];
        Arrays.fill(decay, MultiTensorData.DECAY);
        AdamWWitness witness = new AdamWWitness(
                MultiTensorData.BETA_1, MultiTensorData.BETA_2, MultiTensorData.EPSILON, decay, weights);
        double[] gradients = data.read(g);
        Tensor[] scale = cells(16);
        Tensor[] amax = cells(0);
        Tensor[] inverse = cells(0);
        open.set(amax[1], 1000f);
        Tensor[][] shaped = {g, p, data.zeros(DType.FLOAT32), data.zeros(DType.FLOAT32), master};
        double[] expected = {};
        try (TensorLists lists = TensorLists.ofScaled(shaped, scale, amax, inverse)) {
            for (int number = 1; number <= 3; number++) {
                new MultiTensorAdam(
                                MultiTensorData.BETA_1,
                                MultiTensorData.BETA_2,
                                MultiTensorData.EPSILON,
                                WeightDecay.DECOUPLED,
                                BiasCorrection.YES,
                                MultiTensorData.DECAY)
                        .adamFp8(lists, 1e-2f, number, dtype, open.stream());
                expected = witness.step(1e-2f, gradients, 1);
            }
        }
        open.assertClose("master", expected, MultiTensorData.floats(data.read(master)), 0, STEPS);
        for (int i = 0; i < MultiTensorData.SIZES.length; i++) {
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

    private Tensor[] cells(double value) {
        return Arrays.stream(MultiTensorData.SIZES)
                .mapToObj(size -> data.scalar(value))
                .toArray(Tensor[]::new);
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
        config = config.withWeightDecay(MultiTensorData.DECAY, place).withGradientScale(0.5f);
        Tensor[] g = data.drawn(DType.FLOAT16, 1);
        Tensor[] p = data.drawn(DType.FLOAT32, 1);
        Tensor[] v = data.drawn(DType.FLOAT32, 5);
        Tensor[] copy = data.zeros(DType.FLOAT16);
        double[] gradients = data.read(g);
        double[] weights = data.read(p);
        double[] sum = new double[weights.length];
        Tensor flag = open.ints(0);
        try (TensorLists lists = TensorLists.of(g, p, v, copy)) {
            for (SgdStep step : List.of(SgdStep.FIRST, SgdStep.LATER, SgdStep.LATER)) {
                MultiTensor.sgd(flag, lists, config, step, open.stream());
                for (int i = 0; i < weights.length; i++) {
                    boolean before = place == DecayPlace.BEFORE_MOMENTUM;
                    double d = 0.5 * gradients[i] + (before ? MultiTensorData.DECAY * weights[i] : 0);
                    if (momentum != 0) {
                        sum[i] = step == SgdStep.FIRST ? d : momentum * sum[i] + (1 - config.dampening()) * d;
                        d = kind == Momentum.NESTEROV ? d + momentum * sum[i] : sum[i];
                    }
                    weights[i] -= 1e-2f * (d + (before ? 0 : MultiTensorData.DECAY * weights[i]));
                }
            }
            open.assertClose("p", weights, MultiTensorData.floats(data.read(p)), 0, STEPS);
            assertArrayEquals(
                    Rounding.round(data.read(p), DType.FLOAT16), data.read(copy), "the copy is the rounded weight");
            if (momentum != 0) {
                open.assertClose("v", sum, MultiTensorData.floats(data.read(v)), 0, STEPS);
            }
            double[] stored = data.read(p);
            flag.set(open.stream(), 1);
            MultiTensor.sgd(flag, lists, config, SgdStep.LATER, open.stream());
            assertArrayEquals(stored, data.read(p), "a raised flag skips the step");
        }
    }
}

package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;
import org.jspecify.annotations.Nullable;

/**
 * A step of Adam in one kernel, over one range of elements or many. Learning rate, step number, gradient scale and skip flag lie on the
 * device. Moments are FP32 or BF16; weights are FP32, or have an FP32 master or its remainder beside them.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code ops_adam} and {@code ops_adam_ranges} in {@code ops.h}; Kingma and Ba, Adam (2015); Loshchilov and Hutter,
 * Decoupled weight decay regularization (2017).
 */
public final class Adam {
    private Adam() {}

    /**
     * Enqueues {@code g = gradientScale gradient}, {@code m = beta1 m + (1 - beta1) g}, {@code v = beta2 v + (1 - beta2) g^2},
     * {@code u = (m / c1) / (sqrt(v / c2) + epsilon)} and, decoupled, {@code w = w - rate (u + weightDecay w)}; with L2
     * {@code weightDecay w} is added to g instead.
     *
     * @param gradient FLOAT32 [n]
     * @param weight floating-point numbers [n], FLOAT32 unless there is a master
     * @param mean m, FLOAT32 or BFLOAT16 [n]
     * @param square v, like mean
     * @param master w of weights of 16 bits. FLOAT32 [n]: w itself; the weight is w rounded to nearest even. BYTE [2 n], for BFLOAT16
     *     weights only: the low 16 bits of w; the weight is the upper half, rounded to nearest. Null for FLOAT32 weights
     * @param rate FLOAT32 [1]
     * @param step number of this step, from 1 on, INT32 [1]
     * @param gradientScale FLOAT32 [1]
     * @param skip INT32 [1]: where it is 1 nothing changes
     * @param beta1 at least 0 and below 1
     * @param beta2 at least 0 and below 1
     * @param epsilon at least 0
     * @param weightDecay at least 0
     * @param mode where the weight decay goes
     * @param biasCorrection whether {@code c = 1 - beta^step} or 1
     * @throws IllegalArgumentException when shapes, types, numbers or devices do not fit, or what is written shares memory
     */
    public static void step(
            Tensor gradient,
            Tensor weight,
            Tensor mean,
            Tensor square,
            @Nullable Tensor master,
            Tensor rate,
            Tensor step,
            Tensor gradientScale,
            Tensor skip,
            float beta1,
            float beta2,
            float epsilon,
            float weightDecay,
            WeightDecay mode,
            BiasCorrection biasCorrection,
            Stream stream) {
        Checks.given("mode", mode);
        Checks.given("biasCorrection", biasCorrection);
        checkNumbers(beta1, beta2, epsilon, weightDecay);
        checkVectors(gradient, weight, mean, square, master, stream);
        Checks.vector(stream, "rate", rate, DType.FLOAT32, 1);
        Checks.vector(stream, "step", step, DType.INT32, 1);
        Checks.vector(stream, "gradientScale", gradientScale, DType.FLOAT32, 1);
        Checks.vector(stream, "skip", skip, DType.INT32, 1);
        checkApart("weight", weight, gradient, rate, step, gradientScale, skip);
        checkApart("mean", mean, gradient, rate, step, gradientScale, skip);
        checkApart("square", square, gradient, rate, step, gradientScale, skip);
        if (master != null) {
            checkApart("master", master, gradient, rate, step, gradientScale, skip);
        }
        Status.ops(
                Ops.ops_adam(
                        gradient.address(),
                        weight.address(),
                        mean.address(),
                        square.address(),
                        Checks.addressOrNull(master),
                        rate.address(),
                        step.address(),
                        gradientScale.address(),
                        skip.address(),
                        beta1,
                        beta2,
                        epsilon,
                        weightDecay,
                        mode == WeightDecay.DECOUPLED ? 1 : 0,
                        biasCorrection == BiasCorrection.YES ? 1 : 0,
                        gradient.count(),
                        weight.dtype().code(),
                        mean.dtype().code(),
                        masters(master),
                        stream.handle()),
                "ops_adam");
    }

    /**
     * Enqueues the step of the other method for all {@code ranges} by one launch, with the same bits.
     *
     * @param step number of this step, from 1 on, INT32 [1]
     * @param gradientScale FLOAT32 [1]
     * @param skip INT32 [1]: where it is 1 nothing changes
     * @param beta1 at least 0 and below 1
     * @param beta2 at least 0 and below 1
     * @param epsilon at least 0
     * @param mode where the weight decay goes
     * @param biasCorrection whether {@code c = 1 - beta^step} or 1
     * @throws IllegalArgumentException when shapes, types, numbers or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a range's memory was reused since the ranges were made
     */
    public static void step(
            AdamRanges ranges,
            Tensor step,
            Tensor gradientScale,
            Tensor skip,
            float beta1,
            float beta2,
            float epsilon,
            WeightDecay mode,
            BiasCorrection biasCorrection,
            Stream stream) {
        Checks.given("ranges", ranges);
        Checks.given("mode", mode);
        Checks.given("biasCorrection", biasCorrection);
        checkNumbers(beta1, beta2, epsilon, 0);
        Checks.vector(stream, "step", step, DType.INT32, 1);
        Checks.vector(stream, "gradientScale", gradientScale, DType.FLOAT32, 1);
        Checks.vector(stream, "skip", skip, DType.INT32, 1);
        long table = ranges.address(step, gradientScale, skip, stream);
        Status.ops(
                Ops.ops_adam_ranges(
                        table,
                        ranges.count(),
                        ranges.blocks(),
                        step.address(),
                        gradientScale.address(),
                        skip.address(),
                        beta1,
                        beta2,
                        epsilon,
                        mode == WeightDecay.DECOUPLED ? 1 : 0,
                        biasCorrection == BiasCorrection.YES ? 1 : 0,
                        ranges.weightType().code(),
                        ranges.momentType().code(),
                        ranges.masters(),
                        stream.handle()),
                "ops_adam_ranges");
    }

    static int masters(@Nullable Tensor master) {
        if (master == null) {
            return Ops.OPS_MASTER_NONE();
        }
        return master.dtype() == DType.FLOAT32 ? Ops.OPS_MASTER_FLOAT32() : Ops.OPS_MASTER_REMAINDER();
    }

    private static void checkNumbers(float beta1, float beta2, float epsilon, float weightDecay) {
        if (!(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1)) {
            throw new IllegalArgumentException(
                    "beta1, beta2: expected numbers within [0, 1), got " + beta1 + " and " + beta2);
        }
        if (!(epsilon >= 0) || Float.isInfinite(epsilon)) {
            throw new IllegalArgumentException("epsilon: expected a number of at least 0, got " + epsilon);
        }
        if (!(weightDecay >= 0) || Float.isInfinite(weightDecay)) {
            throw new IllegalArgumentException("weightDecay: expected a number of at least 0, got " + weightDecay);
        }
    }

    static void checkVectors(
            Tensor gradient, Tensor weight, Tensor mean, Tensor square, @Nullable Tensor master, Stream stream) {
        Checks.on(stream, "gradient", gradient);
        long count = gradient.count();
        Checks.vector(stream, "gradient", gradient, DType.FLOAT32, count);
        Checks.floats(stream, "weight", weight);
        Checks.vector(stream, "weight", weight, master == null ? DType.FLOAT32 : weight.dtype(), count);
        Checks.floats(stream, "mean", mean);
        Checks.vector(stream, "mean", mean, mean.dtype() == DType.FLOAT16 ? DType.BFLOAT16 : mean.dtype(), count);
        Checks.vector(stream, "square", square, mean.dtype(), count);
        Checks.writable("weight", weight);
        Checks.writable("mean", mean);
        Checks.writable("square", square);
        Checks.apart("mean", mean, "weight", weight);
        Checks.apart("square", square, "weight", weight);
        Checks.apart("square", square, "mean", mean);
        if (master == null) {
            return;
        }
        boolean remainder = Checks.on(stream, "master", master).dtype() == DType.BYTE;
        Checks.vector(stream, "master", master, remainder ? DType.BYTE : DType.FLOAT32, remainder ? 2 * count : count);
        if (weight.dtype() == DType.FLOAT32 || remainder && weight.dtype() != DType.BFLOAT16) {
            throw new IllegalArgumentException("weight: expected " + (remainder ? "BFLOAT16" : "FLOAT16 or BFLOAT16")
                    + " beside this master, got " + Checks.describe(weight));
        }
        Checks.writable("master", master);
        Checks.apart("master", master, "weight", weight);
        Checks.apart("master", master, "mean", mean);
        Checks.apart("master", master, "square", square);
    }

    private static void checkApart(
            String argument,
            Tensor tensor,
            Tensor gradient,
            Tensor rate,
            Tensor step,
            Tensor gradientScale,
            Tensor skip) {
        Checks.apart(argument, tensor, "gradient", gradient);
        Checks.apart(argument, tensor, "rate", rate);
        Checks.apart(argument, tensor, "step", step);
        Checks.apart(argument, tensor, "gradientScale", gradientScale);
        Checks.apart(argument, tensor, "skip", skip);
    }
}

package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.te.MultiTensor.BiasCorrection;
import dev.chagres.te.MultiTensor.WeightDecay;

/**
 * A step of Adam in one kernel, over one range of elements or many: {@code g = gradientScale gradient}, {@code m = beta1 m + (1 - beta1)
 * g}, {@code v = beta2 v + (1 - beta2) g^2}, {@code u = (m / c1) / (sqrt(v / c2) + epsilon)} and, decoupled, {@code w = w - rate (u +
 * weightDecay w)}; with L2 {@code weightDecay w} is added to g instead.
 *
 * <p>Learning rate, step number, gradient scale and skip flag lie on the device. Gradients are FP32 or have 16 bits, moments are FP32 or
 * BF16; weights are FP32, or have an FP32 master or its remainder beside them.
 *
 * <p>Threading: immutable; its steps belong to the device's thread.
 *
 * <p>Source: {@code ops_adam} and {@code ops_adam_ranges} in {@code ops.h}; Kingma and Ba, Adam (2015); Loshchilov and Hutter,
 * Decoupled weight decay regularization (2017).
 *
 * @param beta1 at least 0 and below 1
 * @param beta2 at least 0 and below 1
 * @param epsilon at least 0
 * @param mode where the weight decay goes
 * @param biasCorrection whether {@code c = 1 - beta^step} or 1
 */
public record Adam(float beta1, float beta2, float epsilon, WeightDecay mode, BiasCorrection biasCorrection) {
    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is outside its range
     */
    public Adam {
        Checks.given("mode", mode, "biasCorrection", biasCorrection);
        Numbers.betas(beta1, beta2);
        Numbers.notNegative("epsilon", epsilon);
    }

    /**
     * Enqueues the step of one range.
     *
     * @param step number of this step, from 1 on, INT32 [1]
     * @param gradientScale FLOAT32 [1]
     * @param skip INT32 [1]: where it is 1 nothing changes
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     */
    public void step(AdamRange range, Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        Checks.given("range", range).check(stream);
        checkNumbers(step, gradientScale, skip, stream);
        Tensor master = range.master();
        checkApart("weight", range.weight(), range, step, gradientScale, skip);
        checkApart("mean", range.mean(), range, step, gradientScale, skip);
        checkApart("square", range.square(), range, step, gradientScale, skip);
        if (master != null) {
            checkApart("master", master, range, step, gradientScale, skip);
        }
        Status.ops(
                Ops.ops_adam(
                        range.gradient().address(),
                        range.weight().address(),
                        range.mean().address(),
                        range.square().address(),
                        Checks.addressOrNull(master),
                        range.rate().address(),
                        step.address(),
                        gradientScale.address(),
                        skip.address(),
                        beta1,
                        beta2,
                        epsilon,
                        range.weightDecay(),
                        mode == WeightDecay.DECOUPLED ? 1 : 0,
                        biasCorrection == BiasCorrection.YES ? 1 : 0,
                        range.gradient().count(),
                        range.gradient().dtype().code(),
                        range.weight().dtype().code(),
                        range.mean().dtype().code(),
                        RangeTable.masters(master),
                        stream.handle()),
                "ops_adam");
    }

    /**
     * Enqueues the step of the other method for all {@code ranges} by one launch, with the same bits.
     *
     * @param step number of this step, from 1 on, INT32 [1]
     * @param gradientScale FLOAT32 [1]
     * @param skip INT32 [1]: where it is 1 nothing changes
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a range's memory was reused since the ranges were made
     */
    public void step(AdamRanges ranges, Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        Checks.given("ranges", ranges);
        checkNumbers(step, gradientScale, skip, stream);
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
                        ranges.first().gradient().dtype().code(),
                        ranges.first().weight().dtype().code(),
                        ranges.first().mean().dtype().code(),
                        RangeTable.masters(ranges.first().master()),
                        stream.handle()),
                "ops_adam_ranges");
    }

    private static void checkNumbers(Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        Checks.vector(stream, "step", step, DType.INT32, 1);
        Checks.vector(stream, "gradientScale", gradientScale, DType.FLOAT32, 1);
        Checks.vector(stream, "skip", skip, DType.INT32, 1);
    }

    private static void checkApart(
            String argument, Tensor tensor, AdamRange range, Tensor step, Tensor gradientScale, Tensor skip) {
        Checks.apart(argument, tensor, "gradient", range.gradient(), "rate", range.rate(), "step", step);
        Checks.apart(argument, tensor, "gradientScale", gradientScale, "skip", skip);
    }
}

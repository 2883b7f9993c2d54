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
 * A step of SGD, Lion, Adam in eight bits, schedule-free AdamW, or an average of weights, in one kernel over many ranges. With {@code g = gradientScale gradient}:
 *
 * <ul>
 *   <li>{@link Method#SGD}: {@code g = g + weightDecay w}, {@code m = beta1 m + (1 - beta2) g}, {@code w = w - rate m}; m is g where beta1
 *       is 0 or the step is the first one. {@link Method#NESTEROV}: {@code w = w - rate (g + beta1 m)}.
 *   <li>{@link Method#LION}: {@code w = w - rate (sign(beta1 m + (1 - beta1) g) + weightDecay w)}, {@code m = beta2 m + (1 - beta2) g}.
 *   <li>{@link Method#ADAM}: that of {@link Adam}, with states of eight bits.
 *   <li>{@link Method#SCHEDULE_FREE}: with {@code y = (1 - beta1) z + beta1 x}: {@code v = beta2 v + (1 - beta2) g^2}, {@code z = z - rate (g /
 *       (sqrt(v / (1 - beta2^step)) + epsilon) + weightDecay y)}, {@code x = x + share (z - x)}; the weight becomes the new y. {@link
 *       Method#SCHEDULE_FREE_POINT} writes y alone.
 *   <li>{@link Method#AVERAGE}: the state is {@code a = a + (1 - beta1) (w - a)}; weights and masters stay as they are.
 * </ul>
 *
 * <p>Learning rate, step number, gradient scale, share and skip flag lie on the device. A state of eight bits has a scale for 256 neighbours,
 * their largest magnitude, and for each a code of one of 256 numbers within [-1, 1], the nearest: {@code 10^(d - 6) (0.1 + 0.9 (i + 1/2) / n)}
 * with d from 0 to 6, i from 0 to n - 1, n being {@code 2^d} with both signs for the first state and {@code 2^(d + 1)} for the second; 0; 1. The byte 0 stands for 0.
 *
 * <p>Threading: immutable; its steps belong to the device's thread.
 *
 * <p>Source: {@code ops_optimizer_step} and {@code ops_average_share} in {@code ops.h}; Chen et al., Symbolic discovery of optimization
 * algorithms (2023); Dettmers et al., 8-bit optimizers via block-wise quantization (2022); Defazio et al., The road less scheduled (2024).
 *
 * @param method what a step computes
 * @param beta1 at least 0 and below 1; the momentum of SGD
 * @param beta2 at least 0 and below 1; the dampening of SGD
 * @param epsilon at least 0
 * @param mode where the weight decay of {@link Method#ADAM} goes
 * @param biasCorrection whether {@link Method#ADAM} divides its moments by {@code 1 - beta^step}
 */
public record OptimizerStep(
        Method method, float beta1, float beta2, float epsilon, WeightDecay mode, BiasCorrection biasCorrection) {
    /** What a step computes. */
    public enum Method {
        /** Gradient descent with momentum. */
        SGD(Ops.OPS_METHOD_SGD()),
        /** The same with Nesterov's momentum. */
        NESTEROV(Ops.OPS_METHOD_NESTEROV()),
        /** The sign of a mean; with one state of FLOAT32, BFLOAT16 or eight bits. */
        LION(Ops.OPS_METHOD_LION()),
        /** Adam with states of eight bits; {@link Adam} has others. */
        ADAM(Ops.OPS_METHOD_ADAM()),
        /** Schedule-free AdamW. */
        SCHEDULE_FREE(Ops.OPS_METHOD_SCHEDULE_FREE()),
        /** Weights where schedule-free AdamW takes gradients. */
        SCHEDULE_FREE_POINT(Ops.OPS_METHOD_SCHEDULE_FREE_POINT()),
        /** A moving average of FLOAT32 weights or masters, which are read alone. Gradients, rates, step and scale are not used. */
        AVERAGE(Ops.OPS_METHOD_AVERAGE());

        private final int number;

        Method(int number) {
            this.number = number;
        }

        private boolean isAveraged() {
            return this == SCHEDULE_FREE || this == SCHEDULE_FREE_POINT;
        }

        private boolean takes(DType state) {
            return switch (this) {
                case LION -> state == DType.FLOAT32 || state == DType.BFLOAT16 || state == DType.BYTE;
                case ADAM -> state == DType.BYTE;
                default -> state == DType.FLOAT32;
            };
        }
    }

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is outside its range
     */
    public OptimizerStep {
        Checks.given("method", method, "mode", mode, "biasCorrection", biasCorrection);
        Numbers.betas(beta1, beta2);
        Numbers.notNegative("epsilon", epsilon);
    }

    /** Returns a method without epsilon, with decoupled decay and bias correction. */
    public static OptimizerStep of(Method method, float beta1, float beta2) {
        return new OptimizerStep(method, beta1, beta2, 0, WeightDecay.DECOUPLED, BiasCorrection.YES);
    }

    /**
     * Enqueues the step.
     *
     * @param step number of this step, from 1 on, INT32 [1]
     * @param gradientScale FLOAT32 [1]
     * @param skip INT32 [1]: where it is 1 nothing changes
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a range's memory was reused since the ranges were made
     */
    public void step(StepRanges ranges, Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        StepRange first = Checks.given("ranges", ranges).first();
        check(first);
        Checks.vector(stream, "step", step, DType.INT32, 1);
        Checks.vector(stream, "gradientScale", gradientScale, DType.FLOAT32, 1);
        Checks.vector(stream, "skip", skip, DType.INT32, 1);
        long table = ranges.address(step, gradientScale, skip, stream);
        Status.ops(
                Ops.ops_optimizer_step(
                        table,
                        ranges.count(),
                        ranges.blocks(),
                        step.address(),
                        gradientScale.address(),
                        skip.address(),
                        method.number,
                        beta1,
                        beta2,
                        epsilon,
                        mode == WeightDecay.DECOUPLED ? 1 : 0,
                        biasCorrection == BiasCorrection.YES ? 1 : 0,
                        first.gradient().dtype().code(),
                        first.weight().dtype().code(),
                        first.first().values().dtype().code(),
                        RangeTable.masters(first.master()),
                        stream.handle()),
                "ops_optimizer_step");
    }

    private void check(StepRange first) {
        boolean two = method == Method.ADAM || method.isAveraged();
        StepState second = first.second();
        DType state = first.first().values().dtype();
        boolean isAlike = second == null ? !two : !two || second.values().dtype() == state;
        if (!method.takes(state) || !isAlike || method.isAveraged() && first.share() == null) {
            throw new IllegalArgumentException(
                    "ranges: expected " + (two ? "two states" : "a state") + " of a type that " + method + " takes"
                            + (method.isAveraged() ? ", and a share" : "") + ", got " + first.types());
        }
    }

    /**
     * Enqueues the computation of the share of this step in the averages of groups. With the sum of weights and the highest rate in sums,
     * {@code highest = max(highest, rate)}, {@code weight = step^power highest^ratePower}, {@code sum = sum + weight}, {@code share = weight /
     * sum}, or 0 where the sum is 0.
     *
     * @param rates FLOAT32 [groups]
     * @param step number of this step, from 1 on, INT32 [1]
     * @param skip INT32 [1]: where it is 1 nothing changes
     * @param sums FLOAT32 [groups, 2], read and written: sum and highest rate of each group
     * @param shares FLOAT32 [groups], written
     * @param power at least 0
     * @param ratePower at least 0
     * @throws IllegalArgumentException when shapes, types or devices do not fit, a power is negative, or what is written shares memory
     */
    public static void averageShare(
            Tensor rates,
            Tensor step,
            Tensor skip,
            Tensor sums,
            Tensor shares,
            float power,
            float ratePower,
            Stream stream) {
        Checks.on(stream, "rates", rates);
        long count = rates.count();
        Checks.vector(stream, "rates", rates, DType.FLOAT32, count);
        Checks.vector(stream, "step", step, DType.INT32, 1);
        Checks.vector(stream, "skip", skip, DType.INT32, 1);
        Checks.matrix(stream, "sums", sums, DType.FLOAT32, count, 2);
        Checks.vector(stream, "shares", shares, DType.FLOAT32, count);
        Checks.written("sums", sums, "rates", rates);
        Checks.written("shares", shares, "sums", sums, "rates", rates);
        if (!(power >= 0) || !(ratePower >= 0)) {
            throw new IllegalArgumentException(
                    "power, ratePower: expected numbers of at least 0, got " + power + " and " + ratePower);
        }
        Status.ops(
                Ops.ops_average_share(
                        rates.address(),
                        step.address(),
                        skip.address(),
                        sums.address(),
                        shares.address(),
                        power,
                        ratePower,
                        count,
                        stream.handle()),
                "ops_average_share");
    }
}

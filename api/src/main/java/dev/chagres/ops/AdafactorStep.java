package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.Status;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;

/**
 * A step of Adafactor over many ranges of matrices, in five calls, in this order. With {@code g = gradientScale gradient}, t the number of the
 * step, R rows, C columns, and RMS the root of the mean of squares over a whole matrix:
 *
 * <ul>
 *   <li>{@link #sums}: of each row and column of a range the sum of g^2, and of each row that of w^2.
 *   <li>{@link #factors}: {@code b = 1 - t^-power}, {@code row = b row + (1 - b) (sum / C + epsilon1)}, {@code column = b column + (1 - b) (sum / R
 *       + epsilon1)}, {@code size = r max(epsilon2, RMS(w))}, or r for {@link Scale#NONE}; r is what {@link Rate} makes of the rate.
 *   <li>{@link #updates}: of each row of a range the sum of u^2, {@code u = g / (sqrt(row / mean(row)) sqrt(column))}.
 *   <li>{@link #clip}: {@code factor = size / max(1, RMS(u) / threshold)}.
 *   <li>{@link #step}: {@code d = factor u}, with beta1 {@code mean = beta1 mean + (1 - beta1) d} and {@code d = mean}, and {@code w = w - size decay
 *       w - d}.
 * </ul>
 *
 * <p>Ranks that have parts of matrices zero the sums before, and add them up after {@link #sums} and {@link #updates}; then all have the same
 * factors. Rate, step number, gradient scale and skip flag lie on the device. Sums have a fixed order.
 *
 * <p>Threading: immutable; its calls belong to the device's thread.
 *
 * <p>Source: {@code ops_adafactor} in {@code ops.h}; Shazeer and Stern, Adafactor: Adaptive learning rates with sublinear memory cost (2018).
 *
 * @param power at least 0
 * @param epsilon1 at least 0
 * @param epsilon2 at least 0
 * @param threshold above 0
 * @param beta1 at least 0 and below 1
 * @param rate what is made of the learning rate
 * @param scale whether a step is proportional to the weights
 */
public record AdafactorStep(
        float power, float epsilon1, float epsilon2, float threshold, float beta1, Rate rate, Scale scale) {
    /** What is made of a learning rate. */
    public enum Rate {
        /** Nothing. */
        GIVEN(Ops.OPS_RATE_GIVEN()),
        /** {@code min(rate, 1 / sqrt(t))}. */
        CAPPED(Ops.OPS_RATE_CAPPED()),
        /** {@code min(rate t / 10000, 1 / sqrt(t))}. */
        WARM_UP(Ops.OPS_RATE_WARM_UP());

        private final int number;

        Rate(int number) {
            this.number = number;
        }
    }

    /** Whether a step is proportional to the weights. */
    public enum Scale {
        /** Proportional to the root of the mean of their squares. */
        OF_WEIGHTS,
        /** Not proportional. */
        NONE
    }

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is outside its range
     */
    public AdafactorStep {
        Numbers.notNegative("power", power);
        Numbers.notNegative("epsilon1", epsilon1);
        Numbers.notNegative("epsilon2", epsilon2);
        Numbers.positive("threshold", threshold);
        Numbers.betas(beta1, 0);
        Checks.given("rate", rate, "scale", scale);
    }

    /**
     * Enqueues the sums of rows and columns.
     *
     * @param step number of this step, from 1 on, INT32 [1]
     * @param gradientScale FLOAT32 [1]
     * @param skip INT32 [1]: where it is 1 nothing changes
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a range's memory was reused since the ranges were made
     */
    public void sums(AdafactorRanges ranges, Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        call(Ops.OPS_ADAFACTOR_SUMS(), ranges, step, gradientScale, skip, stream);
    }

    /**
     * Enqueues the factors of whole matrices, and the size of the step.
     *
     * @param step number of this step, from 1 on, INT32 [1]
     * @param gradientScale FLOAT32 [1]
     * @param skip INT32 [1]: where it is 1 nothing changes
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a matrix's memory was reused since the table was made
     */
    public void factors(AdafactorMatrices matrices, Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        call(Ops.OPS_ADAFACTOR_FACTORS(), matrices, step, gradientScale, skip, stream);
    }

    /**
     * Enqueues the sums of updates.
     *
     * @param step number of this step, from 1 on, INT32 [1]
     * @param gradientScale FLOAT32 [1]
     * @param skip INT32 [1]: where it is 1 nothing changes
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a range's memory was reused since the ranges were made
     */
    public void updates(AdafactorRanges ranges, Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        call(Ops.OPS_ADAFACTOR_UPDATES(), ranges, step, gradientScale, skip, stream);
    }

    /**
     * Enqueues the factor on updates of whole matrices.
     *
     * @param step number of this step, from 1 on, INT32 [1]
     * @param gradientScale FLOAT32 [1]
     * @param skip INT32 [1]: where it is 1 nothing changes
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a matrix's memory was reused since the table was made
     */
    public void clip(AdafactorMatrices matrices, Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        call(Ops.OPS_ADAFACTOR_CLIP(), matrices, step, gradientScale, skip, stream);
    }

    /**
     * Enqueues the update of weights, masters and means.
     *
     * @param step number of this step, from 1 on, INT32 [1]
     * @param gradientScale FLOAT32 [1]
     * @param skip INT32 [1]: where it is 1 nothing changes
     * @throws IllegalArgumentException when shapes, types or devices do not fit, or what is written shares memory
     * @throws IllegalStateException when a range's memory was reused since the ranges were made
     */
    public void step(AdafactorRanges ranges, Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        call(Ops.OPS_ADAFACTOR_STEP(), ranges, step, gradientScale, skip, stream);
    }

    private void call(
            int phase, AdafactorRanges ranges, Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        AdafactorRange first = Checks.given("ranges", ranges).first();
        if (beta1 > 0 && first.mean() == null) {
            throw new IllegalArgumentException(
                    "ranges: expected means, for beta1 is " + beta1 + ", got " + first.types());
        }
        int masters = RangeTable.masters(first.master());
        call(phase, ranges, step, gradientScale, skip, first.weight().dtype().code(), masters, stream);
    }

    private void call(
            int phase, AdafactorMatrices matrices, Tensor step, Tensor gradientScale, Tensor skip, Stream stream) {
        Checks.given("matrices", matrices);
        call(phase, matrices, step, gradientScale, skip, DType.FLOAT32.code(), Ops.OPS_MASTER_NONE(), stream);
    }

    private void call(
            int phase,
            RangeTable<?> table,
            Tensor step,
            Tensor gradientScale,
            Tensor skip,
            int weightType,
            int masters,
            Stream stream) {
        Checks.vector(stream, "step", step, DType.INT32, 1);
        Checks.vector(stream, "gradientScale", gradientScale, DType.FLOAT32, 1);
        Checks.vector(stream, "skip", skip, DType.INT32, 1);
        Status.ops(
                Ops.ops_adafactor(
                        table.address(step, gradientScale, skip, stream),
                        table.count(),
                        step.address(),
                        gradientScale.address(),
                        skip.address(),
                        phase,
                        power,
                        epsilon1,
                        epsilon2,
                        threshold,
                        beta1,
                        rate.number,
                        scale == Scale.OF_WEIGHTS ? 1 : 0,
                        weightType,
                        masters,
                        stream.handle()),
                "ops_adafactor");
    }
}

package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * Elements that a step of {@link Adam} updates with one learning rate and one weight decay.
 *
 * <p>Threading: the device's thread.
 *
 * @param gradient FLOAT32 [n]
 * @param weight floating-point numbers [n], FLOAT32 unless there is a master
 * @param mean m, FLOAT32 or BFLOAT16 [n]
 * @param square v, like mean
 * @param master w of weights of 16 bits. FLOAT32 [n]: w itself; the weight is w rounded to nearest even. BYTE [2 n], for BFLOAT16
 *     weights only: the low 16 bits of w; the weight is the upper half, rounded to nearest. Null for FLOAT32 weights
 * @param rate FLOAT32 [1], read when the step runs
 * @param weightDecay at least 0
 */
public record AdamRange(
        Tensor gradient,
        Tensor weight,
        Tensor mean,
        Tensor square,
        @Nullable Tensor master,
        Tensor rate,
        float weightDecay) {
    /**
     * Checks the number; the tensors are checked by {@link Adam#step} and {@link AdamRanges#of}.
     *
     * @throws IllegalArgumentException when the decay is negative, infinite or no number
     */
    public AdamRange {
        Checks.given("gradient", gradient);
        Checks.given("weight", weight);
        Checks.given("mean", mean);
        Checks.given("square", square);
        Checks.given("rate", rate);
        if (!(weightDecay >= 0) || Float.isInfinite(weightDecay)) {
            throw new IllegalArgumentException("weightDecay: expected a number of at least 0, got " + weightDecay);
        }
    }

    /** Checks the tensors. */
    void check(Stream stream) {
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
        Checks.vector(stream, "rate", rate, DType.FLOAT32, 1);
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

    /** Returns the kind of the master as {@code ops.h} numbers it. */
    int masters() {
        if (master == null) {
            return Ops.OPS_MASTER_NONE();
        }
        return master.dtype() == DType.FLOAT32 ? Ops.OPS_MASTER_FLOAT32() : Ops.OPS_MASTER_REMAINDER();
    }
}

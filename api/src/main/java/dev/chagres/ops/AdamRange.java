package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import org.jspecify.annotations.Nullable;

/**
 * Elements that a step of {@link Adam} updates with one learning rate and one weight decay.
 *
 * <p>Threading: the device's thread.
 *
 * @param gradient FLOAT32, BFLOAT16 or FLOAT16 [n]
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
        Checks.given("gradient", gradient, "weight", weight, "mean", mean, "square", square);
        Checks.given("rate", rate);
        Numbers.notNegative("weightDecay", weightDecay);
    }

    /** Checks the tensors. */
    void check(Stream stream) {
        Checks.floats(stream, "gradient", gradient);
        long count = gradient.count();
        Checks.vector(stream, "gradient", gradient, gradient.dtype(), count);
        Checks.floats(stream, "weight", weight);
        Checks.vector(stream, "weight", weight, master == null ? DType.FLOAT32 : weight.dtype(), count);
        Checks.floats(stream, "mean", mean);
        Checks.vector(stream, "mean", mean, mean.dtype() == DType.FLOAT16 ? DType.BFLOAT16 : mean.dtype(), count);
        Checks.vector(stream, "square", square, mean.dtype(), count);
        Checks.writable("weight", weight);
        Checks.written("mean", mean, "weight", weight);
        Checks.written("square", square, "weight", weight, "mean", mean);
        Checks.vector(stream, "rate", rate, DType.FLOAT32, 1);
        RangeTable.checkMaster(master, count, stream);
        if (master == null) {
            return;
        }
        boolean remainder = master.dtype() == DType.BYTE;
        if (weight.dtype() == DType.FLOAT32 || remainder && weight.dtype() != DType.BFLOAT16) {
            throw new IllegalArgumentException("weight: expected " + (remainder ? "BFLOAT16" : "FLOAT16 or BFLOAT16")
                    + " beside this master, got " + Checks.describe(weight));
        }
        Checks.apart("master", master, "weight", weight, "mean", mean);
        Checks.apart("master", master, "square", square);
    }
}

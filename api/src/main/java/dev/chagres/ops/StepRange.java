package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import org.jspecify.annotations.Nullable;

/**
 * Elements that an {@link OptimizerStep} updates with one learning rate and one weight decay.
 *
 * <p>Threading: the device's thread.
 *
 * @param gradient FLOAT32, BFLOAT16 or FLOAT16 [n]
 * @param weight floating-point numbers [n], FLOAT32 unless there is a master
 * @param master w of weights of 16 bits, as {@link AdamRange#master}; of schedule-free methods the average, FLOAT32 [n]. Else null
 * @param first momentum, mean, or what schedule-free methods call z
 * @param second mean square; null for methods with one state
 * @param rate FLOAT32 [1], read when the step runs
 * @param share of this step in the average, FLOAT32 [1]; null but for schedule-free methods
 * @param weightDecay at least 0
 */
public record StepRange(
        Tensor gradient,
        Tensor weight,
        @Nullable Tensor master,
        StepState first,
        @Nullable StepState second,
        Tensor rate,
        @Nullable Tensor share,
        float weightDecay) {
    /**
     * Checks the number; the tensors are checked by {@link StepRanges#of}.
     *
     * @throws IllegalArgumentException when the decay is negative, infinite or no number
     */
    public StepRange {
        Checks.given("gradient", gradient, "weight", weight, "first", first, "rate", rate);
        Numbers.notNegative("weightDecay", weightDecay);
    }

    /** Checks the tensors. */
    void check(Stream stream) {
        Checks.floats(stream, "gradient", gradient);
        long count = gradient.count();
        Checks.vector(stream, "gradient", gradient, gradient.dtype(), count);
        Checks.floats(stream, "weight", weight);
        Checks.vector(stream, "weight", weight, master == null ? DType.FLOAT32 : weight.dtype(), count);
        Checks.writable("weight", weight);
        first.check("first", stream, count);
        if (second != null) {
            second.check("second", stream, count);
        }
        Checks.vector(stream, "rate", rate, DType.FLOAT32, 1);
        if (share != null) {
            Checks.vector(stream, "share", share, DType.FLOAT32, 1);
        }
        RangeTable.checkMaster(master, count, stream);
    }

    /** Returns the types, in words. */
    String types() {
        return "gradients of " + gradient.dtype() + ", weights of " + weight.dtype() + ", states of "
                + first.values().dtype()
                + (second == null ? "" : " and " + second.values().dtype())
                + (master == null ? "" : ", masters of " + master.dtype()) + (share == null ? "" : ", a share");
    }
}

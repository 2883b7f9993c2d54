package dev.chagres.ops;

import dev.chagres.Tensor;
import dev.chagres.internal.Checks;
import org.jspecify.annotations.Nullable;

/**
 * Elements that a step of {@link Adam} updates with one learning rate and one weight decay.
 *
 * <p>Threading: the device's thread.
 *
 * @param gradient FLOAT32 [n]
 * @param weight floating-point numbers [n], FLOAT32 unless there is a master
 * @param mean FLOAT32 or BFLOAT16 [n]
 * @param square like mean
 * @param master for weights of 16 bits FLOAT32 [n], or for BFLOAT16 ones BYTE [2 n]; null for FLOAT32 weights
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
     * Checks the number; the tensors are checked by {@link AdamRanges#of}.
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
}

package dev.chagres.optim;

import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;

/**
 * Learning rate by step: a linear warm-up, then a decay.
 *
 * <p>With peak {@code r}, {@code w} warm-up and {@code n} steps in all: step {@code t} (from 1) has {@code r t / w} up to {@code w}, then
 * falls from {@code r} to {@code floor * r} at step {@code n}, linearly or along half a cosine, and stays there.
 *
 * <p>Threading: immutable.
 *
 * @param peak highest rate, not negative
 * @param warmUpSteps steps of the warm-up, not negative
 * @param totalSteps step at which the decay ends, at least {@code warmUpSteps}
 * @param decay form of the decay
 * @param floor final rate as a part of the peak, within [0, 1]
 */
public record LearningRateSchedule(float peak, int warmUpSteps, int totalSteps, Decay decay, float floor) {
    /** Forms of the decay. */
    public enum Decay {
        /** No decay. */
        CONSTANT,
        /** Linear. */
        LINEAR,
        /** Half a cosine. */
        COSINE
    }

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is out of its range
     */
    public LearningRateSchedule {
        Checks.given("decay", decay);
        Numbers.notNegative("peak", peak);
        if (warmUpSteps < 0 || totalSteps < warmUpSteps) {
            throw new IllegalArgumentException("warmUpSteps, totalSteps: expected 0 <= warmUpSteps <= totalSteps, got "
                    + warmUpSteps + " and " + totalSteps);
        }
        if (!(floor >= 0 && floor <= 1)) {
            throw new IllegalArgumentException("floor: expected a number within [0, 1], got " + floor);
        }
    }

    /**
     * Returns the rate of a step.
     *
     * @param step counted from 1
     * @throws IllegalArgumentException when it is below 1
     */
    public float at(int step) {
        Checks.atLeastOne("step", step);
        if (step <= warmUpSteps) {
            return (float) ((double) peak * step / warmUpSteps);
        }
        double part =
                totalSteps == warmUpSteps ? 1 : Math.min(1, (double) (step - warmUpSteps) / (totalSteps - warmUpSteps));
        double height = switch (decay) {
            case CONSTANT -> 1;
            case LINEAR -> 1 - part;
            case COSINE -> (1 + Math.cos(Math.PI * part)) / 2;
        };
        return decay == Decay.CONSTANT ? peak : (float) (peak * (floor + (1 - floor) * height));
    }
}

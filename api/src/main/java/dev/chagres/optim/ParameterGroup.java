package dev.chagres.optim;

import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.parameter.Parameter;
import java.util.function.Predicate;
import org.jspecify.annotations.Nullable;

/**
 * Parameters with their own learning rate or weight decay.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: the parameter groups of PyTorch's optimizers.
 *
 * @param name names the group in errors
 * @param members which parameters belong to it, except those of earlier groups
 * @param rateFactor on the learning rate, not negative
 * @param weightDecay of all members, not negative; null for the decay that they have without a group
 */
public record ParameterGroup(
        String name,
        Predicate<Parameter> members,
        float rateFactor,
        @Nullable Float weightDecay) {
    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when one is out of its range
     */
    public ParameterGroup {
        Checks.given("name", name, "members", members);
        Numbers.notNegative("rateFactor", rateFactor);
        if (weightDecay != null && (!(weightDecay >= 0) || Float.isInfinite(weightDecay))) {
            throw new IllegalArgumentException("weightDecay: expected a number of at least 0, got " + weightDecay);
        }
    }

    /** Returns a group with the rate and decay that its members have without it. */
    public static ParameterGroup of(String name, Predicate<Parameter> members) {
        return new ParameterGroup(name, members, 1, null);
    }

    /** Returns the name, the factor on the rate, and the group's own decay if it has one. */
    @Override
    public String toString() {
        return "ParameterGroup(name=" + name + ", rateFactor=" + rateFactor
                + (weightDecay == null ? "" : ", weightDecay=" + weightDecay) + ")";
    }

    /** Returns this with another factor on the learning rate. */
    public ParameterGroup withRateFactor(float newRateFactor) {
        return new ParameterGroup(name, members, newRateFactor, weightDecay);
    }

    /** Returns this with its own weight decay for all members. */
    public ParameterGroup withWeightDecay(float newWeightDecay) {
        return new ParameterGroup(name, members, rateFactor, newWeightDecay);
    }
}

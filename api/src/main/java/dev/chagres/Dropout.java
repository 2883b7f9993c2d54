package dev.chagres;

import org.jspecify.annotations.Nullable;

/**
 * Whether values are dropped, how often, and from which random numbers.
 *
 * <p>A dropped value becomes 0, a kept one is divided by {@code 1 - probability}. There is no silent default: say
 * {@link #none()} or {@link #of}.
 *
 * <p>Threading: immutable; its {@link Philox} belongs to the device's thread.
 *
 * @param probability of dropping a value, from 0 (inclusive) to 1 (exclusive)
 * @param generator the random numbers; null exactly when {@code probability} is 0
 */
public record Dropout(float probability, @Nullable Philox generator) {
    private static final Dropout NONE = new Dropout(0, null);

    /**
     * Checks the probability.
     *
     * @throws IllegalArgumentException when it is not within [0, 1), or has no generator though it is positive
     */
    public Dropout {
        if (!(probability >= 0 && probability < 1)) {
            throw new IllegalArgumentException("probability: expected 0 <= probability < 1, got " + probability);
        }
        if ((probability > 0) != (generator != null)) {
            throw new IllegalArgumentException(
                    "generator: expected one exactly when probability is positive, which is " + probability);
        }
    }

    /** Drops nothing. */
    public static Dropout none() {
        return NONE;
    }

    /** Drops with {@code probability}, drawing from {@code generator}. */
    public static Dropout of(float probability, Philox generator) {
        return probability == 0 ? NONE : new Dropout(probability, generator);
    }
}

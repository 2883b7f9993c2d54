package dev.chagres.layer;

import dev.chagres.pass.Pass;

/**
 * How often values are dropped: a dropped value becomes 0, a kept one is divided by {@code 1 - probability}.
 *
 * <p>There is no default: use {@link #none()} or {@link #of}. Which values are dropped follows from the pass: see {@link Pass#seed}. Only a
 * training pass drops.
 *
 * <p>Threading: immutable.
 *
 * @param probability of dropping a value, from 0 (inclusive) to 1 (exclusive)
 */
public record Dropout(float probability) {
    private static final Dropout NONE = new Dropout(0);

    /**
     * Checks the probability.
     *
     * @throws IllegalArgumentException when it is not within [0, 1)
     */
    public Dropout {
        if (!(probability >= 0 && probability < 1)) {
            throw new IllegalArgumentException("probability: expected 0 <= probability < 1, got " + probability);
        }
    }

    /** Drops nothing. */
    public static Dropout none() {
        return NONE;
    }

    /** Drops with {@code probability}. */
    public static Dropout of(float probability) {
        return new Dropout(probability);
    }

    /** Returns whether nothing is dropped. */
    public boolean isNone() {
        return probability == 0;
    }
}

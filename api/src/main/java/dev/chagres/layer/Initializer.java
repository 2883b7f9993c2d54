package dev.chagres.layer;

import java.util.SplittableRandom;

/**
 * How a parameter begins.
 *
 * <p>Threading: immutable.
 */
public sealed interface Initializer {
    /** Every element 0. */
    record Zeros() implements Initializer {}

    /** Every element 1. */
    record Ones() implements Initializer {}

    /**
     * Independent normal numbers around 0.
     *
     * @param standardDeviation their spread, not negative
     */
    record Normal(float standardDeviation) implements Initializer {
        /**
         * Checks the spread.
         *
         * @throws IllegalArgumentException when it is negative or no number
         */
        public Normal {
            if (!(standardDeviation >= 0) || Float.isInfinite(standardDeviation)) {
                throw new IllegalArgumentException(
                        "standardDeviation: expected a number of at least 0, got " + standardDeviation);
            }
        }
    }

    /** Every element 0. */
    static Initializer zeros() {
        return new Zeros();
    }

    /** Every element 1. */
    static Initializer ones() {
        return new Ones();
    }

    /** Independent normal numbers around 0. */
    static Initializer normal(float standardDeviation) {
        return new Normal(standardDeviation);
    }

    /** Fills {@code values}; equal seeds give equal numbers. */
    default void fill(float[] values, long seed) {
        switch (this) {
            case Zeros() -> java.util.Arrays.fill(values, 0);
            case Ones() -> java.util.Arrays.fill(values, 1);
            case Normal(float standardDeviation) -> {
                SplittableRandom random = new SplittableRandom(seed);
                for (int i = 0; i < values.length; i++) {
                    values[i] = (float) (standardDeviation * random.nextGaussian());
                }
            }
        }
    }
}

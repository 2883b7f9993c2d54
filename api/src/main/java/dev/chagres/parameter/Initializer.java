package dev.chagres.parameter;

import dev.chagres.internal.Numbers;

/**
 * The initial values of a parameter.
 *
 * <p>Normal and uniform numbers are drawn by counter from the seed, the parameter's name and the element's number: any part of any
 * parameter can be drawn alone, in any order and by any thread, and has the same bits on every machine.
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
            Numbers.notNegative("standardDeviation", standardDeviation);
        }
    }

    /**
     * Independent uniform numbers from {@code -bound} to below {@code bound}.
     *
     * @param bound not negative
     */
    record Uniform(float bound) implements Initializer {
        /**
         * Checks the bound.
         *
         * @throws IllegalArgumentException when it is negative or no number
         */
        public Uniform {
            Numbers.notNegative("bound", bound);
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

    /** Independent uniform numbers from {@code -bound} to below {@code bound}. */
    static Initializer uniform(float bound) {
        return new Uniform(bound);
    }

    /**
     * Returns one element.
     *
     * @param key of the parameter: {@link CounterRandom#key}
     * @param element its number, row-major
     */
    default float value(long key, long element) {
        return switch (this) {
            case Zeros() -> 0;
            case Ones() -> 1;
            case Normal(float standardDeviation) -> new CounterRandom.Normals(standardDeviation, key).value(element);
            case Uniform(float bound) -> (float) (bound * (2 * CounterRandom.uniform(key, element) - 1));
        };
    }
}

package dev.chagres.internal;

/**
 * Checks of numbers that configure something, each of which returns its number: a message names the argument, what was expected and what came.
 *
 * <p>Threading: any thread.
 */
public final class Numbers {
    private Numbers() {}

    /** Checks that {@code value} is finite. */
    public static float finite(String argument, float value) {
        if (!Float.isFinite(value)) {
            throw new IllegalArgumentException(argument + ": expected a finite number, got " + value);
        }
        return value;
    }

    /** Checks that {@code value} is finite and at least 0. */
    public static float notNegative(String argument, float value) {
        if (!(value >= 0) || Float.isInfinite(value)) {
            throw new IllegalArgumentException(argument + ": expected a number of at least 0, got " + value);
        }
        return value;
    }

    /** Checks that {@code value} is finite and above 0. */
    public static float positive(String argument, float value) {
        if (!(value > 0) || Float.isInfinite(value)) {
            throw new IllegalArgumentException(argument + ": expected a positive number, got " + value);
        }
        return value;
    }

    /** Checks that two betas of a method of optimization are shares. */
    public static void betas(float beta1, float beta2) {
        if (!(beta1 >= 0 && beta1 < 1) || !(beta2 >= 0 && beta2 < 1)) {
            throw new IllegalArgumentException(
                    "beta1, beta2: expected numbers within [0, 1), got " + beta1 + " and " + beta2);
        }
    }

    /** Checks that {@code value} is at least 0. */
    public static long atLeastZero(String argument, long value) {
        if (value < 0) {
            throw new IllegalArgumentException(argument + ": expected at least 0, got " + value);
        }
        return value;
    }

    /** Checks that {@code value} is from {@code least} to {@code most}. */
    public static long within(String argument, long value, long least, long most) {
        if (value < least || value > most) {
            throw new IllegalArgumentException(argument + ": expected " + least + " to " + most + ", got " + value);
        }
        return value;
    }

    /** Checks that {@code value} is above 0 and below 1. */
    public static float share(String argument, float value) {
        if (!(value > 0 && value < 1)) {
            throw new IllegalArgumentException(argument + ": expected a number above 0 and below 1, got " + value);
        }
        return value;
    }
}

package dev.chagres.layer;

import dev.chagres.internal.Checks;

/**
 * Which norm, over how many columns.
 *
 * <p>Threading: immutable.
 *
 * @param kind layer norm or RMS norm
 * @param size columns H
 * @param epsilon added under the root, positive
 */
public record NormConfig(Kind kind, long size, float epsilon) {
    /** TE's default. */
    private static final float EPSILON = 1e-5f;

    /** Kinds of norm. */
    public enum Kind {
        /** With mean and bias. */
        LAYER_NORM,
        /** Without. */
        RMS_NORM
    }

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when the size is not positive, or epsilon is not
     */
    public NormConfig {
        Checks.given("kind", kind);
        if (size < 1) {
            throw new IllegalArgumentException("size: expected at least 1, got " + size);
        }
        if (!(epsilon > 0) || Float.isInfinite(epsilon)) {
            throw new IllegalArgumentException("epsilon: expected a positive number, got " + epsilon);
        }
    }

    /** Layer norm with TE's epsilon, 1e-5. */
    public static NormConfig layerNorm(long size) {
        return new NormConfig(Kind.LAYER_NORM, size, EPSILON);
    }

    /** RMS norm with TE's epsilon, 1e-5. */
    public static NormConfig rmsNorm(long size) {
        return new NormConfig(Kind.RMS_NORM, size, EPSILON);
    }

    /** Returns the same with another epsilon. */
    public NormConfig withEpsilon(float newEpsilon) {
        return new NormConfig(kind, size, newEpsilon);
    }
}

package dev.chagres.ops;

import dev.chagres.internal.Checks;
import dev.chagres.te.Normalization.Gamma;

/**
 * Which norm {@link ResidualNorm} computes: {@code y = (h - m) i g + beta}, with {@code i = 1 / sqrt(mean((h - m)^2) + epsilon)}.
 *
 * <p>Threading: immutable.
 *
 * @param kind whether m is the row's mean, and whether there is a beta
 * @param gamma whether g is gamma or 1 + gamma
 * @param epsilon above 0
 */
public record NormFunction(Kind kind, Gamma gamma, float epsilon) {
    /** Kinds of norm. */
    public enum Kind {
        /** m is the mean of the row; beta is added. */
        LAYER_NORM,
        /** m is 0; nothing is added. */
        RMS_NORM
    }

    /**
     * Checks epsilon.
     *
     * @throws IllegalArgumentException when epsilon is no number above 0
     */
    public NormFunction {
        Checks.given("kind", kind, "gamma", gamma);
        if (!(epsilon > 0) || Float.isInfinite(epsilon)) {
            throw new IllegalArgumentException("epsilon: expected a number above 0, got " + epsilon);
        }
    }
}

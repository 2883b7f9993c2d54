package dev.chagres.cudnn;

import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;

/**
 * Numbers of a pointwise operation; a mode reads those that its formula has.
 *
 * <p>Threading: immutable.
 *
 * @param clip of {@link PointwiseMode#RELU_FWD} and its gradient
 * @param eluAlpha alpha of {@link PointwiseMode#ELU_FWD} and its gradient
 * @param beta of {@link PointwiseMode#SOFTPLUS_FWD}, {@link PointwiseMode#SWISH_FWD} and their gradients
 * @param axis of {@link PointwiseMode#GEN_INDEX}, from 0
 * @param alpha1 a factor of x, for modes that are no gradients
 * @param alpha2 a factor of b, for modes that are no gradients
 */
public record PointwiseConfig(Clip clip, double eluAlpha, double beta, int axis, float alpha1, float alpha2) {
    /** The formulas without clips, with factors of 1. */
    public static final PointwiseConfig DEFAULT = new PointwiseConfig(Clip.NONE, 1, 1, 0, 1, 1);

    /**
     * Bounds of a ReLU: y = lower + slope (x - lower) below the lower one, upper above the upper one, else x.
     *
     * <p>Threading: immutable.
     *
     * @param lower 0 for a plain ReLU
     * @param upper infinity for none
     * @param slope 0 for a plain ReLU
     */
    public record Clip(double lower, double upper, double slope) {
        /** A plain ReLU. */
        public static final Clip NONE = new Clip(0, Double.POSITIVE_INFINITY, 0);

        /**
         * Checks the bounds.
         *
         * @throws IllegalArgumentException when the lower one exceeds the upper one, or a number is NaN
         */
        public Clip {
            if (!(lower <= upper) || Double.isNaN(slope)) {
                throw new IllegalArgumentException(
                        "clip: expected lower <= upper and a slope, got " + lower + ", " + upper + " and " + slope);
            }
        }
    }

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when the axis is negative, beta is 0, or a number is not finite
     */
    public PointwiseConfig {
        Checks.given("clip", clip);
        Numbers.atLeastZero("axis", axis);
        if (!Double.isFinite(eluAlpha) || !Double.isFinite(beta) || beta == 0) {
            throw new IllegalArgumentException(
                    "eluAlpha, beta: expected finite numbers, beta not 0, got " + eluAlpha + " and " + beta);
        }
        if (!Float.isFinite(alpha1) || !Float.isFinite(alpha2)) {
            throw new IllegalArgumentException(
                    "alpha1, alpha2: expected finite numbers, got " + alpha1 + " and " + alpha2);
        }
    }

    /** Returns the same with other bounds. */
    public PointwiseConfig withClip(Clip newClip) {
        return new PointwiseConfig(newClip, eluAlpha, beta, axis, alpha1, alpha2);
    }

    /** Returns the same with another alpha of ELU. */
    public PointwiseConfig withEluAlpha(double newAlpha) {
        return new PointwiseConfig(clip, newAlpha, beta, axis, alpha1, alpha2);
    }

    /** Returns the same with another beta. */
    public PointwiseConfig withBeta(double newBeta) {
        return new PointwiseConfig(clip, eluAlpha, newBeta, axis, alpha1, alpha2);
    }

    /** Returns the same with another axis. */
    public PointwiseConfig withAxis(int newAxis) {
        return new PointwiseConfig(clip, eluAlpha, beta, newAxis, alpha1, alpha2);
    }

    /** Returns the same with other factors of x and b. */
    public PointwiseConfig withFactors(float newAlpha1, float newAlpha2) {
        return new PointwiseConfig(clip, eluAlpha, beta, axis, newAlpha1, newAlpha2);
    }
}

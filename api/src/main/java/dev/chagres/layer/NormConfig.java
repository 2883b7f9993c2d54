package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.internal.Numbers;
import dev.chagres.ops.NormFunction;
import dev.chagres.parameter.Initializer;
import dev.chagres.pass.LayerSummary;
import dev.chagres.te.Normalization.Gamma;

/**
 * Which norm, over how many columns.
 *
 * <p>Threading: immutable.
 *
 * @param kind layer norm or RMS norm
 * @param size columns H
 * @param epsilon added under the root, positive
 * @param gamma whether the factor of a column is its weight, initially 1, or 1 + its weight, initially 0, so that weight decay pulls
 *     factors towards 1
 */
public record NormConfig(Kind kind, long size, float epsilon, Gamma gamma) {
    /** TE's default. */
    private static final float EPSILON = 1e-5f;

    /** Kinds of norm. */
    public enum Kind {
        /** With mean and bias. */
        LAYER_NORM,
        /** Without mean and bias. */
        RMS_NORM
    }

    /**
     * Checks the numbers.
     *
     * @throws IllegalArgumentException when the size is not positive, or epsilon is not
     */
    public NormConfig {
        Checks.given("kind", kind, "gamma", gamma);
        Checks.atLeastOne("size", size);
        Numbers.positive("epsilon", epsilon);
    }

    /**
     * Makes a norm whose weights are the factors.
     *
     * @throws IllegalArgumentException when the size is not positive, or epsilon is not
     */
    public NormConfig(Kind kind, long size, float epsilon) {
        this(kind, size, epsilon, Gamma.PLAIN);
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
        return new NormConfig(kind, size, newEpsilon, gamma);
    }

    /** Returns the same with weights that are or are not centred on zero. */
    public NormConfig withGamma(Gamma newGamma) {
        return new NormConfig(kind, size, epsilon, newGamma);
    }

    /** Returns the formula of {@code ops_residual_norm}. */
    NormFunction function() {
        NormFunction.Kind function =
                kind == Kind.LAYER_NORM ? NormFunction.Kind.LAYER_NORM : NormFunction.Kind.RMS_NORM;
        return new NormFunction(function, gamma, epsilon);
    }

    /** Returns the initializer of the weights, with which all factors are 1. */
    Initializer initializer() {
        return gamma == Gamma.PLAIN ? Initializer.ones() : Initializer.zeros();
    }

    /** Returns the size, and options that differ from their defaults. */
    LayerSummary summary() {
        NormConfig usual = layerNorm(size);
        return new LayerSummary()
                .with("size", size)
                .withUnlessUsual("epsilon", epsilon, usual.epsilon)
                .withUnlessUsual("gamma", gamma, usual.gamma);
    }
}

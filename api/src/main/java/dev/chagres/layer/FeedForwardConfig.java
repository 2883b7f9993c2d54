package dev.chagres.layer;

import dev.chagres.internal.Checks;

/**
 * The feed-forward half of a layer.
 *
 * <p>Threading: immutable.
 *
 * @param norm of the input
 * @param inner columns F between the two products
 * @param activation between them
 * @param recomputation what backward computes again instead of keeping it
 * @param inputInitializer of the first weight
 * @param outputInitializer of the second weight
 */
public record FeedForwardConfig(
        NormConfig norm,
        long inner,
        Activation activation,
        Recomputation recomputation,
        Initializer inputInitializer,
        Initializer outputInitializer) {
    /** Activations. */
    public enum Activation {
        /** {@code x / 2 (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))}: TE's GELU, within 1e-3 of the exact one. */
        GELU
    }

    /** What backward computes again. */
    public enum Recomputation {
        /** Nothing. */
        NONE,
        /** The activation's output, [T, F]: one elementwise kernel for a quarter of a layer's memory. */
        ACTIVATION
    }

    /**
     * Checks the sizes.
     *
     * @throws IllegalArgumentException when {@code inner} is not positive
     */
    public FeedForwardConfig {
        Checks.given("norm", norm);
        Checks.given("activation", activation);
        Checks.given("recomputation", recomputation);
        Checks.given("inputInitializer", inputInitializer);
        Checks.given("outputInitializer", outputInitializer);
        if (inner < 1) {
            throw new IllegalArgumentException("inner: expected at least 1, got " + inner);
        }
    }

    /**
     * Layer norm, GELU and four times as many columns inside; weights normal with deviation 0.02, as ESM-2 and BERT begin;
     * backward computes the activation again ({@link Recomputation#ACTIVATION}).
     */
    public static FeedForwardConfig gelu(long hidden) {
        return new FeedForwardConfig(
                NormConfig.layerNorm(hidden),
                4 * hidden,
                Activation.GELU,
                Recomputation.ACTIVATION,
                Initializer.normal(0.02f),
                Initializer.normal(0.02f));
    }

    /** Returns the input's columns H. */
    public long hidden() {
        return norm.size();
    }
}

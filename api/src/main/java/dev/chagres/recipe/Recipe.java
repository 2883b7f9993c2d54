package dev.chagres.recipe;

import dev.chagres.te.Gemm.Accumulator;

/**
 * How products are computed in eight bits.
 *
 * <p>{@link DelayedScaling} scales by what was largest in the steps before; {@link Float8CurrentScaling} by what is largest
 * now, a pass over the data more; {@link Float8BlockScaling} has a scale for every 128 values or 128 x 128 block. The other
 * two need a GPU of compute capability 10.0.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: TE's {@code Recipe}.
 */
public sealed interface Recipe
        permits DelayedScaling, Float8CurrentScaling, Float8BlockScaling, MXFP8BlockScaling, NVFP4BlockScaling {
    /** The three products of a linear layer. */
    enum Product {
        /** {@code y = x W^T}. */
        FORWARD,
        /** {@code dx = dy W}. */
        INPUT_GRADIENT,
        /** {@code dW = dy^T x}. */
        WEIGHT_GRADIENT
    }

    /** Returns which eight-bit type holds what. */
    Format format();

    /** Returns in which precision backward computes. */
    BackwardOverride backwardOverride();

    /** Returns how the sums of {@code product} are carried. */
    Accumulator accumulator(Product product);

    /** Returns the smallest compute capability that computes it, such as {@code "9.0"}. */
    default String computeCapability() {
        return "9.0";
    }
}

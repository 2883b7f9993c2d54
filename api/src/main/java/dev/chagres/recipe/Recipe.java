package dev.chagres.recipe;

import dev.chagres.internal.Checks;
import dev.chagres.te.Gemm.Accumulator;

/**
 * How products are computed in eight bits.
 *
 * <p>{@link DelayedScaling} scales by amaxes of earlier steps; {@link Float8CurrentScaling} by the tensor's own amax, which takes one more
 * pass over the data; {@link Float8BlockScaling} has a scale for every 128 values or 128 x 128 block. The other two need a GPU of compute
 * capability 10.0.
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

    /** Returns the eight-bit types. */
    Format format();

    /** Returns in which precision backward computes: NONE where the recipe has no other, as in TE. */
    default BackwardOverride backwardOverride() {
        return BackwardOverride.NONE;
    }

    /** Returns the accumulator of {@code product}: SPLIT where the recipe has no other. */
    default Accumulator accumulator(Product product) {
        return Accumulator.SPLIT;
    }

    /** Returns in which precision attention is computed. */
    default AttentionPrecision attention() {
        return AttentionPrecision.HIGH_PRECISION;
    }

    /**
     * Returns the same with attention in another precision.
     *
     * @throws IllegalArgumentException when it is not HIGH_PRECISION: only {@link DelayedScaling} computes attention in eight bits on a GPU
     *     of compute capability 9.0
     */
    default Recipe withAttention(AttentionPrecision newAttention) {
        if (Checks.given("attention", newAttention) != AttentionPrecision.HIGH_PRECISION) {
            throw new IllegalArgumentException("attention: expected HIGH_PRECISION, for "
                    + getClass().getSimpleName() + " computes attention in eight bits only on compute capability 10.0"
                    + " (Blackwell), got " + newAttention + "; use DelayedScaling");
        }
        return this;
    }

    /** Returns the smallest compute capability that supports it, such as {@code "9.0"}. */
    default String computeCapability() {
        return "9.0";
    }
}

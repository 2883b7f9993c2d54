package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.parameter.Initializer;

/**
 * Attention of one stream over another. {@link #of} has the usual values; the {@code with} methods change one each.
 *
 * <p>Threading: immutable.
 *
 * @param norm of the input
 * @param attention heads and mask
 * @param memoryColumns columns M of the tensor from which keys and values are computed
 * @param bias of the four products
 * @param initializer of their weights
 */
public record CrossAttentionConfig(
        NormConfig norm, AttentionConfig attention, long memoryColumns, Bias bias, Initializer initializer) {
    private static final float DEVIATION = 0.02f;

    /**
     * Checks the sizes.
     *
     * @throws IllegalArgumentException when {@code memoryColumns} is not positive
     */
    public CrossAttentionConfig {
        Checks.given("norm", norm, "attention", attention, "bias", bias, "initializer", initializer);
        Checks.atLeastOne("memoryColumns", memoryColumns);
    }

    /**
     * Layer norm, equally many columns on both sides, biases, weights from a normal distribution with standard deviation 0.02.
     *
     * @param hidden columns H
     */
    public static CrossAttentionConfig of(long hidden, AttentionConfig attention) {
        return new CrossAttentionConfig(
                NormConfig.layerNorm(hidden), attention, hidden, Bias.PRESENT, Initializer.normal(DEVIATION));
    }

    /** Returns the same with another norm, which may have another number of columns H. */
    public CrossAttentionConfig withNorm(NormConfig newNorm) {
        return new CrossAttentionConfig(newNorm, attention, memoryColumns, bias, initializer);
    }

    /** Returns the same with other attention. */
    public CrossAttentionConfig withAttention(AttentionConfig newAttention) {
        return new CrossAttentionConfig(norm, newAttention, memoryColumns, bias, initializer);
    }

    /** Returns the same over a stream of {@code newColumns} columns. */
    public CrossAttentionConfig withMemoryColumns(long newColumns) {
        return new CrossAttentionConfig(norm, attention, newColumns, bias, initializer);
    }

    /** Returns the same with or without biases. */
    public CrossAttentionConfig withBias(Bias newBias) {
        return new CrossAttentionConfig(norm, attention, memoryColumns, newBias, initializer);
    }

    /** Returns the same with another initializer of the weights. */
    public CrossAttentionConfig withInitializer(Initializer newInitializer) {
        return new CrossAttentionConfig(norm, attention, memoryColumns, bias, newInitializer);
    }

    /** Returns the input's columns H. */
    public long hidden() {
        return norm.size();
    }
}

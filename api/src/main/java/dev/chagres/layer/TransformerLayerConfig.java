package dev.chagres.layer;

import dev.chagres.Dropout;
import dev.chagres.attention.AttentionConfig;
import dev.chagres.internal.Checks;

/**
 * One transformer layer: a pre-norm encoder.
 *
 * <p>Threading: immutable.
 *
 * @param norm of the attention's input
 * @param attention heads, mask and dropout of attention weights
 * @param feedForward second half
 * @param hiddenDropout of what each half adds to the residual
 * @param initializer of the attention's weights
 */
public record TransformerLayerConfig(
        NormConfig norm,
        AttentionConfig attention,
        FeedForwardConfig feedForward,
        Dropout hiddenDropout,
        Initializer initializer) {
    /**
     * Checks that both halves have the same width.
     *
     * @throws IllegalArgumentException when they do not
     */
    public TransformerLayerConfig {
        Checks.given("norm", norm);
        Checks.given("attention", attention);
        Checks.given("feedForward", feedForward);
        Checks.given("hiddenDropout", hiddenDropout);
        Checks.given("initializer", initializer);
        if (feedForward.hidden() != norm.size()) {
            throw new IllegalArgumentException(
                    "feedForward: expected " + norm.size() + " columns as the norm, got " + feedForward.hidden());
        }
    }

    /**
     * Layer norm, GELU, four times as many columns inside.
     *
     * @param hidden columns H
     */
    public static TransformerLayerConfig encoder(long hidden, AttentionConfig attention, Dropout hiddenDropout) {
        return new TransformerLayerConfig(
                NormConfig.layerNorm(hidden),
                attention,
                FeedForwardConfig.gelu(hidden),
                hiddenDropout,
                Initializer.normal(0.02f));
    }

    /** Returns the columns H. */
    public long hidden() {
        return norm.size();
    }
}

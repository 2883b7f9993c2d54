package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;

/**
 * Attention of one stream over another with its norm and projections: {@code y = attention(norm(x) Wq^T + bq, m Wk^T + bk,
 * m Wv^T + bv) Wo^T + bo}, where m is what a {@link FanOut} holds, such as an encoder's output.
 *
 * <p>The pass's sequences name both sides: {@code pass.sequences(decoderSequences.withKeys(encoderSequences))}.
 *
 * <p>Parameters: {@code norm}; {@code query} [h d, H], {@code key} and {@code value} [g d, M], {@code projection} [H, h d].
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Vaswani et al., Attention is all you need (2017); TE's {@code MultiheadAttention} with
 * {@code attention_type="cross"}.
 */
public final class CrossAttention extends PreNorm {
    /**
     * Declares the parameters in {@code plan}.
     *
     * @param norm of the input
     * @param config heads and what they see
     * @param memory what keys and values are made of
     * @param memoryColumns its columns M
     * @param initializer of all weights
     */
    public CrossAttention(
            NormConfig norm,
            AttentionConfig config,
            FanOut memory,
            long memoryColumns,
            Initializer initializer,
            ModelPlan plan) {
        Checks.given("norm", norm);
        Checks.given("config", config);
        Checks.given("memory", memory);
        Checks.given("initializer", initializer);
        Checks.given("plan", plan);
        this(
                NormLayer.of(norm, plan.child("norm")),
                new CrossAttentionBranch(norm.size(), config, memory, memoryColumns, initializer, plan),
                plan);
    }

    private CrossAttention(NormLayer norm, CrossAttentionBranch attention, ModelPlan plan) {
        super(plan.name(), norm, attention, attention.query().products());
    }
}

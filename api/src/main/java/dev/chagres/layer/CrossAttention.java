package dev.chagres.layer;

import dev.chagres.attention.Alibi;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.internal.Checks;
import dev.chagres.parameter.ModelPlan;

/**
 * Attention of one stream over another with its norm and projections: {@code y = attention(norm(x) Wq^T + bq, m Wk^T + bk, m Wv^T + bv)
 * Wo^T + bo}, where m is the tensor of a {@link SharedInput}, such as an encoder's output; without bias there are no b.
 *
 * <p>The pass's sequences name both sides: {@code pass.sequences(decoderSequences.withKeys(encoderSequences))}.
 *
 * <p>Parameters: {@code norm}; {@code query} [h d, H]; {@code key_value} [2 g d, M], the rows of Wk and then those of Wv; {@code
 * projection} [H, h d]; with {@link AttentionConfig#qkNorm} {@code q_norm} and {@code k_norm} [d].
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Vaswani et al., Attention is all you need (2017); TE's {@code MultiheadAttention} with
 * {@code attention_type="cross"}.
 */
public final class CrossAttention extends NormedBranch {
    private final CrossAttentionBranch attention;

    /**
     * Declares the parameters in {@code plan}.
     *
     * @param memory holds m, from which keys and values are computed
     */
    public CrossAttention(CrossAttentionConfig config, SharedInput memory, ModelPlan plan) {
        Checks.given("config", config);
        Checks.given("memory", memory);
        Checks.given("plan", plan);
        this(
                NormLayer.of(config.norm(), plan.child("norm").forTokenParts()),
                new CrossAttentionBranch(config, memory, plan),
                plan);
    }

    private CrossAttention(NormLayer norm, CrossAttentionBranch attention, ModelPlan plan) {
        super(plan.name(), norm, attention, attention.query(), attention.projection());
        this.attention = attention;
    }

    /** Returns the product that computes queries. */
    Linear query() {
        return attention.query();
    }

    /**
     * Rotates queries by their positions, and keys by theirs, in forward calls from now on; backward undoes the rotation of its own
     * forward. In TE, a decoder layer applies the rotation of its self-attention here, too.
     *
     * @throws IllegalArgumentException when its head dimension is another
     */
    public void rotate(RotaryEmbedding rotary) {
        attention.rotate(rotary);
    }

    /**
     * Adds linear biases to the scores of forward calls from now on.
     *
     * @throws IllegalArgumentException when it has slopes of another number of heads than all ranks have together
     */
    public void alibi(Alibi alibi) {
        attention.heads().alibi(alibi);
    }

    /**
     * Adds a bias to the scores of forward calls from now on: the tensor that {@code biases} was given in the same pass, with the shape
     * that {@link DotProductAttention#bias} says.
     */
    public void bias(SharedInput biases) {
        attention.heads().bias(biases);
    }

    /**
     * Adds a bias to the scores of forward calls from now on as {@link #bias} does, but before the scale, {@code s = scale (q_i . k_j +
     * bias)}: TE's {@code pre_scale_bias}. It replaces a bias that was set before.
     *
     * @throws IllegalArgumentException where heads have an L2 norm, or context-parallel ranks attend with their own queries alone
     */
    public void preScaleBias(SharedInput biases) {
        attention.preScaleBias(biases);
    }
}

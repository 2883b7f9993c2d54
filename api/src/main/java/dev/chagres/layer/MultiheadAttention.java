package dev.chagres.layer;

import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.internal.Checks;
import dev.chagres.model.Initializer;
import dev.chagres.model.ModelPlan;
import org.jspecify.annotations.Nullable;

/**
 * Self-attention with its norm and projections: {@code y = attention(rotate(norm(x) Wqkv^T + bqkv)) Wo^T + bo}, over {@link
 * Pass#sequences()}; without bias there are no bqkv and bo.
 *
 * <p>Parameters: {@code qkv.norm}, unless made {@link #withoutNorm}; {@code qkv.linear} [(h + 2 g) d, H] with the rows of the h
 * heads of the query, then those of the g heads of the key ({@link AttentionConfig#keyHeads}: grouped or multi-query attention
 * where they are fewer), then the value's; {@code projection} [H, h d]; with {@link AttentionConfig#qkNorm} {@code q_norm} and
 * {@code k_norm} [d].
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Vaswani et al., Attention is all you need (2017); TE's {@code MultiheadAttention}.
 */
public final class MultiheadAttention extends PreNorm {
    private final AttentionBranch attention;

    /**
     * Declares the parameters in {@code plan}, with biases.
     *
     * @param norm of the input
     * @param config heads and what they see
     * @param initializer of both weights
     */
    public MultiheadAttention(NormConfig norm, AttentionConfig config, Initializer initializer, ModelPlan plan) {
        this(norm, config, Bias.PRESENT, initializer, plan);
    }

    /**
     * Declares the parameters in {@code plan}.
     *
     * @param norm of the input
     * @param config heads and what they see
     * @param bias of both products
     * @param initializer of both weights
     */
    public MultiheadAttention(
            NormConfig norm, AttentionConfig config, Bias bias, Initializer initializer, ModelPlan plan) {
        Checks.given("norm", norm);
        Checks.given("config", config);
        Checks.given("bias", bias);
        Checks.given("initializer", initializer);
        Checks.given("plan", plan);
        this(
                NormLayer.of(norm, plan.child("qkv").child("norm")),
                new AttentionBranch(norm.size(), config, bias, initializer, plan),
                plan);
    }

    /**
     * Makes one that has no norm: {@code y = attention(rotate(x Wqkv^T + bqkv)) Wo^T + bo}.
     *
     * @param hidden columns H of the input
     * @param config heads and what they see
     * @param bias of both products
     * @param initializer of both weights
     * @throws IllegalArgumentException when {@code hidden} is not positive
     */
    public static MultiheadAttention withoutNorm(
            long hidden, AttentionConfig config, Bias bias, Initializer initializer, ModelPlan plan) {
        Checks.given("config", config);
        Checks.given("bias", bias);
        Checks.given("initializer", initializer);
        Checks.given("plan", plan);
        return new MultiheadAttention(null, new AttentionBranch(hidden, config, bias, initializer, plan), plan);
    }

    private MultiheadAttention(@Nullable NormLayer norm, AttentionBranch attention, ModelPlan plan) {
        super(plan.name(), norm, attention, attention.qkv().products());
        this.attention = attention;
    }

    /**
     * Rotates query and key by their positions in forward calls from now on; backward undoes the rotation of its own forward.
     *
     * @throws IllegalArgumentException when its head dimension is another
     */
    public void rotate(RotaryEmbedding rotary) {
        attention.rotate(rotary);
    }

    /** Returns the product that makes query, key and value. */
    public Linear qkv() {
        return attention.qkv();
    }

    /** Returns the last product. */
    public Linear projection() {
        return attention.projection();
    }
}

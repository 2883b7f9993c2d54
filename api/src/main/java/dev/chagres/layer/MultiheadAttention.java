package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameter;
import dev.chagres.pass.Pass;
import org.jspecify.annotations.Nullable;

/**
 * Self-attention with its norm and projections: {@code y = attention(rotate(norm(x) Wqkv^T + bqkv)) Wo^T + bo}, over {@link
 * Pass#sequences()}; without bias there are no bqkv and bo. It sees the queries' tokens alone: keys that {@link
 * dev.chagres.attention.Sequences#withKeys} gave are those of the decoder's {@link CrossAttention}.
 *
 * <p>Parameters: {@code qkv.norm}, unless made {@link #withoutNorm}; {@code qkv.linear} [(h + 2 g) d, H] with the rows of the h query
 * heads, then those of the g key heads ({@link AttentionConfig#keyHeads}: fewer in grouped or multi-query attention), then those of the g
 * value heads; {@code projection} [H, h d]; with {@link AttentionConfig#qkNorm} {@code q_norm} and {@code k_norm} [d]; with a learnable
 * softmax {@code softmax_offset} [h].
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Vaswani et al., Attention is all you need (2017); TE's {@code MultiheadAttention}.
 */
public final class MultiheadAttention extends AttentionLayer {
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
        this(norm, config, bias, bias, initializer, plan);
    }

    /**
     * Declares the parameters in {@code plan}, with a bias in one product alone, or in both, or in none. Qwen 2 has one in the first.
     *
     * @param norm of the input
     * @param config heads and what they see
     * @param bias of the product of query, key and value
     * @param projectionBias of the last product
     * @param initializer of both weights
     */
    public MultiheadAttention(
            NormConfig norm,
            AttentionConfig config,
            Bias bias,
            Bias projectionBias,
            Initializer initializer,
            ModelPlan plan) {
        Checks.given("norm", norm, "config", config, "bias", bias, "projectionBias", projectionBias);
        Checks.given("initializer", initializer, "plan", plan);
        this(norm, norm.size(), config, bias, projectionBias, initializer, plan);
    }

    /**
     * Makes attention without a norm: {@code y = attention(rotate(x Wqkv^T + bqkv)) Wo^T + bo}.
     *
     * @param hidden columns H of the input
     * @param config heads and what they see
     * @param bias of both products
     * @param initializer of both weights
     * @throws IllegalArgumentException when {@code hidden} is not positive
     */
    public static MultiheadAttention withoutNorm(
            long hidden, AttentionConfig config, Bias bias, Initializer initializer, ModelPlan plan) {

        Checks.given("config", config, "bias", bias, "initializer", initializer, "plan", plan);
        return new MultiheadAttention(null, hidden, config, bias, bias, initializer, plan);
    }

    /** Makes attention of {@code hidden} columns, without a norm where that is null. */
    MultiheadAttention(
            @Nullable NormConfig norm,
            long hidden,
            AttentionConfig config,
            Bias bias,
            Bias projectionBias,
            Initializer initializer,
            ModelPlan plan) {
        NormLayer first = norm == null
                ? null
                : NormLayer.of(norm, plan.child("qkv").child("norm").forTokenParts());
        AttentionBranch branch = new AttentionBranch(hidden, config, bias, projectionBias, initializer, plan);
        super(plan.name(), first, branch, branch.qkv);
        attention = branch;
    }

    /** Returns the learnable sinks of the softmax, FLOAT32 [h]; null where there are none. */
    public @Nullable Parameter sinks() {
        return attention.attention().sinks();
    }

    /** Returns the product that computes query, key and value. */
    public Linear qkv() {
        return attention.qkv;
    }

    /** Returns the last product. */
    public Linear projection() {
        return attention.projection();
    }
}

package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.model.Initializer;
import org.jspecify.annotations.Nullable;

/**
 * One transformer layer. {@link #encoder} and {@link #decoder} have the usual values; the {@code with} methods change one each.
 *
 * <p>Threading: immutable.
 *
 * @param norm of self-attention's input, or of the last sum
 * @param attention heads, mask and dropout of self-attention
 * @param crossAttention between self-attention and MLP; null where there is none
 * @param mlp last branch
 * @param branchOrder whether the MLP reads what attention gave
 * @param residual what each branch is added to
 * @param normPlacement where {@code norm} stands
 * @param hiddenDropout of what each branch adds to the residual stream
 * @param dropPath of whole sequences in what each branch adds: with its probability a sequence passes a branch unchanged, and
 *     what the branch adds to the others is divided by {@code 1 - probability}
 * @param bias of self-attention's products; the other branches have their own word, and {@link #withBias} sets all
 * @param initializer of self-attention's weights
 */
public record TransformerLayerConfig(
        NormConfig norm,
        AttentionConfig attention,
        @Nullable CrossAttentionConfig crossAttention,
        MlpConfig mlp,
        BranchOrder branchOrder,
        ResidualSource residual,
        NormPlacement normPlacement,
        Dropout hiddenDropout,
        Dropout dropPath,
        Bias bias,
        Initializer initializer) {
    private static final float DEVIATION = 0.02f;

    /**
     * Checks that all branches have the same width, and that parallel branches have nothing else that changes sums.
     *
     * @throws IllegalArgumentException when they do not
     */
    public TransformerLayerConfig {
        Checks.given("norm", norm);
        Checks.given("attention", attention);
        Checks.given("mlp", mlp);
        Checks.given("branchOrder", branchOrder);
        Checks.given("residual", residual);
        Checks.given("normPlacement", normPlacement);
        Checks.given("hiddenDropout", hiddenDropout);
        Checks.given("dropPath", dropPath);
        Checks.given("bias", bias);
        Checks.given("initializer", initializer);
        requireWidth("mlp", mlp.hidden(), norm);
        if (crossAttention != null) {
            requireWidth("crossAttention", crossAttention.hidden(), norm);
        }
        if (branchOrder == BranchOrder.PARALLEL
                && (crossAttention != null
                        || residual != ResidualSource.INPUT
                        || normPlacement != NormPlacement.INPUT)) {
            throw new IllegalArgumentException(
                    "branchOrder: PARALLEL expects no cross-attention, ResidualSource.INPUT and"
                            + " NormPlacement.INPUT, got "
                            + (crossAttention == null ? "no cross-attention" : "cross-attention") + ", " + residual
                            + " and "
                            + normPlacement);
        }
    }

    private static void requireWidth(String branch, long hidden, NormConfig norm) {
        if (hidden != norm.size()) {
            throw new IllegalArgumentException(
                    branch + ": expected " + norm.size() + " columns as the norm, got " + hidden);
        }
    }

    /**
     * Layer norm, GELU, four times as many columns inside, no dropout, weights normal with deviation 0.02.
     *
     * @param hidden columns H
     */
    public static TransformerLayerConfig encoder(long hidden, AttentionConfig attention) {
        return new TransformerLayerConfig(
                NormConfig.layerNorm(hidden),
                attention,
                null,
                MlpConfig.gelu(hidden),
                BranchOrder.SEQUENTIAL,
                ResidualSource.INPUT,
                NormPlacement.INPUT,
                Dropout.none(),
                Dropout.none(),
                Bias.PRESENT,
                Initializer.normal(DEVIATION));
    }

    /**
     * The same as {@link #encoder} with attention over another stream of H columns between self-attention and MLP.
     *
     * @param hidden columns H
     * @param attention of the layer's own stream, usually causal
     * @param crossAttention of the other stream
     */
    public static TransformerLayerConfig decoder(
            long hidden, AttentionConfig attention, AttentionConfig crossAttention) {
        return encoder(hidden, attention)
                .withCrossAttention(CrossAttentionConfig.of(hidden, Checks.given("crossAttention", crossAttention)));
    }

    /** Returns the same with another norm in each place, over as many columns. */
    public TransformerLayerConfig withNorm(NormConfig newNorm) {
        return new TransformerLayerConfig(
                newNorm,
                attention,
                crossAttention == null ? null : crossAttention.withNorm(newNorm),
                mlp.withNorm(newNorm),
                branchOrder,
                residual,
                normPlacement,
                hiddenDropout,
                dropPath,
                bias,
                initializer);
    }

    /** Returns the same with other self-attention. */
    public TransformerLayerConfig withAttention(AttentionConfig newAttention) {
        return new TransformerLayerConfig(
                norm,
                newAttention,
                crossAttention,
                mlp,
                branchOrder,
                residual,
                normPlacement,
                hiddenDropout,
                dropPath,
                bias,
                initializer);
    }

    /** Returns the same with cross-attention between self-attention and MLP, as in a decoder. */
    public TransformerLayerConfig withCrossAttention(CrossAttentionConfig newCrossAttention) {
        return new TransformerLayerConfig(
                norm,
                attention,
                Checks.given("newCrossAttention", newCrossAttention),
                mlp,
                branchOrder,
                residual,
                normPlacement,
                hiddenDropout,
                dropPath,
                bias,
                initializer);
    }

    /** Returns the same with another MLP. */
    public TransformerLayerConfig withMlp(MlpConfig newMlp) {
        return new TransformerLayerConfig(
                norm,
                attention,
                crossAttention,
                newMlp,
                branchOrder,
                residual,
                normPlacement,
                hiddenDropout,
                dropPath,
                bias,
                initializer);
    }

    /** Returns the same with the MLP behind attention or beside it. */
    public TransformerLayerConfig withBranchOrder(BranchOrder newOrder) {
        return new TransformerLayerConfig(
                norm,
                attention,
                crossAttention,
                mlp,
                newOrder,
                residual,
                normPlacement,
                hiddenDropout,
                dropPath,
                bias,
                initializer);
    }

    /** Returns the same with sums taken from elsewhere. */
    public TransformerLayerConfig withResidual(ResidualSource newResidual) {
        return new TransformerLayerConfig(
                norm,
                attention,
                crossAttention,
                mlp,
                branchOrder,
                newResidual,
                normPlacement,
                hiddenDropout,
                dropPath,
                bias,
                initializer);
    }

    /** Returns the same with the norm at the other end of the layer. */
    public TransformerLayerConfig withNormPlacement(NormPlacement newPlacement) {
        return new TransformerLayerConfig(
                norm,
                attention,
                crossAttention,
                mlp,
                branchOrder,
                residual,
                newPlacement,
                hiddenDropout,
                dropPath,
                bias,
                initializer);
    }

    /** Returns the same with values dropped from what each branch adds. */
    public TransformerLayerConfig withHiddenDropout(Dropout newDropout) {
        return new TransformerLayerConfig(
                norm,
                attention,
                crossAttention,
                mlp,
                branchOrder,
                residual,
                normPlacement,
                newDropout,
                dropPath,
                bias,
                initializer);
    }

    /** Returns the same with sequences left out of what each branch adds: stochastic depth. */
    public TransformerLayerConfig withDropPath(Dropout newDropPath) {
        return new TransformerLayerConfig(
                norm,
                attention,
                crossAttention,
                mlp,
                branchOrder,
                residual,
                normPlacement,
                hiddenDropout,
                newDropPath,
                bias,
                initializer);
    }

    /** Returns the same with or without biases in the products of all branches. */
    public TransformerLayerConfig withBias(Bias newBias) {
        return new TransformerLayerConfig(
                norm,
                attention,
                crossAttention == null ? null : crossAttention.withBias(newBias),
                mlp.withBias(newBias),
                branchOrder,
                residual,
                normPlacement,
                hiddenDropout,
                dropPath,
                newBias,
                initializer);
    }

    /** Returns the same with all weights beginning otherwise. */
    public TransformerLayerConfig withInitializer(Initializer newInitializer) {
        return new TransformerLayerConfig(
                norm,
                attention,
                crossAttention == null ? null : crossAttention.withInitializer(newInitializer),
                mlp.withInitializers(newInitializer, newInitializer),
                branchOrder,
                residual,
                normPlacement,
                hiddenDropout,
                dropPath,
                bias,
                newInitializer);
    }

    /** Returns the columns H. */
    public long hidden() {
        return norm.size();
    }
}

package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.parameter.Initializer;
import dev.chagres.pass.Layer;
import dev.chagres.pass.LayerSummary;
import java.util.function.Consumer;
import org.jspecify.annotations.Nullable;

/**
 * One transformer layer. {@link #encoder} and {@link #decoder} have the usual values; the {@code with} methods change one each.
 *
 * <p>Threading: immutable.
 *
 * @param norm of self-attention's input, or after the last sum
 * @param attention heads, mask and dropout of self-attention
 * @param crossAttention between self-attention and MLP; null where there is none
 * @param mlp the last branch
 * @param branchOrder whether the MLP reads the output or the input of attention
 * @param residual the tensor to which each branch is added
 * @param normPlacement where {@code norm} stands
 * @param recomputation which tensors backward recomputes, so that they are not saved
 * @param hiddenDropout dropout of each branch's output
 * @param dropPath drop path of each branch's output: a sequence is dropped from it with this probability, and the output for the others is
 *     divided by {@code 1 - probability}
 * @param bias of self-attention's product of query, key and value; {@code crossAttention} and {@code mlp} have their own, and {@link
 *     #withBias} sets all
 * @param projectionBias of self-attention's last product
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
        Recomputation recomputation,
        Dropout hiddenDropout,
        Dropout dropPath,
        Bias bias,
        Bias projectionBias,
        Initializer initializer) {
    /**
     * The tensor to which the output of a branch is added.
     *
     * <p>Threading: immutable.
     *
     * <p>Source: {@code apply_residual_connection_post_layernorm} of TE's {@code TransformerLayer}.
     */
    public enum ResidualSource {
        /** The branch's input before its norm: {@code y = x + branch(norm(x))}. */
        INPUT,
        /** The output of its norm: {@code y = norm(x) + branch(norm(x))}. */
        NORM
    }

    /**
     * Where a transformer layer has its first norm: before self-attention or at the end of the layer. The norms of MLP and cross-attention
     * always come before these.
     *
     * <p>Threading: immutable.
     *
     * <p>Source: {@code output_layernorm} of TE's {@code TransformerLayer}.
     */
    public enum NormPlacement {
        /** Before self-attention. */
        INPUT,
        /** After the last sum: {@code y = norm(…)}; self-attention reads x without a norm. */
        OUTPUT
    }

    /**
     * Whether the MLP of a transformer layer reads the output of attention or the input of attention.
     *
     * <p>Threading: immutable.
     *
     * <p>Source: {@code parallel_attention_mlp} of TE's {@code TransformerLayer}.
     */
    public enum BranchOrder {
        /** {@code h = x + attention(norm(x))}, {@code y = h + mlp(norm(h))}. */
        SEQUENTIAL,
        /** {@code y = x + attention(norm(x)) + mlp(norm(x))}, each with its own norm, as in Falcon. */
        PARALLEL
    }

    private static final float DEVIATION = 0.02f;

    /**
     * What backward recomputes, besides what {@link MlpConfig.Recomputation} says of the MLP. Outputs and gradients have the same bits.
     *
     * <p>Source: {@code --recompute-modules layernorm} of Megatron-Core's selective recomputation.
     */
    public enum Recomputation {
        /** Nothing. */
        NONE,
        /**
         * The output of the norm before each branch, [T, H]: an encoder's layer saves two tensors less, a decoder's three. Backward
         * recomputes it by the kernel of forward, which is bound by memory, from the norm's input, which is saved anyway. It does not if the
         * weight of the branch's first product is frozen, for no gradient needs the output then. If a branch saves its input in eight bits,
         * nothing changes. {@link Layer#explain} says what happens. The norm of {@link NormPlacement#OUTPUT} is not recomputed: its output is
         * the layer's.
         */
        NORMS
    }

    /**
     * Checks that all branches have the same width, and that parallel branches have no other option that changes sums.
     *
     * @throws IllegalArgumentException when they do not
     */
    public TransformerLayerConfig {
        Checks.given("norm", norm, "attention", attention, "mlp", mlp, "branchOrder", branchOrder);
        Checks.given("residual", residual, "normPlacement", normPlacement, "recomputation", recomputation);
        Checks.given("hiddenDropout", hiddenDropout, "dropPath", dropPath, "bias", bias);
        Checks.given("projectionBias", projectionBias, "initializer", initializer);
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
     * Layer norm, GELU, four times as many columns inside, no dropout, weights from a normal distribution with standard deviation 0.02.
     *
     * @param hidden columns H
     * @throws IllegalArgumentException when there is no column
     */
    public static TransformerLayerConfig encoder(long hidden, AttentionConfig attention) {
        return new TransformerLayerConfig(
                NormConfig.layerNorm(Checks.atLeastOne("hidden", hidden)),
                attention,
                null,
                MlpConfig.gelu(hidden),
                BranchOrder.SEQUENTIAL,
                ResidualSource.INPUT,
                NormPlacement.INPUT,
                Recomputation.NONE,
                Dropout.none(),
                Dropout.none(),
                Bias.PRESENT,
                Bias.PRESENT,
                Initializer.normal(DEVIATION));
    }

    /**
     * The same as {@link #encoder} with attention over another stream of H columns between self-attention and MLP.
     *
     * @param hidden columns H
     * @param attention of the layer's own stream, usually causal
     * @param crossAttention of the other stream
     * @throws IllegalArgumentException when there is no column
     */
    public static TransformerLayerConfig decoder(
            long hidden, AttentionConfig attention, AttentionConfig crossAttention) {
        return encoder(hidden, attention)
                .withCrossAttention(CrossAttentionConfig.of(hidden, Checks.given("crossAttention", crossAttention)));
    }

    /** The components of a configuration while one of them changes. */
    private static final class Draft {
        private NormConfig norm;
        private AttentionConfig attention;
        private @Nullable CrossAttentionConfig crossAttention;
        private MlpConfig mlp;
        private BranchOrder branchOrder;
        private ResidualSource residual;
        private NormPlacement normPlacement;
        private Recomputation recomputation;
        private Dropout hiddenDropout;
        private Dropout dropPath;
        private Bias bias;
        private Bias projectionBias;
        private Initializer initializer;

        private Draft(TransformerLayerConfig from) {
            norm = from.norm;
            attention = from.attention;
            crossAttention = from.crossAttention;
            mlp = from.mlp;
            branchOrder = from.branchOrder;
            residual = from.residual;
            normPlacement = from.normPlacement;
            recomputation = from.recomputation;
            hiddenDropout = from.hiddenDropout;
            dropPath = from.dropPath;
            bias = from.bias;
            projectionBias = from.projectionBias;
            initializer = from.initializer;
        }
    }

    private TransformerLayerConfig with(Consumer<Draft> change) {
        Draft draft = new Draft(this);
        change.accept(draft);
        return new TransformerLayerConfig(
                draft.norm,
                draft.attention,
                draft.crossAttention,
                draft.mlp,
                draft.branchOrder,
                draft.residual,
                draft.normPlacement,
                draft.recomputation,
                draft.hiddenDropout,
                draft.dropPath,
                draft.bias,
                draft.projectionBias,
                draft.initializer);
    }

    /** Returns the same with another norm at each place, over the same number of columns. */
    public TransformerLayerConfig withNorm(NormConfig newNorm) {
        return with(draft -> {
            draft.norm = newNorm;
            draft.mlp = mlp.withNorm(newNorm);
            draft.crossAttention = crossAttention == null ? null : crossAttention.withNorm(newNorm);
        });
    }

    /** Returns the same with other self-attention. */
    public TransformerLayerConfig withAttention(AttentionConfig newAttention) {
        return with(draft -> draft.attention = newAttention);
    }

    /** Returns the same with cross-attention between self-attention and MLP, as in a decoder. */
    public TransformerLayerConfig withCrossAttention(CrossAttentionConfig newCrossAttention) {
        Checks.given("newCrossAttention", newCrossAttention);
        return with(draft -> draft.crossAttention = newCrossAttention);
    }

    /** Returns the same with another MLP. */
    public TransformerLayerConfig withMlp(MlpConfig newMlp) {
        return with(draft -> draft.mlp = newMlp);
    }

    /** Returns the same with the MLP after attention or parallel to it. */
    public TransformerLayerConfig withBranchOrder(BranchOrder newOrder) {
        return with(draft -> draft.branchOrder = newOrder);
    }

    /** Returns the same with branches added to another tensor. */
    public TransformerLayerConfig withResidual(ResidualSource newResidual) {
        return with(draft -> draft.residual = newResidual);
    }

    /** Returns the same with the norm at the other end of the layer. */
    public TransformerLayerConfig withNormPlacement(NormPlacement newPlacement) {
        return with(draft -> draft.normPlacement = newPlacement);
    }

    /** Returns the same with another choice of the tensors that backward recomputes. */
    public TransformerLayerConfig withRecomputation(Recomputation newRecomputation) {
        return with(draft -> draft.recomputation = newRecomputation);
    }

    /** Returns the same with dropout of each branch's output. */
    public TransformerLayerConfig withHiddenDropout(Dropout newDropout) {
        return with(draft -> draft.hiddenDropout = newDropout);
    }

    /** Returns the same with drop path, also called stochastic depth, of each branch's output. */
    public TransformerLayerConfig withDropPath(Dropout newDropPath) {
        return with(draft -> draft.dropPath = newDropPath);
    }

    /** Returns the same with or without biases in the products of all branches. */
    public TransformerLayerConfig withBias(Bias newBias) {
        return with(draft -> {
            draft.bias = newBias;
            draft.projectionBias = newBias;
            draft.mlp = mlp.withBias(newBias);
            draft.crossAttention = crossAttention == null ? null : crossAttention.withBias(newBias);
        });
    }

    /** Returns the same with or without a bias in self-attention's last product alone: Qwen 2 has biases of query, key and value. */
    public TransformerLayerConfig withProjectionBias(Bias newProjectionBias) {
        return with(draft -> draft.projectionBias = newProjectionBias);
    }

    /** Returns the same with another initializer of all weights. */
    public TransformerLayerConfig withInitializer(Initializer newInitializer) {
        return with(draft -> {
            draft.initializer = newInitializer;
            draft.mlp = mlp.withInitializers(newInitializer, newInitializer);
            draft.crossAttention = crossAttention == null ? null : crossAttention.withInitializer(newInitializer);
        });
    }

    /** Returns the columns H. */
    public long hidden() {
        return norm.size();
    }

    /** Returns the width, and options that differ from their defaults, besides those of the branches. */
    LayerSummary summary() {
        return new LayerSummary()
                .with("hidden", hidden())
                .withUnlessUsual("branchOrder", branchOrder, BranchOrder.SEQUENTIAL)
                .withUnlessUsual("residual", residual, ResidualSource.INPUT)
                .withUnlessUsual("normPlacement", normPlacement, NormPlacement.INPUT)
                .withUnlessUsual("recomputation", recomputation, Recomputation.NONE)
                .withUnlessUsual("hiddenDropout", hiddenDropout.probability(), 0f)
                .withUnlessUsual("dropPath", dropPath.probability(), 0f);
    }
}

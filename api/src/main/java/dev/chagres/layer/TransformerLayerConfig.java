package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.model.Initializer;

/**
 * One transformer layer: a pre-norm encoder. {@link #encoder} has the usual values; the {@code with} methods change one each.
 *
 * <p>Threading: immutable.
 *
 * @param norm of the attention's input
 * @param attention heads, mask and dropout of attention weights
 * @param mlp second half
 * @param hiddenDropout of what each half adds to the residual stream
 * @param dropPath of whole sequences in what each half adds: with its probability a sequence passes a half unchanged, and
 *     what the half adds to the others is divided by {@code 1 - probability}
 * @param bias of the attention's products; the second half has its own word, and {@link #withBias} sets both
 * @param initializer of the attention's weights
 */
public record TransformerLayerConfig(
        NormConfig norm,
        AttentionConfig attention,
        MlpConfig mlp,
        Dropout hiddenDropout,
        Dropout dropPath,
        Bias bias,
        Initializer initializer) {
    private static final float DEVIATION = 0.02f;

    /**
     * Checks that both halves have the same width.
     *
     * @throws IllegalArgumentException when they do not
     */
    public TransformerLayerConfig {
        Checks.given("norm", norm);
        Checks.given("attention", attention);
        Checks.given("mlp", mlp);
        Checks.given("hiddenDropout", hiddenDropout);
        Checks.given("dropPath", dropPath);
        Checks.given("bias", bias);
        Checks.given("initializer", initializer);
        if (mlp.hidden() != norm.size()) {
            throw new IllegalArgumentException(
                    "mlp: expected " + norm.size() + " columns as the norm, got " + mlp.hidden());
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
                MlpConfig.gelu(hidden),
                Dropout.none(),
                Dropout.none(),
                Bias.PRESENT,
                Initializer.normal(DEVIATION));
    }

    /** Returns the same with another norm before each half, over as many columns. */
    public TransformerLayerConfig withNorm(NormConfig newNorm) {
        return new TransformerLayerConfig(
                newNorm, attention, mlp.withNorm(newNorm), hiddenDropout, dropPath, bias, initializer);
    }

    /** Returns the same with other attention. */
    public TransformerLayerConfig withAttention(AttentionConfig newAttention) {
        return new TransformerLayerConfig(norm, newAttention, mlp, hiddenDropout, dropPath, bias, initializer);
    }

    /** Returns the same with another second half. */
    public TransformerLayerConfig withMlp(MlpConfig newMlp) {
        return new TransformerLayerConfig(norm, attention, newMlp, hiddenDropout, dropPath, bias, initializer);
    }

    /** Returns the same with values dropped from what each half adds. */
    public TransformerLayerConfig withHiddenDropout(Dropout newDropout) {
        return new TransformerLayerConfig(norm, attention, mlp, newDropout, dropPath, bias, initializer);
    }

    /** Returns the same with sequences left out of what each half adds: stochastic depth. */
    public TransformerLayerConfig withDropPath(Dropout newDropPath) {
        return new TransformerLayerConfig(norm, attention, mlp, hiddenDropout, newDropPath, bias, initializer);
    }

    /** Returns the same with or without biases in the products of both halves. */
    public TransformerLayerConfig withBias(Bias newBias) {
        return new TransformerLayerConfig(
                norm, attention, mlp.withBias(newBias), hiddenDropout, dropPath, newBias, initializer);
    }

    /** Returns the same with all weights beginning otherwise. */
    public TransformerLayerConfig withInitializer(Initializer newInitializer) {
        return new TransformerLayerConfig(
                norm,
                attention,
                mlp.withInitializers(newInitializer, newInitializer),
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

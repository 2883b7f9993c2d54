package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.parameter.Initializer;
import dev.chagres.pass.Recomputed;
import dev.chagres.te.Activation;
import dev.chagres.te.ClampedSwiglu;

/**
 * The feed-forward half of a layer. {@link #gelu} has the usual values; the {@code with} methods change one each.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: TE's {@code LayerNormMLP}; {@code recomputation} is its {@code checkpoint}.
 *
 * @param norm of the input
 * @param inner columns F between the two products
 * @param function the activation between them
 * @param bias of both products
 * @param recomputation which tensors backward recomputes instead of keeping them
 * @param inputInitializer of the first weight
 * @param outputInitializer of the second weight
 */
public record MlpConfig(
        NormConfig norm,
        long inner,
        MlpActivation function,
        Bias bias,
        Recomputation recomputation,
        Initializer inputInitializer,
        Initializer outputInitializer) {
    private static final float DEVIATION = 0.02f;

    /** What backward recomputes. */
    public enum Recomputation {
        /** Nothing. */
        NONE,
        /** The activation's output, [T, F]: one elementwise kernel for a quarter of a layer's memory. */
        ACTIVATION,
        /**
         * The first product and the activation: [T, F] less, or [T, 2 F] where the activation is gated. The output of the norm is kept,
         * unless the layer has {@link TransformerLayerConfig.Recomputation#NORMS}; a {@link Recomputed} layer also recomputes that
         * output and the second product.
         */
        FC1_AND_ACTIVATION
    }

    /**
     * Checks the sizes.
     *
     * @throws IllegalArgumentException when {@code inner} is not positive
     */
    public MlpConfig {
        Checks.given("norm", norm, "function", function, "bias", bias, "recomputation", recomputation);
        Checks.given("inputInitializer", inputInitializer, "outputInitializer", outputInitializer);
        Checks.atLeastOne("inner", inner);
    }

    /**
     * Layer norm, GELU and four times as many columns inside; weights from a normal distribution with standard deviation 0.02, as in ESM-2
     * and BERT; backward computes the activation again ({@link Recomputation#ACTIVATION}).
     *
     * @param hidden columns H
     */
    public static MlpConfig gelu(long hidden) {
        return new MlpConfig(
                NormConfig.layerNorm(hidden),
                4 * hidden,
                MlpActivation.of(Activation.GELU),
                Bias.PRESENT,
                Recomputation.ACTIVATION,
                Initializer.normal(DEVIATION),
                Initializer.normal(DEVIATION));
    }

    /** Returns the same with another norm, which may have another number of columns H. */
    public MlpConfig withNorm(NormConfig newNorm) {
        return new MlpConfig(newNorm, inner, function, bias, recomputation, inputInitializer, outputInitializer);
    }

    /** Returns the same with {@code newInner} columns between the products. */
    public MlpConfig withInner(long newInner) {
        return new MlpConfig(norm, newInner, function, bias, recomputation, inputInitializer, outputInitializer);
    }

    /** Returns the same with another activation. */
    public MlpConfig withActivation(Activation newActivation) {
        return withFunction(new MlpActivation(
                Checks.given("activation", newActivation), function.gelu(), function.clampedSwiglu()));
    }

    /** Returns the same with {@link Activation#GELU} of this form. */
    public MlpConfig withGelu(GeluForm newGelu) {
        return withFunction(new MlpActivation(Activation.GELU, newGelu, function.clampedSwiglu()));
    }

    /** Returns the same with {@link Activation#CLAMPED_SWIGLU} of these numbers. */
    public MlpConfig withClampedSwiglu(ClampedSwiglu newClampedSwiglu) {
        return withFunction(new MlpActivation(Activation.CLAMPED_SWIGLU, function.gelu(), newClampedSwiglu));
    }

    private MlpConfig withFunction(MlpActivation newFunction) {
        return new MlpConfig(norm, inner, newFunction, bias, recomputation, inputInitializer, outputInitializer);
    }

    /** Returns the same with or without a bias in each product. */
    public MlpConfig withBias(Bias newBias) {
        return new MlpConfig(norm, inner, function, newBias, recomputation, inputInitializer, outputInitializer);
    }

    /** Returns the same with another choice of the tensors that backward recomputes. */
    public MlpConfig withRecomputation(Recomputation newRecomputation) {
        return new MlpConfig(norm, inner, function, bias, newRecomputation, inputInitializer, outputInitializer);
    }

    /** Returns the same with other initializers of the weights. */
    public MlpConfig withInitializers(Initializer input, Initializer output) {
        return new MlpConfig(norm, inner, function, bias, recomputation, input, output);
    }

    /** Returns which activation stands between the products. */
    public Activation activation() {
        return function.kind();
    }

    /** Returns limit and alpha of {@link Activation#CLAMPED_SWIGLU}. */
    public ClampedSwiglu clampedSwiglu() {
        return function.clampedSwiglu();
    }

    /** Returns the input's columns H. */
    public long hidden() {
        return norm.size();
    }
}

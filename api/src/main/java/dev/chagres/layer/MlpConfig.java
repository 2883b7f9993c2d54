package dev.chagres.layer;

import dev.chagres.internal.Checks;
import dev.chagres.model.Initializer;
import dev.chagres.te.Activation;

/**
 * The feed-forward half of a layer. {@link #gelu} has the usual values; the {@code with} methods change one each.
 *
 * <p>Threading: immutable.
 *
 * @param norm of the input
 * @param inner columns F between the two products
 * @param activation between them
 * @param bias of both products
 * @param recomputation what backward computes again instead of keeping it
 * @param inputInitializer of the first weight
 * @param outputInitializer of the second weight
 */
public record MlpConfig(
        NormConfig norm,
        long inner,
        Activation activation,
        Bias bias,
        Recomputation recomputation,
        Initializer inputInitializer,
        Initializer outputInitializer) {
    private static final float DEVIATION = 0.02f;

    /** What backward computes again. */
    public enum Recomputation {
        /** Nothing. */
        NONE,
        /** The activation's output, [T, F]: one elementwise kernel for a quarter of a layer's memory. */
        ACTIVATION
    }

    /**
     * Checks the sizes.
     *
     * @throws IllegalArgumentException when {@code inner} is not positive
     */
    public MlpConfig {
        Checks.given("norm", norm);
        Checks.given("activation", activation);
        Checks.given("bias", bias);
        Checks.given("recomputation", recomputation);
        Checks.given("inputInitializer", inputInitializer);
        Checks.given("outputInitializer", outputInitializer);
        if (inner < 1) {
            throw new IllegalArgumentException("inner: expected at least 1, got " + inner);
        }
    }

    /**
     * Layer norm, GELU and four times as many columns inside; weights normal with deviation 0.02, as ESM-2 and BERT begin;
     * backward computes the activation again ({@link Recomputation#ACTIVATION}).
     *
     * @param hidden columns H
     */
    public static MlpConfig gelu(long hidden) {
        return new MlpConfig(
                NormConfig.layerNorm(hidden),
                4 * hidden,
                Activation.GELU,
                Bias.PRESENT,
                Recomputation.ACTIVATION,
                Initializer.normal(DEVIATION),
                Initializer.normal(DEVIATION));
    }

    /** Returns the same with another norm, and so perhaps other columns H. */
    public MlpConfig withNorm(NormConfig newNorm) {
        return new MlpConfig(newNorm, inner, activation, bias, recomputation, inputInitializer, outputInitializer);
    }

    /** Returns the same with {@code newInner} columns between the products. */
    public MlpConfig withInner(long newInner) {
        return new MlpConfig(norm, newInner, activation, bias, recomputation, inputInitializer, outputInitializer);
    }

    /** Returns the same with another activation. */
    public MlpConfig withActivation(Activation newActivation) {
        return new MlpConfig(norm, inner, newActivation, bias, recomputation, inputInitializer, outputInitializer);
    }

    /** Returns the same with or without a bias in each product. */
    public MlpConfig withBias(Bias newBias) {
        return new MlpConfig(norm, inner, activation, newBias, recomputation, inputInitializer, outputInitializer);
    }

    /** Returns the same with another choice of what backward computes again. */
    public MlpConfig withRecomputation(Recomputation newRecomputation) {
        return new MlpConfig(norm, inner, activation, bias, newRecomputation, inputInitializer, outputInitializer);
    }

    /** Returns the same with weights that begin otherwise. */
    public MlpConfig withInitializers(Initializer input, Initializer output) {
        return new MlpConfig(norm, inner, activation, bias, recomputation, input, output);
    }

    /** Returns the input's columns H. */
    public long hidden() {
        return norm.size();
    }
}

package dev.chagres.models.esm;

import dev.chagres.Device;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.batch.LayeredModel;
import dev.chagres.batch.TrainedModel;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.transformer.TransformerBody;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import java.util.Collections;
import java.util.Objects;
import java.util.Optional;
import java.util.function.Function;

/**
 * Sizes and form of an ESM-2, and what backward recomputes. A trainer makes the model of it.
 *
 * <p>Threading: immutable.
 *
 * @param layers number of transformer layers
 * @param hidden hidden size H
 * @param heads attention heads; H is a multiple of them
 * @param context longest sequence in tokens
 * @param inner columns F between a layer's last two products; usually 4 H
 * @param form what ESM-2s differ in besides their sizes
 * @param recomputation what backward recomputes
 */
public record Esm2Config(
        int layers, int hidden, int heads, int context, int inner, Esm2Form form, Recomputation recomputation)
        implements TrainedModel.Factory {
    /**
     * Checks the sizes.
     *
     * @throws IllegalArgumentException when one is not positive, or heads do not divide the hidden size
     */
    public Esm2Config {
        Objects.requireNonNull(form, "form");
        Objects.requireNonNull(recomputation, "recomputation");
        if (layers < 1 || hidden < 1 || heads < 1 || context < 1) {
            throw new IllegalArgumentException("layers, hidden, heads, context: expected at least 1 each, got " + layers
                    + ", " + hidden + ", " + heads + " and " + context);
        }
        if (hidden % heads != 0) {
            throw new IllegalArgumentException(
                    "heads: expected a divisor of the hidden size, " + hidden + ", got " + heads);
        }
        if (inner < 1) {
            throw new IllegalArgumentException("inner: expected at least 1, got " + inner);
        }
        int frequencies = form.frequencies().size();
        if (frequencies != 0 && 2 * frequencies != hidden / heads) {
            throw new IllegalArgumentException("form: expected " + hidden / heads
                    + " / 2 frequencies, one of each pair of a head's columns, or none, got " + frequencies);
        }
    }

    /**
     * Checks the sizes of a model of {@link Esm2Form#nvidia} with 4 H columns inside, whose layers recompute only their activation.
     *
     * @throws IllegalArgumentException when one is not positive, or heads do not divide the hidden size
     */
    public Esm2Config(int layers, int hidden, int heads, int context) {
        this(layers, hidden, heads, context, 4 * hidden, Esm2Form.nvidia(), Recomputation.ACTIVATION);
    }

    /**
     * Returns the same with another choice of what backward recomputes. Losses and gradients have the same bits, but for one case: with the tanh form
     * of GELU, in 16 bits and without a recipe, the first product's kernel computes GELU of unrounded sums. {@link Recomputation#NONE} keeps that
     * output, backward of the others computes it of rounded ones, and so the last bits of gradients differ.
     */
    public Esm2Config withRecomputation(Recomputation newRecomputation) {
        return new Esm2Config(layers, hidden, heads, context, inner, form, newRecomputation);
    }

    /** Returns the same in another form. */
    public Esm2Config withForm(Esm2Form newForm) {
        return new Esm2Config(layers, hidden, heads, context, inner, newForm, recomputation);
    }

    /** Returns the same for sequences of up to {@code newContext} tokens. */
    public Esm2Config withContext(int newContext) {
        return new Esm2Config(layers, hidden, heads, newContext, inner, form, recomputation);
    }

    /** Returns the same with {@code newInner} columns between a layer's last two products. */
    public Esm2Config withInner(int newInner) {
        return new Esm2Config(layers, hidden, heads, context, newInner, form, recomputation);
    }

    /** Returns the sizes of a published model. */
    public static Esm2Config of(Esm2Size size, int context) {
        return new Esm2Config(size.layers(), size.hidden(), size.heads(), context);
    }

    /** Returns the size d of a head. */
    public int headDim() {
        return hidden / heads;
    }

    @Override
    public Esm2 make(Device device, ModelPlan plan, Function<ModelPlan, Parameters> memory) {
        return new Esm2(device, this, plan, memory);
    }

    /** {@inheritDoc} The embedding's table is at both ends, for the head reads it, too. */
    @Override
    public Optional<LayeredModel.Parts> parts(ModelPlan declared) {
        return Optional.of(body().parts(declared, "head", "embedding"));
    }

    /** Returns the configuration of all norms. */
    NormConfig norm() {
        return NormConfig.layerNorm(hidden).withEpsilon(form.normEpsilon());
    }

    /** Declares what all heads read. */
    TransformerBody body(ModelPlan plan) {
        return new TransformerBody(
                body(), form.masks() == Esm2Form.Masks.DROPPED ? new MaskedEmbeddings(plan) : null, plan);
    }

    /** Returns sizes and form of what all heads read. */
    TransformerBody.Config body() {
        TransformerLayerConfig plain = TransformerLayerConfig.encoder(
                        hidden, AttentionConfig.of(heads, headDim(), AttentionMask.none()))
                .withNorm(norm());
        TransformerLayerConfig layer = plain.withMlp(plain.mlp()
                .withGelu(form.gelu())
                .withInner(inner)
                .withRecomputation(
                        recomputation == Recomputation.NONE
                                ? MlpConfig.Recomputation.NONE
                                : MlpConfig.Recomputation.ACTIVATION));
        return new TransformerBody.Config(
                EsmVocabulary.PADDED_SIZE,
                Collections.nCopies(layers, layer),
                norm(),
                RotaryConfig.of(headDim()).withFrequencies(form.frequencies()),
                context,
                recomputation);
    }

    /**
     * Returns the floating-point operations of forward and backward: 6 a weight and token for the products, 12 a layer,
     * column and pair of tokens for attention. Recomputation does not count.
     *
     * @param tokens number of tokens, padding left out
     * @param attendedPairs sum of the squared lengths of the sequences
     */
    public double flops(long tokens, long attendedPairs) {
        double square = (double) hidden * hidden;
        double productWeights =
                layers * (4 * square + 2.0 * inner * hidden) + square + (double) EsmVocabulary.PADDED_SIZE * hidden;
        return 6 * productWeights * tokens + 12.0 * layers * hidden * attendedPairs;
    }
}

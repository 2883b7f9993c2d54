package dev.chagres.models.decoder;

import dev.chagres.Device;
import dev.chagres.attention.AttentionMask;
import dev.chagres.batch.LayeredModel;
import dev.chagres.batch.TrainedModel;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.MlpConfig;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.QkNorm;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.models.transformer.TransformerBody;
import dev.chagres.models.transformer.TransformerBody.Recomputation;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.te.Activation;
import java.util.Objects;
import java.util.Optional;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.Stream;

/**
 * Sizes and form of a decoder, and what is computed twice to save memory. A trainer makes the model of it.
 *
 * <p>Threading: immutable.
 *
 * @param sizes of all tensors
 * @param form what decoders differ in besides their sizes
 * @param tokens which of the vocabulary begin and end a text
 * @param recomputation what backward recomputes
 * @param lossTokens tokens whose logits are in memory at one time, while the loss is computed; 0 for all. Backward computes logits again if
 *     there are more tokens; the loss has the same bits
 */
public record DecoderConfig(
        DecoderSizes sizes, DecoderForm form, SpecialTokens tokens, Recomputation recomputation, int lossTokens)
        implements TrainedModel.Factory {
    /**
     * Checks that sizes and form fit.
     *
     * @throws IllegalArgumentException when they do not, or {@code lossTokens} is negative
     */
    public DecoderConfig {
        Objects.requireNonNull(sizes, "sizes");
        Objects.requireNonNull(form, "form");
        Objects.requireNonNull(tokens, "tokens");
        Objects.requireNonNull(recomputation, "recomputation");
        if (form.rotary().headDim() != sizes.headDim()) {
            throw new IllegalArgumentException("form: expected a rotation of heads of " + sizes.headDim()
                    + " columns, got " + form.rotary().headDim());
        }
        if (!form.windows().isEmpty() && form.windows().size() != sizes.layers()) {
            throw new IllegalArgumentException("form: expected a window for each of " + sizes.layers()
                    + " layers, or none, got " + form.windows().size());
        }
        checkTokens(sizes, tokens);
        if (lossTokens < 0) {
            throw new IllegalArgumentException("lossTokens: expected at least 1, or 0 for all, got " + lossTokens);
        }
    }

    private static void checkTokens(DecoderSizes sizes, SpecialTokens tokens) {
        Stream.of(tokens.begin().stream(), tokens.ends().stream(), tokens.padding().stream())
                .flatMap(Function.identity())
                .filter(token -> token < 0 || token >= sizes.vocabulary())
                .findFirst()
                .ifPresent(token -> {
                    throw new IllegalArgumentException(
                            "tokens: expected tokens from 0 to " + (sizes.vocabulary() - 1) + ", got " + token);
                });
    }

    /**
     * Makes a configuration whose layers recompute nothing, and whose loss has all logits at once.
     *
     * @throws IllegalArgumentException when sizes and form do not fit
     */
    public DecoderConfig(DecoderSizes sizes, DecoderForm form) {
        this(sizes, form, SpecialTokens.none(), Recomputation.NONE, 0);
    }

    /** Returns the same with another choice of what backward recomputes. */
    public DecoderConfig withRecomputation(Recomputation newRecomputation) {
        return new DecoderConfig(sizes, form, tokens, newRecomputation, lossTokens);
    }

    /** Returns the same with logits of {@code newLossTokens} tokens in memory at one time; 0 for all. */
    public DecoderConfig withLossTokens(int newLossTokens) {
        return new DecoderConfig(sizes, form, tokens, recomputation, newLossTokens);
    }

    /** Returns the same for sequences of up to {@code newContext} tokens. */
    public DecoderConfig withContext(int newContext) {
        return new DecoderConfig(sizes.withContext(newContext), form, tokens, recomputation, lossTokens);
    }

    /** Returns the same in another form. */
    public DecoderConfig withForm(DecoderForm newForm) {
        return new DecoderConfig(sizes, newForm, tokens, recomputation, lossTokens);
    }

    /** Returns the same with other tokens that begin and end a text. */
    public DecoderConfig withTokens(SpecialTokens newTokens) {
        return new DecoderConfig(sizes, form, newTokens, recomputation, lossTokens);
    }

    /** Returns the configuration of all norms over H columns. */
    NormConfig norm() {
        return NormConfig.rmsNorm(sizes.hidden()).withEpsilon(form.normEpsilon());
    }

    /** Returns what the head reads. */
    TransformerBody.Config body() {
        return new TransformerBody.Config(
                sizes.paddedVocabulary(),
                IntStream.range(0, sizes.layers()).mapToObj(this::layer).toList(),
                norm(),
                form.rotary(),
                sizes.context(),
                recomputation);
    }

    /** Returns the configuration of a layer. */
    TransformerLayerConfig layer(int number) {
        int window = form.window(number);
        AttentionMask mask = window > 0 && window < sizes.context()
                ? AttentionMask.causal().withWindow(window - 1L, 0)
                : AttentionMask.causal();
        AttentionConfig attention =
                AttentionConfig.of(sizes.heads(), sizes.headDim(), mask).withKeyHeads(sizes.keyHeads());
        if (form.hasHeadNorms()) {
            attention = attention.withQkNorm(QkNorm.of(QkNorm.Kind.RMS_NORM)
                    .withEpsilon(form.normEpsilon())
                    .withPlace(QkNorm.Place.BEFORE_ROTATION));
        }
        MlpConfig mlp = MlpConfig.gelu(sizes.hidden())
                .withActivation(Activation.SWIGLU)
                .withInner(sizes.inner())
                .withNorm(norm())
                .withRecomputation(
                        switch (recomputation) {
                            // What a whole layer saves while it is recomputed is freed at once.
                            case NONE, LAYERS -> MlpConfig.Recomputation.NONE;
                            case ACTIVATION, NORMS -> MlpConfig.Recomputation.ACTIVATION;
                        });
        return TransformerLayerConfig.encoder(sizes.hidden(), attention)
                .withNorm(norm())
                .withBias(form.attentionBias())
                .withProjectionBias(form.projectionBias())
                .withMlp(mlp.withBias(form.mlpBias()));
    }

    @Override
    public Decoder make(Device device, ModelPlan plan, Function<ModelPlan, Parameters> memory) {
        return new Decoder(device, this, plan, memory);
    }

    /** {@inheritDoc} A tied table is at both ends, for the head reads it, too. */
    @Override
    public Optional<LayeredModel.Parts> parts(ModelPlan declared) {
        return Optional.of(body().parts(declared, form.head() == DecoderForm.Head.TIED ? "embedding" : "head"));
    }

    /**
     * Returns the floating-point operations of forward and backward: 6 a weight and token for the products, 6 a layer, column of the heads
     * and pair of tokens for attention, whose queries see half of the keys. Recomputation does not count, and windows count as no window.
     *
     * @param tokens number of tokens, padding left out
     * @param attendedPairs sum of the squared lengths of the sequences
     */
    public double flops(long tokens, long attendedPairs) {
        double width = (double) sizes.heads() * sizes.headDim();
        double keyWidth = (double) sizes.keyHeads() * sizes.headDim();
        double layer = sizes.hidden() * (2 * width + 2 * keyWidth + 3.0 * sizes.inner());
        double products = sizes.layers() * layer + (double) sizes.vocabulary() * sizes.hidden();
        return 6 * products * tokens + 6.0 * sizes.layers() * width * attendedPairs;
    }
}

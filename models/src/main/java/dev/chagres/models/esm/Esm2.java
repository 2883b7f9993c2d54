package dev.chagres.models.esm;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.RotaryConfig;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.batch.Batch;
import dev.chagres.batch.LayeredModel;
import dev.chagres.batch.ModelInput;
import dev.chagres.layer.AttentionConfig;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.LayerNorm;
import dev.chagres.layer.NormConfig;
import dev.chagres.layer.TokenGather;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.layer.TransformerLayerConfig;
import dev.chagres.layer.TransformerLayerConfig.Recomputation;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.parameter.Initializer;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import dev.chagres.pass.Recomputed;
import dev.chagres.pass.Sequential;
import java.util.List;
import java.util.function.Function;
import java.util.stream.IntStream;
import org.jspecify.annotations.Nullable;

/**
 * ESM-2: {@code loss = crossEntropy(decoder(norm(gelu(dense(norm(layers(embedding(ids))))))), labels)}.
 *
 * <p>In a plan of tensor-parallel ranks the layers are split among them, and so is the vocabulary: each has some rows of the embedding's
 * table, and computes those columns of the logits.
 *
 * <p>Pre-norm encoder layers with rotary positions, biases and GELU; the decoder's weight is the embedding's table. {@link Esm2Form} says
 * which GELU, and whether embeddings are scaled by the share of masked tokens. No dropout, as published. Parameters begin normal with deviation 0.02, biases at 0, norms at 1.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Lin et al., "Evolutionary-scale prediction of atomic-level protein structure with a language model",
 * Science 2023.
 */
public final class Esm2 implements LayeredModel {
    /** Rows of the embedding and columns of the logits; those from {@link EsmVocabulary#SIZE} on belong to no token. */
    static final int VOCABULARY = EsmVocabulary.PADDED_SIZE;

    private static final Initializer WEIGHTS = Initializer.normal(0.02f);

    private final Esm2Config config;
    private final Embedding embedding;
    /** Token dropout; null in a form without. */
    private final @Nullable MaskedEmbeddings masked;

    private final Sequential layers;
    private final LayerNorm norm;
    /** Behind the layers and their norm, of which sequence-parallel ranks have a part of the tokens each, as of the embedding. */
    private final TokenGather gather;

    private final Esm2Head head;
    private final CrossEntropy crossEntropy;
    private final Parameters parameters;
    private final ModelPlan plan;
    private final Scope scope;

    /**
     * Makes a model with its first weights.
     *
     * @param dtype type of weights and activations
     * @param seed equal seeds give equal weights
     * @throws IllegalArgumentException when attention does not take the head dimension, or the type is no float
     */
    public Esm2(Device device, Esm2Config config, DType dtype, long seed) {
        this(device, config, dtype, seed, new ModelPlan());
    }

    /**
     * Makes a model whose parameters are declared in {@code plan}, which says whether and for how many ranks groups are laid
     * out.
     *
     * @param dtype type of weights and activations
     * @param seed equal seeds give equal weights
     * @param plan an empty one
     * @throws IllegalArgumentException when attention does not take the head dimension, or the type is no float
     */
    public Esm2(Device device, Esm2Config config, DType dtype, long seed, ModelPlan plan) {
        this(device, config, plan, declared -> Parameters.allocate(device, declared, dtype, seed));
    }

    /**
     * Makes a model whose parameters are declared in {@code plan} and get their memory from {@code memory}, such as a part of it
     * from {@code FullySharded}.
     *
     * @param plan an empty one
     * @throws IllegalArgumentException when attention does not take the head dimension
     */
    public Esm2(Device device, Esm2Config config, ModelPlan plan, Function<ModelPlan, Parameters> memory) {
        this.config = config;
        this.plan = plan;
        int hidden = config.hidden();
        embedding = Embedding.vocabularyParallel(VOCABULARY, hidden, WEIGHTS, plan.group("embedding"));
        Esm2Form form = config.form();
        masked = form.masks() == Esm2Form.Masks.DROPPED ? new MaskedEmbeddings(plan) : null;
        AttentionConfig attention = AttentionConfig.of(config.heads(), config.headDim(), AttentionMask.none());
        boolean recomputesNorms = config.recomputation() == Esm2Recomputation.NORMS;
        NormConfig normConfig = NormConfig.layerNorm(hidden).withEpsilon(form.normEpsilon());
        TransformerLayerConfig encoder =
                TransformerLayerConfig.encoder(hidden, attention).withNorm(normConfig);
        TransformerLayerConfig layer = encoder.withMlp(
                        encoder.mlp().withGelu(form.gelu()).withInner(config.inner()))
                .withRecomputation(recomputesNorms ? Recomputation.NORMS : Recomputation.NONE);
        List<TransformerLayer> blocks = IntStream.range(0, config.layers())
                .mapToObj(i -> new TransformerLayer(layer, plan.group("layers." + i)))
                .toList();
        boolean recomputesLayers = config.recomputation() == Esm2Recomputation.LAYERS;
        layers = Sequential.of(config.layers(), i -> recomputesLayers ? new Recomputed(blocks.get(i)) : blocks.get(i));
        norm = new LayerNorm(normConfig, plan.group("norm").forTokenParts());
        gather = new TokenGather(plan);
        head = new Esm2Head(normConfig, form.gelu(), WEIGHTS, embedding.weight(), plan.group("head"));
        crossEntropy = CrossEntropy.vocabularyParallel(EsmVocabulary.SIZE, VOCABULARY, plan);
        scope = device.openScope();
        try {
            RotaryEmbedding rotary = RotaryEmbedding.of(
                    scope, config.context(), RotaryConfig.of(config.headDim()).withFrequencies(form.frequencies()));
            blocks.forEach(block -> block.rotate(rotary));
            parameters = memory.apply(plan);
        } catch (RuntimeException | Error failure) {
            scope.close();
            throw failure;
        }
    }

    /** Returns sizes and form. */
    public Esm2Config config() {
        return config;
    }

    /** Returns the number of elements of all parameters, also of those that other ranks keep. */
    public long parameterCount() {
        return plan.parameters().stream()
                .mapToLong(parameter -> parameter.wholeShape().count())
                .sum();
    }

    @Override
    public Parameters parameters() {
        return parameters;
    }

    /**
     * Enqueues the scores of every token.
     *
     * @param ids INT32 [T]
     * @return [T, 64], of which 33 columns count; of N tensor-parallel ranks the r-th ceil(64 / N) of these columns
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor logits(Tensor ids, Pass pass) {
        return logitsOf(layers.forward(embedded(ids, pass), pass), pass);
    }

    private Tensor embedded(Tensor ids, Pass pass) {
        Tensor x = embedding.forward(ids, pass);
        return masked == null ? x : masked.scale(x, ids, pass);
    }

    /**
     * Enqueues the hidden states behind the last norm, from which the head computes scores: what transformers calls {@code
     * last_hidden_state}. In a pass that trains, {@link #backward} does not follow this.
     *
     * @param ids INT32 [T]
     * @return [T, H]
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor hidden(Tensor ids, Pass pass) {
        return hiddenOf(layers.forward(embedded(ids, pass), pass), pass);
    }

    private Tensor hiddenOf(Tensor x, Pass pass) {
        return gather.forward(norm.forward(x, pass), pass);
    }

    private Tensor logitsOf(Tensor x, Pass pass) {
        return head.forward(hiddenOf(x, pass), pass);
    }

    /**
     * Enqueues the forward pass.
     *
     * @param ids INT32 [T]
     * @param labels INT32 [T]; a label outside the vocabulary leaves its token out
     * @return the mean cross-entropy of the labelled tokens, FLOAT32 [1]
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor loss(Tensor ids, Tensor labels, Pass pass) {
        return crossEntropy.forward(logits(ids, pass), labels, pass);
    }

    @Override
    public Tensor loss(ModelInput input, Pass pass) {
        return loss(input.ids(), input.labels(), pass);
    }

    /**
     * Enqueues the gradients of all parameters for the latest {@link #loss}.
     *
     * @param factor on the loss: 1, or a micro-batch's share of the labelled tokens of its step
     */
    public void backward(float factor, Pass pass) {
        backward(factor, null, pass);
    }

    /**
     * {@inheritDoc}
     *
     * @throws IllegalArgumentException when shape, type or device of the scale do not fit
     */
    @Override
    public void backward(float factor, @Nullable Tensor lossScale, Pass pass) {
        Tensor gradient = endBackward(factor, lossScale, pass);
        layers.backward(gradient, gradient, pass);
        beginBackward(gradient, pass);
    }

    @Override
    public List<Layer> layers() {
        return layers.layers();
    }

    @Override
    public Tensor begin(ModelInput input, Pass pass) {
        return embedded(input.ids(), pass);
    }

    @Override
    public Tensor end(Tensor x, ModelInput input, Pass pass) {
        return crossEntropy.forward(logitsOf(x, pass), input.labels(), pass);
    }

    @Override
    public Tensor endBackward(float factor, @Nullable Tensor lossScale, Pass pass) {
        Tensor dlogits = crossEntropy.backward(factor, lossScale, pass);
        return norm.backward(gather.backward(head.backward(dlogits, pass), pass), pass);
    }

    @Override
    public void beginBackward(Tensor dy, Pass pass) {
        embedding.backward(masked == null ? dy : masked.backward(dy, pass), pass);
    }

    @Override
    public double flops(Batch batch) {
        return config.flops(batch.tokens(), batch.attendedPairs());
    }

    @Override
    public int padding() {
        return EsmVocabulary.PAD;
    }

    /** Frees parameters and gradients. A second call does nothing. */
    @Override
    public void close() {
        parameters.close();
        scope.close();
    }
}

package dev.chagres.models.decoder;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.attention.RotaryEmbedding;
import dev.chagres.batch.Batch;
import dev.chagres.batch.LayeredModel;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.TokenScores;
import dev.chagres.layer.Embedding;
import dev.chagres.layer.RmsNorm;
import dev.chagres.layer.TokenGather;
import dev.chagres.layer.TransformerLayer;
import dev.chagres.parallel.TensorParallel;
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
 * A decoder that predicts the next token: {@code loss = crossEntropy(head(norm(layers(embedding(ids)))), labels)}, as Llama, Qwen and Mistral
 * are built.
 *
 * <p>Each layer has RMS norms, causal attention with rotary positions over grouped heads, and SwiGLU. {@link DecoderForm} says what else. In a
 * plan of tensor-parallel ranks the layers are split among them, and so is the vocabulary. The head is computed in the model's type, whatever
 * the recipe is. Parameters begin normal with deviation 0.02, biases at 0, norms at 1.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Touvron et al., "Llama 2" (2023); {@code LlamaForCausalLM}, {@code Qwen2ForCausalLM}, {@code Qwen3ForCausalLM} and {@code
 * MistralForCausalLM} of transformers 5.17.
 */
public final class Decoder implements LayeredModel {
    private final DecoderConfig config;
    private final Embedding embedding;
    private final List<TransformerLayer> blocks;
    private final Sequential layers;
    private final RmsNorm norm;
    /** Behind the layers and their norm, of which sequence-parallel ranks have a part of the tokens each. */
    private final TokenGather gather;

    private final DecoderHead head;
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
    public Decoder(Device device, DecoderConfig config, DType dtype, long seed) {
        this(device, config, new ModelPlan(), declared -> Parameters.allocate(device, declared, dtype, seed));
    }

    /**
     * Makes a model whose parameters are declared in {@code plan} and get their memory from {@code memory}, such as a part of it from {@code
     * FullySharded}.
     *
     * @param plan an empty one
     * @throws IllegalArgumentException when attention does not take the head dimension
     */
    public Decoder(Device device, DecoderConfig config, ModelPlan plan, Function<ModelPlan, Parameters> memory) {
        this.config = config;
        this.plan = plan;
        DecoderSizes sizes = config.sizes();
        embedding = Embedding.vocabularyParallel(
                sizes.paddedVocabulary(), sizes.hidden(), DecoderConfig.WEIGHTS, plan.group("embedding"));
        blocks = IntStream.range(0, sizes.layers())
                .mapToObj(i -> new TransformerLayer(config.layer(i), plan.group("layers." + i)))
                .toList();
        boolean recomputes = config.recomputation() == DecoderConfig.Recomputation.LAYERS;
        layers = Sequential.of(sizes.layers(), i -> recomputes ? new Recomputed(blocks.get(i)) : blocks.get(i));
        norm = new RmsNorm(config.norm(), plan.group("norm").forTokenParts());
        gather = new TokenGather(plan);
        head = new DecoderHead(config, embedding.weight(), plan);
        scope = device.openScope();
        try {
            RotaryEmbedding rotary =
                    RotaryEmbedding.of(scope, sizes.context(), config.form().rotary());
            blocks.forEach(block -> block.rotate(rotary));
            parameters = memory.apply(plan);
        } catch (RuntimeException | Error failure) {
            scope.close();
            throw failure;
        }
    }

    /** Returns sizes and form. */
    public DecoderConfig config() {
        return config;
    }

    /** Returns the number of elements of all parameters, also of those that other ranks keep, and of padding. */
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
     * Enqueues the scores of every token. In a pass that trains, {@link #backward} does not follow this.
     *
     * @param ids INT32 [T]
     * @return [T, {@link DecoderSizes#paddedVocabulary}], of which the first {@link DecoderSizes#vocabulary} columns count; of N
     *     tensor-parallel ranks the r-th part of these columns
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor logits(Tensor ids, Pass pass) {
        return head.logits(hidden(ids, pass), pass);
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
        return normed(layers.forward(embedding.forward(ids, pass), pass), pass);
    }

    private Tensor normed(Tensor x, Pass pass) {
        return gather.forward(norm.forward(x, pass), pass);
    }

    /**
     * Enqueues the forward pass.
     *
     * @param ids INT32 [T]
     * @param labels INT32 [T]: for each token the one that is to follow it; a label outside the vocabulary, such as {@link Batch#IGNORED}, leaves
     *     its token out. The last token of a sequence has such a label, and so have those of a prompt
     * @return the mean cross-entropy of the labelled tokens, FLOAT32 [1]
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor loss(Tensor ids, Tensor labels, Pass pass) {
        return head.loss(hidden(ids, pass), labels, pass);
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
        return embedding.forward(input.ids(), pass);
    }

    @Override
    public Tensor end(Tensor x, ModelInput input, Pass pass) {
        return head.loss(normed(x, pass), input.labels(), pass);
    }

    @Override
    public Tensor endBackward(float factor, @Nullable Tensor lossScale, Pass pass) {
        return norm.backward(gather.backward(head.backward(factor, lossScale, pass), pass), pass);
    }

    @Override
    public void beginBackward(Tensor dy, Pass pass) {
        embedding.backward(dy, pass);
    }

    /** {@inheritDoc} There are none if {@link DecoderConfig#lossTokens} has divided the tokens, for their logits are not kept. */
    @Override
    public @Nullable TokenScores scores() {
        Tensor logits = head.scored();
        if (logits == null) {
            return null;
        }
        TensorParallel ranks = parameters.tensorParallel();
        DecoderSizes sizes = config.sizes();
        return new TokenScores(logits, ranks.begin(sizes.paddedVocabulary(), ranks.rank()), sizes.vocabulary());
    }

    @Override
    public double flops(Batch batch) {
        return config.flops(batch.tokens(), batch.attendedPairs());
    }

    @Override
    public int padding() {
        return config.tokens().padding().orElse(0);
    }

    /** Frees parameters and gradients. A second call does nothing. */
    @Override
    public void close() {
        parameters.close();
        scope.close();
    }
}

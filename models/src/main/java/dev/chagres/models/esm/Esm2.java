package dev.chagres.models.esm;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Scope;
import dev.chagres.Tensor;
import dev.chagres.batch.Batch;
import dev.chagres.batch.LayeredModel;
import dev.chagres.batch.ModelInput;
import dev.chagres.batch.TokenScores;
import dev.chagres.layer.CrossEntropy;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.parallel.TensorParallel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Layer;
import dev.chagres.pass.Pass;
import java.util.List;
import java.util.function.Function;
import org.jspecify.annotations.Nullable;

/**
 * ESM-2: {@code loss = crossEntropy(decoder(norm(gelu(dense(norm(layers(embedding(ids))))))), labels)}.
 *
 * <p>In a plan of tensor-parallel ranks the layers are split among them, and so is the vocabulary: each has some rows of the embedding's
 * table, and computes those columns of the logits.
 *
 * <p>Pre-norm encoder layers with rotary positions, biases and GELU; the decoder's weight is the embedding's table. {@link Esm2Form} says
 * which GELU, and whether embeddings are scaled by the share of masked tokens. No dropout, as published. Parameters begin normal with
 * deviation 0.02, biases at 0, norms at 1.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Lin et al., "Evolutionary-scale prediction of atomic-level protein structure with a language model",
 * Science 2023.
 */
public final class Esm2 implements LayeredModel {
    /** Rows of the embedding and columns of the logits; those from {@link EsmVocabulary#SIZE} on belong to no token. */
    static final int VOCABULARY = EsmVocabulary.PADDED_SIZE;

    private final Esm2Config config;
    private final Esm2Encoder encoder;
    private final Esm2Head head;
    private final CrossEntropy crossEntropy;
    private final Parameters parameters;
    private final ModelPlan plan;
    private final Scope scope;
    /** Those of the latest loss. */
    private @Nullable Tensor scored;

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
        encoder = new Esm2Encoder(config, plan);
        head = new Esm2Head(
                Esm2Encoder.norm(config),
                config.form().headGelu(),
                Esm2Encoder.WEIGHTS,
                encoder.table(),
                plan.group("head"));
        crossEntropy = CrossEntropy.vocabularyParallel(EsmVocabulary.SIZE, VOCABULARY, plan);
        scope = device.openScope();
        parameters = encoder.allocate(scope, plan, memory);
    }

    /** Returns sizes and form. */
    public Esm2Config config() {
        return config;
    }

    /** Returns what the head reads. */
    Esm2Encoder encoder() {
        return encoder;
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
        return head.forward(encoder.forward(ids, pass), pass);
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
        return encoder.forward(ids, pass);
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
        return lossOf(logits(ids, pass), labels, pass);
    }

    private Tensor lossOf(Tensor logits, Tensor labels, Pass pass) {
        scored = logits;
        return crossEntropy.forward(logits, labels, pass);
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
        encoder.backward(endBackward(factor, lossScale, pass), pass);
    }

    @Override
    public List<Layer> layers() {
        return encoder.layers();
    }

    @Override
    public Tensor begin(ModelInput input, Pass pass) {
        return encoder.begin(input.ids(), pass);
    }

    @Override
    public Tensor end(Tensor x, ModelInput input, Pass pass) {
        return lossOf(head.forward(encoder.end(x, pass), pass), input.labels(), pass);
    }

    @Override
    public Tensor endBackward(float factor, @Nullable Tensor lossScale, Pass pass) {
        Tensor dlogits = crossEntropy.backward(factor, lossScale, pass);
        return encoder.endBackward(head.backward(dlogits, pass), pass);
    }

    @Override
    public void beginBackward(Tensor dy, Pass pass) {
        encoder.beginBackward(dy, pass);
    }

    @Override
    public @Nullable TokenScores scores() {
        Tensor logits = scored;
        if (logits == null) {
            return null;
        }
        TensorParallel ranks = parameters.tensorParallel();
        return new TokenScores(logits, ranks.begin(VOCABULARY, ranks.rank()), EsmVocabulary.SIZE);
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

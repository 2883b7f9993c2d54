package dev.chagres.models.esm;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.batch.Batch;
import dev.chagres.models.data.EsmVocabulary;
import dev.chagres.models.transformer.TransformerBody;
import dev.chagres.models.transformer.TransformerModel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.function.Function;

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
public final class Esm2 extends TransformerModel {
    private final Esm2Config config;
    private final Esm2Head head;

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
        TransformerBody body = config.body(plan);
        Esm2Head declared = new Esm2Head(config, body.table(), plan);
        super(device, body, declared, memory);
        this.config = config;
        head = declared;
    }

    /** Returns sizes and form. */
    public Esm2Config config() {
        return config;
    }

    /**
     * Enqueues the scores of every token.
     *
     * @param ids INT32 [T]
     * @return [T, 64], of which 33 columns count; of N tensor-parallel ranks the r-th ceil(64 / N) of these columns
     * @throws IllegalArgumentException when shapes, types or devices do not fit
     */
    public Tensor logits(Tensor ids, Pass pass) {
        return head.forward(hidden(ids, pass), pass);
    }

    @Override
    public double flops(Batch batch) {
        return config.flops(batch.tokens(), batch.attendedPairs());
    }

    @Override
    public int padding() {
        return EsmVocabulary.PAD;
    }
}

package dev.chagres.models.decoder;

import dev.chagres.DType;
import dev.chagres.Device;
import dev.chagres.Tensor;
import dev.chagres.batch.Batch;
import dev.chagres.models.transformer.TransformerBody;
import dev.chagres.models.transformer.TransformerModel;
import dev.chagres.parameter.ModelPlan;
import dev.chagres.parameter.Parameters;
import dev.chagres.pass.Pass;
import java.util.function.Function;

/**
 * A decoder that predicts the next token: {@code loss = crossEntropy(head(norm(layers(embedding(ids)))), labels)}, as Llama, Qwen and Mistral
 * are built.
 *
 * <p>Each layer has RMS norms, causal attention with rotary positions over grouped heads, and SwiGLU. {@link DecoderForm} says what else. In a
 * plan of tensor-parallel ranks the layers are split among them, and so is the vocabulary. The head is computed in the model's type, whatever
 * the recipe is. Parameters begin normal with deviation 0.02, biases at 0, norms at 1.
 *
 * <p>The label of a token is the one that is to follow it. The last token of a sequence has none, and so have those of a prompt. There are no
 * {@link #scores} if {@link DecoderConfig#lossTokens} has divided the tokens, for their logits are not kept.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: Touvron et al., "Llama 2" (2023); {@code LlamaForCausalLM}, {@code Qwen2ForCausalLM}, {@code Qwen3ForCausalLM} and {@code
 * MistralForCausalLM} of transformers 5.17.
 */
public final class Decoder extends TransformerModel {
    private final DecoderConfig config;
    private final DecoderHead head;

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
        TransformerBody body = new TransformerBody(config.body(), null, plan);
        DecoderHead declared = new DecoderHead(config, body.table(), plan);
        super(device, body, declared, memory);
        this.config = config;
        head = declared;
    }

    /** Returns sizes and form. */
    public DecoderConfig config() {
        return config;
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

    @Override
    public double flops(Batch batch) {
        return config.flops(batch.tokens(), batch.attendedPairs());
    }

    @Override
    public int padding() {
        return config.tokens().padding().orElse(0);
    }
}

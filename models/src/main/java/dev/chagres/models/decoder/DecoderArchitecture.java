package dev.chagres.models.decoder;

/**
 * Families of decoders, by the names that transformers gives them. They differ in biases and norms of heads.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code modeling_llama.py}, {@code modeling_qwen2.py}, {@code modeling_qwen3.py}, {@code modeling_mistral.py} of transformers
 * 5.17.
 */
public enum DecoderArchitecture {
    /** Llama 2 and 3. Biases, if there are some, are those of all products of attention. */
    LLAMA("LlamaForCausalLM", "llama"),
    /** Qwen 2 and 2.5. The products of query, key and value have biases, the others have none. */
    QWEN2("Qwen2ForCausalLM", "qwen2"),
    /** Qwen 3. An RMS norm of each head of query and key comes before the rotation. */
    QWEN3("Qwen3ForCausalLM", "qwen3"),
    /** Mistral. There are no biases. */
    MISTRAL("MistralForCausalLM", "mistral");

    private final String className;
    private final String modelType;

    DecoderArchitecture(String className, String modelType) {
        this.className = className;
        this.modelType = modelType;
    }

    /** Returns the class of transformers, which {@code architectures} of {@code config.json} names. */
    public String className() {
        return className;
    }

    /** Returns {@code model_type} of {@code config.json}. */
    public String modelType() {
        return modelType;
    }
}

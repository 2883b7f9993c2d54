package dev.chagres.models.huggingface;

import dev.chagres.models.decoder.DecoderArchitecture;
import java.util.Arrays;
import java.util.List;

/**
 * How the tensors of a decoder are named and laid out in a folder.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code modeling_llama_te.py} and {@code modeling_qwen3_te.py} of NVIDIA's BioNeMo recipes.
 */
public enum DecoderLayout {
    /** {@code LlamaForCausalLM} and others of transformers. */
    TRANSFORMERS(""),
    /**
     * {@code NVLlamaForCausalLM} and {@code NVQwen3ForCausalLM} of NVIDIA's recipes, without biases and windows. One weight has for each key head
     * its query heads, the key and the value, another one gate and up. It opens with the code of these recipes.
     */
    NVIDIA("NV");

    private static final List<DecoderArchitecture> NVIDIA_HAS =
            List.of(DecoderArchitecture.LLAMA, DecoderArchitecture.QWEN3);

    private final String prefix;

    DecoderLayout(String prefix) {
        this.prefix = prefix;
    }

    boolean has(DecoderArchitecture architecture) {
        return this == TRANSFORMERS || NVIDIA_HAS.contains(architecture);
    }

    /** Returns the class that {@code architectures} names. */
    String className(DecoderArchitecture architecture) {
        return prefix + architecture.className();
    }

    /** Returns the classes of all layouts. */
    static List<String> classNames() {
        return Arrays.stream(values())
                .flatMap(layout -> Arrays.stream(DecoderArchitecture.values())
                        .filter(layout::has)
                        .map(layout::className))
                .toList();
    }
}

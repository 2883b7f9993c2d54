package dev.chagres.models.huggingface;

/**
 * How the tensors of an ESM-2 with the head of the masked-language model are named and laid out in a folder.
 *
 * <p>Threading: immutable.
 */
public enum EsmLayout {
    /** {@code EsmForMaskedLM} of transformers. */
    TRANSFORMERS,
    /**
     * {@code NVEsmForMaskedLM} of NVIDIA's recipes, with a vocabulary of 64 rows. Its layers have the GELU by tanh, its head the exact one;
     * frequencies of the rotation are {@code 10000^(-2 i / d)}. It opens with the code of these recipes.
     */
    NV_ESM,
    /** The same with a vocabulary of 33 rows, as newer exports have it. */
    NV_ESM_UNPADDED;

    /** Returns whether it is one of NVIDIA's. */
    boolean isNvidia() {
        return this != TRANSFORMERS;
    }
}

package dev.chagres.recipe;

/**
 * In which precision attention is computed.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code fp8_dpa} and {@code fp8_mha} of TE's recipes.
 */
public enum AttentionPrecision {
    /** In the type of the model. */
    HIGH_PRECISION,
    /** In eight bits: query, key and value are cast before attention. Their gradients are in the model's type. */
    FP8_DPA,
    /**
     * In eight bits, including the tensors around attention: if there is no other operation in between, the product of query, key and value
     * writes eight bits itself, and reads their gradients in eight bits.
     */
    FP8_MHA
}

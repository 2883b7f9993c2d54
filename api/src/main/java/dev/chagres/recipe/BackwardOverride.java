package dev.chagres.recipe;

/**
 * In which precision backward computes its products.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code backward_override} of TE's recipes.
 */
public enum BackwardOverride {
    /** In eight bits, as forward does. */
    NONE,
    /** In the model's type, with inputs and weights from before quantization; inputs are kept in the model's type. */
    HIGH_PRECISION,
    /** In the model's type, with the dequantized inputs and weights of forward. */
    DEQUANTIZED
}

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
    /** In the model's type, with inputs and weights as they were before they were quantized; inputs are kept whole. */
    HIGH_PRECISION,
    /** In the model's type, with inputs and weights as forward used them: dequantized. */
    DEQUANTIZED
}

package dev.chagres.recipe;

import dev.chagres.DType;

/**
 * The eight-bit types of inputs, weights and gradients.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code Format} of TE's recipes.
 */
public enum Format {
    /** E4M3, of more precision, forward; E5M2, of more range, for gradients. */
    HYBRID(DType.FLOAT8_E4M3, DType.FLOAT8_E5M2),
    /** E4M3 everywhere. */
    E4M3(DType.FLOAT8_E4M3, DType.FLOAT8_E4M3);

    private final DType forward;
    private final DType backward;

    Format(DType forward, DType backward) {
        this.forward = forward;
        this.backward = backward;
    }

    /** Returns the type of inputs and weights. */
    public DType forward() {
        return forward;
    }

    /** Returns the type of gradients. */
    public DType backward() {
        return backward;
    }
}

package dev.chagres.layer;

/**
 * Where a transformer layer has the norm that is not the MLP's or cross-attention's, which always stand before these.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code output_layernorm} of TE's {@code TransformerLayer}.
 */
public enum NormPlacement {
    /** Before self-attention. */
    INPUT,
    /** Behind the last sum: {@code y = norm(…)}; self-attention reads x as it is. */
    OUTPUT
}

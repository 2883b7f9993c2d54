package dev.chagres.layer;

/**
 * Where a transformer layer has its first norm: before self-attention or at the end of the layer. The norms of MLP and cross-attention
 * always come before these.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code output_layernorm} of TE's {@code TransformerLayer}.
 */
public enum NormPlacement {
    /** Before self-attention. */
    INPUT,
    /** After the last sum: {@code y = norm(…)}; self-attention reads x without a norm. */
    OUTPUT
}

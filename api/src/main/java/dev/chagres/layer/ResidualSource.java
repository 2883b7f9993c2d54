package dev.chagres.layer;

/**
 * The tensor to which the output of a branch is added.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code apply_residual_connection_post_layernorm} of TE's {@code TransformerLayer}.
 */
public enum ResidualSource {
    /** The branch's input before its norm: {@code y = x + branch(norm(x))}. */
    INPUT,
    /** The output of its norm: {@code y = norm(x) + branch(norm(x))}. */
    NORM
}

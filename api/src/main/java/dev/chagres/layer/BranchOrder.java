package dev.chagres.layer;

/**
 * Whether the MLP of a transformer layer reads the output of attention or the input of attention.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code parallel_attention_mlp} of TE's {@code TransformerLayer}.
 */
public enum BranchOrder {
    /** {@code h = x + attention(norm(x))}, {@code y = h + mlp(norm(h))}. */
    SEQUENTIAL,
    /** {@code y = x + attention(norm(x)) + mlp(norm(x))}, each with its own norm, as in Falcon. */
    PARALLEL
}

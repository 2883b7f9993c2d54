package dev.chagres.te;

/**
 * An extra term in the denominator of an attention's softmax. With one, the weights of a query sum to less than 1.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTE_Softmax_Type} in TE's {@code fused_attn.h}; {@code OpsSoftmax} in {@code ops.h}.
 */
public enum SoftmaxType {
    /** Nothing: {@code p_j = exp(s_j) / sum_k exp(s_k)}. */
    VANILLA,
    /** One: {@code p_j = exp(s_j) / (1 + sum_k exp(s_k))}. */
    OFF_BY_ONE,
    /** The exponential of a learnable number of the head, its sink: {@code p_j = exp(s_j) / (exp(sink) + sum_k exp(s_k))}. */
    LEARNABLE;

    /** Returns the C constant. */
    public int code() {
        return ordinal();
    }
}

package dev.chagres.te;

/**
 * What the sum of an attention's softmax has besides the exponentials of its scores. A query may then attend to less than one
 * key.
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
    /** The exponential of a learnt number of the head, its sink: {@code p_j = exp(s_j) / (exp(sink) + sum_k exp(s_k))}. */
    LEARNABLE;

    /** Returns the number that C has for it. */
    public int code() {
        return ordinal();
    }
}

package dev.chagres.te;

/**
 * What fused attention adds to its scores {@code s = scale q_i . k_j} before the softmax.
 *
 * <p>Threading: immutable.
 *
 * <p>Source: {@code NVTE_Bias_Type} in TE's {@code fused_attn.h}.
 */
public enum BiasType {
    /** Nothing. */
    NO_BIAS,
    /** A number for each score, added before the scale. Transformer Engine has the constant, but refuses it. */
    PRE_SCALE_BIAS,
    /** A number for each score, added after the scale: {@code s + bias[b, h, i, j]}. */
    POST_SCALE_BIAS,
    /**
     * ALiBi, {@code s - slope_h (i - j)}, under causal masks. With n the largest power of two that is at most the number of heads, the
     * first n slopes are {@code 2^(-8/n), 2^(-16/n), …, 2^-8}; further heads take every second slope of 2n heads.
     */
    ALIBI;

    /** Returns whether the bias is a tensor: {@link AttentionTensors#bias(dev.chagres.Tensor)}. */
    public boolean isTensor() {
        return this == PRE_SCALE_BIAS || this == POST_SCALE_BIAS;
    }

    /** Returns the C constant. */
    public int code() {
        return ordinal();
    }
}

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
    /** A number for each score, before the scale. Transformer Engine has a name for it and refuses it. */
    PRE_SCALE_BIAS,
    /** A number for each score, behind the scale: {@code s + bias[b, h, i, j]}. */
    POST_SCALE_BIAS,
    /**
     * Linear biases, {@code s - slope_h (i - j)}, under masks that show no later key. With n the largest power of two that is at most
     * the number of heads, the first n slopes are {@code 2^(-8/n), 2^(-16/n), …, 2^-8}, and the rest every second of those that 2n
     * heads would have.
     */
    ALIBI;

    /** Returns whether it comes as a tensor: {@link AttentionTensors#bias(dev.chagres.Tensor)}. */
    public boolean isTensor() {
        return this == PRE_SCALE_BIAS || this == POST_SCALE_BIAS;
    }

    /** Returns the number that C has for it. */
    public int code() {
        return ordinal();
    }
}

package dev.chagres.ops;

import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.SoftmaxType;
import org.jspecify.annotations.Nullable;

/**
 * Modifications of an attention's scores {@code s = scale q_i . k_j} before the softmax, in this order:
 *
 * <ol>
 *   <li>soft cap: {@code s = cap tanh(s / cap)};
 *   <li>ALiBi: {@code s = s - slope_h |i + d - j|} with d as the {@link Alignment} says;
 *   <li>bias: {@code s = s + bias[b, h, i, j]}; a pre-scale bias comes first instead, {@code s = scale (q_i . k_j + bias[b, h, i, j])};
 *   <li>mask: {@code s = -infinity} where {@code mask[b, h, i, j]} is not 0.
 * </ol>
 *
 * <p>The denominator of the softmax may have an extra term: {@link SoftmaxType}. Positions i and j count from the first query and key
 * of the sequence, in packed tensors too. Bias and mask are [1 or B, 1 or h, at least the longest query sequence, at least the
 * longest key sequence], gaps behind packed sequences included; where a size is 1, all sequences or heads share the elements. Without
 * setters called, nothing is modified. The object is reused for the next call.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsScores} in {@code ops.h}; Gemma 2 (2024) for the soft cap; Press et al., Train short, test long (2021)
 * for ALiBi; Xiao et al., Efficient streaming language models with attention sinks (2023).
 */
public final class AttentionScores {
    /** The diagonal from which ALiBi counts. */
    public enum Alignment {
        /** First query with first key: d is 0. */
        TOP_LEFT,
        /** Last query with last key: d is the number of keys less that of the queries. */
        BOTTOM_RIGHT
    }

    private float softcap;
    private @Nullable Tensor slopes;
    private Alignment alignment = Alignment.BOTTOM_RIGHT;
    private @Nullable Tensor bias;
    private boolean preScale;
    private @Nullable Tensor biasGradient;
    private @Nullable Tensor mask;
    private SoftmaxType softmaxType = SoftmaxType.VANILLA;
    private @Nullable Tensor sinks;
    private @Nullable Tensor sinksGradient;

    /** Makes an object without modifications. */
    public AttentionScores() {}

    /** Sets the soft cap, a finite number; 0: none. */
    public AttentionScores softcap(float cap) {
        softcap = cap;
        return this;
    }

    /**
     * Sets the slopes of ALiBi.
     *
     * @param newSlopes FLOAT32 [h], or [B, h] with slopes of each sequence; null: no ALiBi
     */
    public AttentionScores alibi(@Nullable Tensor newSlopes, Alignment newAlignment) {
        slopes = newSlopes;
        alignment = newAlignment;
        return this;
    }

    /** Sets the bias, of the query's type, which is added after scaling: TE's {@code post_scale_bias}; null: none. */
    public AttentionScores bias(@Nullable Tensor tensor) {
        bias = tensor;
        preScale = false;
        return this;
    }

    /** Sets the bias, of the query's type, which is added before scaling: TE's {@code pre_scale_bias}; null: none. */
    public AttentionScores preScaleBias(@Nullable Tensor tensor) {
        bias = tensor;
        preScale = true;
        return this;
    }

    /** Sets the gradient of the bias, like the bias, which backward writes; null: none. */
    public AttentionScores biasGradient(@Nullable Tensor tensor) {
        biasGradient = tensor;
        return this;
    }

    /** Sets the mask, BYTE, not 0 where a query does not see a key; null: none. */
    public AttentionScores mask(@Nullable Tensor tensor) {
        mask = tensor;
        return this;
    }

    /**
     * Sets the softmax.
     *
     * @param newSinks FLOAT32 [h], for {@link SoftmaxType#LEARNABLE} alone
     */
    public AttentionScores softmax(SoftmaxType type, @Nullable Tensor newSinks) {
        softmaxType = type;
        sinks = newSinks;
        return this;
    }

    /** Sets the gradient of the sinks, FLOAT32 [h], which backward writes; null: none. */
    public AttentionScores sinksGradient(@Nullable Tensor tensor) {
        sinksGradient = tensor;
        return this;
    }

    /** Returns the soft cap; 0: none. */
    public float softcap() {
        return softcap;
    }

    /** Returns the slopes of ALiBi, or null. */
    public @Nullable Tensor slopes() {
        return slopes;
    }

    /** Returns the diagonal from which ALiBi counts. */
    public Alignment alignment() {
        return alignment;
    }

    /** Returns the bias, or null. */
    public @Nullable Tensor bias() {
        return bias;
    }

    /** Returns whether the bias is added before the scale. */
    public boolean isPreScale() {
        return preScale;
    }

    /** Returns the gradient of the bias, or null. */
    public @Nullable Tensor biasGradient() {
        return biasGradient;
    }

    /** Returns the mask, or null. */
    public @Nullable Tensor mask() {
        return mask;
    }

    /** Returns the softmax. */
    public SoftmaxType softmaxType() {
        return softmaxType;
    }

    /** Returns the sinks, or null. */
    public @Nullable Tensor sinks() {
        return sinks;
    }

    /** Returns the gradient of the sinks, or null. */
    public @Nullable Tensor sinksGradient() {
        return sinksGradient;
    }

    /** Returns whether scores stay unmodified. */
    public boolean isPlain() {
        return softcap == 0 && slopes == null && bias == null && mask == null && softmaxType == SoftmaxType.VANILLA;
    }

    void checkForward(AttentionTensors tensors, Stream stream) {
        if (!isPlain()) {
            AttentionScoreChecks.inputs(this, tensors, stream);
        }
    }

    void checkBackward(AttentionTensors tensors, Stream stream) {
        checkForward(tensors, stream);
        AttentionScoreChecks.gradients(this, tensors, stream);
    }
}

package dev.chagres.ops;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsScoreShape;
import dev.chagres.bindings.ops.OpsScores;
import dev.chagres.internal.Checks;
import dev.chagres.te.AttentionTensors;
import dev.chagres.te.SoftmaxType;
import java.lang.foreign.MemorySegment;
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

    /** Returns the bias, or null. */
    public @Nullable Tensor bias() {
        return bias;
    }

    /** Returns the sinks, or null. */
    public @Nullable Tensor sinks() {
        return sinks;
    }

    /** Returns the gradient of the bias, or null. */
    public @Nullable Tensor biasGradient() {
        return biasGradient;
    }

    /** Returns the gradient of the sinks, or null. */
    public @Nullable Tensor sinksGradient() {
        return sinksGradient;
    }

    /** Returns whether scores stay unmodified. */
    public boolean isPlain() {
        return softcap == 0 && slopes == null && bias == null && mask == null && softmaxType == SoftmaxType.VANILLA;
    }

    /** Fills in the scores inside the struct of an attention, with the shapes of bias and mask inside these. */
    void writeTo(MemorySegment struct, MemorySegment biasShape, MemorySegment maskShape) {
        OpsScores.softcap(struct, softcap);
        OpsScores.alibi_slopes(struct, Checks.addressOrNull(slopes));
        OpsScores.alibi_sequences(struct, slopes == null || slopes.rank() == 1 ? 1 : slopes.size(0));
        OpsScores.alibi_alignment(
                struct, alignment == Alignment.BOTTOM_RIGHT ? Ops.OPS_BOTTOM_RIGHT() : Ops.OPS_TOP_LEFT());
        OpsScores.bias(struct, Checks.addressOrNull(bias));
        OpsScores.bias_type(struct, preScale ? Ops.OPS_PRE_SCALE_BIAS() : Ops.OPS_POST_SCALE_BIAS());
        write(biasShape, bias);
        OpsScores.mask(struct, Checks.addressOrNull(mask));
        write(maskShape, mask);
        OpsScores.softmax_type(struct, softmaxType.code());
        OpsScores.sinks(struct, Checks.addressOrNull(sinks));
        OpsScores.d_bias(struct, Checks.addressOrNull(biasGradient));
        OpsScores.d_sinks(struct, Checks.addressOrNull(sinksGradient));
    }

    private static void write(MemorySegment shape, @Nullable Tensor tensor) {
        if (tensor != null) {
            OpsScoreShape.sequences(shape, tensor.size(0));
            OpsScoreShape.heads(shape, tensor.size(1));
            OpsScoreShape.queries(shape, tensor.size(2));
            OpsScoreShape.keys(shape, tensor.size(3));
        }
    }

    void checkForward(AttentionTensors tensors, Stream stream) {
        if (isPlain()) {
            return;
        }
        if (!(softcap >= 0) || Float.isInfinite(softcap)) {
            throw new IllegalArgumentException(
                    "softcap: expected 0, which is none, or a finite number above it, got " + softcap);
        }
        Checks.given("alignment", alignment, "softmaxType", softmaxType);
        checkSlopes(tensors, stream);
        checkByScore("bias", bias, tensors.query().dtype(), tensors, stream);
        checkByScore("mask", mask, DType.BYTE, tensors, stream);
        if (softmaxType == SoftmaxType.LEARNABLE) {
            if (sinks == null) {
                throw new IllegalStateException("sinks: expected FLOAT32[" + heads(tensors)
                        + "], for the softmax is LEARNABLE, got none; give them with softmax(LEARNABLE, sinks)");
            }
            Checks.vector(stream, "sinks", sinks, DType.FLOAT32, heads(tensors));
            tensors.checkRead("sinks", sinks);
        }
    }

    void checkBackward(AttentionTensors tensors, Stream stream) {
        checkForward(tensors, stream);
        if (biasGradient != null) {
            if (bias == null) {
                throw new IllegalArgumentException(
                        "biasGradient: expected none, for there is no bias, got " + Checks.describe(biasGradient));
            }
            tensors.checkApart("biasGradient", Checks.like(stream, "biasGradient", biasGradient, bias));
        }
        if (sinksGradient != null) {
            if (softmaxType != SoftmaxType.LEARNABLE) {
                throw new IllegalArgumentException("sinksGradient: expected none, for the softmax is " + softmaxType
                        + ", got " + Checks.describe(sinksGradient));
            }
            Checks.vector(stream, "sinksGradient", sinksGradient, DType.FLOAT32, heads(tensors));
            tensors.checkApart("sinksGradient", sinksGradient);
        }
    }

    private static long heads(AttentionTensors tensors) {
        Tensor query = tensors.query();
        return query.size(query.rank() - 2);
    }

    private void checkSlopes(AttentionTensors tensors, Stream stream) {
        if (slopes == null) {
            return;
        }
        Checks.on(stream, "slopes", slopes);
        long heads = heads(tensors);
        int rank = slopes.rank();
        boolean fits = slopes.dtype() == DType.FLOAT32
                && rank > 0
                && slopes.size(rank - 1) == heads
                && (rank == 1 || (rank == 2 && slopes.size(0) == tensors.sequences()));
        if (!fits) {
            throw new IllegalArgumentException("slopes: expected FLOAT32[" + heads + "] or FLOAT32["
                    + tensors.sequences() + ", " + heads + "], got " + Checks.describe(slopes));
        }
        tensors.checkRead("slopes", slopes);
    }

    private static void checkByScore(
            String argument, @Nullable Tensor tensor, DType dtype, AttentionTensors tensors, Stream stream) {
        if (tensor == null) {
            return;
        }
        Checks.on(stream, argument, tensor);
        boolean fits = tensor.dtype() == dtype
                && tensor.rank() == 4
                && isShared(tensor.size(0), tensors.sequences())
                && isShared(tensor.size(1), heads(tensors))
                && tensor.size(2) >= tensors.queryLength()
                && tensor.size(3) >= tensors.keyLength();
        if (!fits) {
            throw new IllegalArgumentException(argument + ": expected " + dtype + "[1 or " + tensors.sequences()
                    + ", 1 or " + heads(tensors) + ", " + tensors.queryLength() + " or more, " + tensors.keyLength()
                    + " or more], got " + Checks.describe(tensor));
        }
        tensors.checkRead(argument, tensor);
    }

    private static boolean isShared(long size, long all) {
        return size == 1 || size == all;
    }
}

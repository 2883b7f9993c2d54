package dev.chagres.ops;

import dev.chagres.Tensor;
import dev.chagres.bindings.ops.Ops;
import dev.chagres.bindings.ops.OpsAttention;
import dev.chagres.bindings.ops.OpsScoreShape;
import dev.chagres.bindings.ops.OpsScores;
import dev.chagres.internal.Checks;
import dev.chagres.ops.AttentionScores.Alignment;
import java.lang.foreign.MemorySegment;
import org.jspecify.annotations.Nullable;

/**
 * The part of an attention call's native struct that holds {@link AttentionScores}.
 *
 * <p>Threading: the device's thread.
 *
 * <p>Source: {@code OpsScores} in {@code ops.h}.
 */
final class AttentionScoreStruct {
    private final MemorySegment segment;
    private final MemorySegment biasShape;
    private final MemorySegment maskShape;
    /** Whether the struct leaves scores unmodified, so that calls without modifications need not write it. */
    private boolean plain = true;

    AttentionScoreStruct(MemorySegment attention) {
        segment = OpsAttention.scores(attention);
        biasShape = OpsScores.bias_shape(segment);
        maskShape = OpsScores.mask_shape(segment);
    }

    void describe(AttentionScores scores) {
        if (scores.isPlain()) {
            if (!plain) {
                clear();
            }
            return;
        }
        plain = false;
        Tensor slopes = scores.slopes();
        OpsScores.softcap(segment, scores.softcap());
        OpsScores.alibi_slopes(segment, Checks.addressOrNull(slopes));
        OpsScores.alibi_sequences(segment, slopes == null || slopes.rank() == 1 ? 1 : slopes.size(0));
        OpsScores.alibi_alignment(
                segment, scores.alignment() == Alignment.BOTTOM_RIGHT ? Ops.OPS_BOTTOM_RIGHT() : Ops.OPS_TOP_LEFT());
        OpsScores.bias(segment, Checks.addressOrNull(scores.bias()));
        OpsScores.bias_type(segment, scores.isPreScale() ? Ops.OPS_PRE_SCALE_BIAS() : Ops.OPS_POST_SCALE_BIAS());
        write(biasShape, scores.bias());
        OpsScores.mask(segment, Checks.addressOrNull(scores.mask()));
        write(maskShape, scores.mask());
        OpsScores.softmax_type(segment, scores.softmaxType().code());
        OpsScores.sinks(segment, Checks.addressOrNull(scores.sinks()));
        OpsScores.d_bias(segment, Checks.addressOrNull(scores.biasGradient()));
        OpsScores.d_sinks(segment, Checks.addressOrNull(scores.sinksGradient()));
    }

    /** Makes the struct leave scores unmodified; the other fields are then ignored. */
    private void clear() {
        plain = true;
        OpsScores.softcap(segment, 0);
        OpsScores.alibi_slopes(segment, 0);
        OpsScores.bias(segment, 0);
        OpsScores.mask(segment, 0);
        OpsScores.softmax_type(segment, Ops.OPS_SOFTMAX_VANILLA());
    }

    private static void write(MemorySegment shape, @Nullable Tensor tensor) {
        if (tensor != null) {
            OpsScoreShape.sequences(shape, tensor.size(0));
            OpsScoreShape.heads(shape, tensor.size(1));
            OpsScoreShape.queries(shape, tensor.size(2));
            OpsScoreShape.keys(shape, tensor.size(3));
        }
    }
}

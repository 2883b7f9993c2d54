package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.Stream;
import dev.chagres.Tensor;
import dev.chagres.attention.AttentionMask;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.internal.Inside;
import dev.chagres.ops.ResidualNorm;
import dev.chagres.pass.Pass;
import dev.chagres.te.Activation;
import dev.chagres.te.QkvFormat;
import dev.chagres.te.QkvLayout;
import java.util.Arrays;
import org.jspecify.annotations.Nullable;

/**
 * Decides which kernels a layer runs. The choice depends only on configuration, type and lengths, and on which cases TE supports; the
 * reference answers as TE does with the tested cuDNN, so that the choice is the same on every provider.
 *
 * <p>Threading: immutable.
 */
final class KernelChoice {
    /** Where an activation is computed. */
    enum ActivationKernel {
        /** In the epilogue of the product before it, and its gradient in the epilogue of the backward product after it. */
        EPILOGUE,
        /** By a kernel of its own. */
        SEPARATE
    }

    /** Which kernels compute attention. */
    enum AttentionKernels {
        /** cuDNN's, through TE. */
        FUSED,
        /** Our own. */
        TILED
    }

    /** Columns of the widest heads that our kernels compute faster than cuDNN's. */
    private static final int NARROW = 32;

    /** Columns of layer norms, and of RMS norms, for which TE has tuned kernels; in order. */
    private static final int[] TUNED_LAYER_NORMS = {768, 1024, 1536, 2048, 2304, 3072, 3840, 4096, 5120, 6144, 8192};

    private static final int[] TUNED_RMS_NORMS = {512, 768, 1024, 2048, 4096, 8192};
    /** Columns of the narrowest rows for which another kernel matters. */
    private static final int WIDE = 256;

    private KernelChoice() {}

    /**
     * Returns whether our kernel computes a norm that nothing is fused with: TE's general kernel, for columns that it has no tuned one for,
     * takes 63 us for 16,384 rows of 1,280 on an H200, ours 43.
     */
    static boolean isOwnNorm(NormConfig.Kind kind, Tensor x) {
        long columns = x.size(1);
        int[] tuned = kind == NormConfig.Kind.LAYER_NORM ? TUNED_LAYER_NORMS : TUNED_RMS_NORMS;
        return columns >= WIDE && ResidualNorm.takes(x) && Arrays.binarySearch(tuned, Math.toIntExact(columns)) < 0;
    }

    /** cuBLASLt has an epilogue only for GELU by tanh, and TE only for 16-bit types. */
    static ActivationKernel activation(MlpActivation activation, DType dtype) {
        return activation.kind() == Activation.GELU && !activation.isExactGelu() && dtype != DType.FLOAT32
                ? ActivationKernel.EPILOGUE
                : ActivationKernel.SEPARATE;
    }

    static String activationReason(MlpActivation activation, DType dtype) {
        return switch (activation(activation, dtype)) {
            case EPILOGUE -> "in the epilogue of ops_matrix_product, forward and backward";
            case SEPARATE ->
                activation.forwardFunction() + " and " + activation.backwardFunction() + ", for "
                        + separateReason(activation);
        };
    }

    private static String separateReason(MlpActivation activation) {
        if (activation.isExactGelu()) {
            return "the product's epilogue has only the form of GELU by tanh";
        }
        return activation.kind() == Activation.GELU
                ? "the product's epilogue takes no FLOAT32"
                : "products have an epilogue only for GELU";
    }

    /**
     * cuDNN has no attention for FLOAT32, no gradients of padded batches of one token a sequence, and supports neither all modifications of
     * scores of {@link ScoreMods} nor all masks with dropout or with keys of other lengths. Narrow heads are faster with our own kernels
     * if scores are unmodified and nothing is dropped: a step of ESM-2 8M takes 7.9 ms on an H200 instead of 9.9.
     */
    static AttentionKernels attention(
            FusedScoreMods scores, QkvLayout layout, DType dtype, Sequences sequences, Pass pass) {
        return whyTiled(scores, layout, dtype, sequences, pass) == null
                ? AttentionKernels.FUSED
                : AttentionKernels.TILED;
    }

    static String attentionReason(
            FusedScoreMods scores, QkvLayout layout, DType dtype, Sequences sequences, Pass pass) {
        boolean gpu = pass.device().provider() == Provider.CUDA;
        String tiled = whyTiled(scores, layout, dtype, sequences, pass);
        // With a soft cap a GPU may take a graph instead.
        String where = gpu || scores.config().softcap() > 0 ? "" : " as on a GPU";
        return tiled == null
                ? "te_fused_attn_fwd_v2 and te_fused_attn_bwd_v2, "
                        + (gpu ? "which run cuDNN's kernels" : "which the CPU reference computes")
                : "ops_attention_forward and ops_attention_backward" + where + ", for " + tiled;
    }

    /** Returns why cuDNN's kernels do not compute a call, or null. Texts are constants or cached, since each call asks. */
    private static @Nullable String whyTiled(
            FusedScoreMods scores, QkvLayout layout, DType dtype, Sequences sequences, Pass pass) {
        if (dtype == DType.FLOAT32) {
            return "cuDNN has no attention in FLOAT32";
        }
        if (hasGaps(sequences)) {
            return "cuDNN does not write the gaps between packed sequences";
        }
        if (sequences.part() >= 0 && !scores.config().mask().equals(AttentionMask.none())) {
            return "cuDNN counts windows from the first or last query of a sequence, of which this rank has only some";
        }
        if (lacksKeys(sequences)) {
            return "cuDNN does not write 0 for queries of a padded sequence without keys";
        }
        if (isSingle(sequences)) {
            return "cuDNN has no attention backward for padded batches of one token a sequence";
        }
        return scores.isPlain(sequences) && isNarrow(scores.config())
                ? "cuDNN is slower at heads of at most " + NARROW + " columns"
                : scores.refusal(layout, dtype, sequences, pass);
    }

    private static boolean isNarrow(AttentionConfig config) {
        return config.headDim() <= NARROW && config.dropout().isNone();
    }

    private static boolean hasGaps(Sequences sequences) {
        return sequences.cuSeqlensPadded() != null || sequences.keys().cuSeqlensPadded() != null;
    }

    /** Returns whether a padded sequence of keys has none, where they are not the queries' own. */
    static boolean lacksKeys(Sequences sequences) {
        return hasOwnKeyLengths(sequences) && sequences.keys().cuSeqlens().shortest() == 0;
    }

    /** Makes sure that a graph which is captured now is never launched with a padded sequence without keys. */
    static void keepKeys(Sequences sequences, Stream stream) {
        if (hasOwnKeyLengths(sequences) && Inside.capture(stream) != null) {
            sequences.keys().cuSeqlens().needTokens();
        }
    }

    private static boolean hasOwnKeyLengths(Sequences sequences) {
        return sequences.format() != QkvFormat.THD && sequences.keys() != sequences;
    }

    static boolean isSingle(Sequences sequences) {
        return sequences.format() != QkvFormat.THD
                && (sequences.length() == 1 || sequences.keys().length() == 1);
    }
}

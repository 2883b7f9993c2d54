package dev.chagres.layer;

import dev.chagres.DType;
import dev.chagres.attention.Sequences;
import dev.chagres.bindings.Provider;
import dev.chagres.te.Activation;
import dev.chagres.te.QkvFormat;

/**
 * The one place that says which kernels a layer runs. The choice depends on configuration, type and lengths alone, so that it is
 * the same on every provider.
 *
 * <p>Threading: immutable.
 */
final class KernelChoice {
    /** Where an activation is computed. */
    enum ActivationKernel {
        /** In the epilogue of the product before it, and its gradient in that of the product behind it. */
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

    /** Columns of the widest heads that our kernels compute on tensor cores. */
    private static final int NARROW = 32;

    private KernelChoice() {}

    /** cuBLASLt has an epilogue for GELU alone, and with TE for 16-bit types alone. */
    static ActivationKernel activation(Activation activation, DType dtype) {
        return activation == Activation.GELU && dtype != DType.FLOAT32
                ? ActivationKernel.EPILOGUE
                : ActivationKernel.SEPARATE;
    }

    static String activationReason(Activation activation, DType dtype) {
        return switch (activation(activation, dtype)) {
            case EPILOGUE -> "in the epilogue of ops_matrix_product, forward and backward";
            case SEPARATE ->
                activation.forwardFunction() + " and " + activation.backwardFunction() + ", for "
                        + (activation == Activation.GELU
                                ? "the product's epilogue takes no FLOAT32"
                                : "products have an epilogue for GELU alone");
        };
    }

    /**
     * cuDNN has no attention for FLOAT32, no gradients of padded batches of one token a sequence, and does few of the things
     * with scores that {@link ScoreRules} does. Narrow heads are
     * faster by our own kernels: a step of ESM-2 8M takes 7.9 ms on an H200 instead of 9.9. Those have no dropout.
     */
    static AttentionKernels attention(AttentionConfig config, DType dtype, Sequences sequences, ScoreRules rules) {
        return dtype == DType.FLOAT32
                        || rules.why(sequences) != null
                        || hasGaps(sequences)
                        || isSingle(sequences)
                        || isNarrow(config)
                ? AttentionKernels.TILED
                : AttentionKernels.FUSED;
    }

    static String attentionReason(
            AttentionConfig config, DType dtype, Sequences sequences, ScoreRules rules, Provider provider) {
        boolean gpu = provider == Provider.CUDA;
        return switch (attention(config, dtype, sequences, rules)) {
            case FUSED ->
                "te_fused_attn_fwd_v2 and te_fused_attn_bwd_v2, "
                        + (gpu ? "which run cuDNN's kernels" : "which the CPU reference computes");
            case TILED ->
                "ops_attention_forward and ops_attention_backward" + (gpu ? "" : " as on a GPU") + ", for "
                        + whyTiled(dtype, sequences, rules);
        };
    }

    private static String whyTiled(DType dtype, Sequences sequences, ScoreRules rules) {
        if (dtype == DType.FLOAT32) {
            return "cuDNN has no attention in FLOAT32";
        }
        String changed = rules.why(sequences);
        if (changed != null) {
            return changed;
        }
        if (hasGaps(sequences)) {
            return "cuDNN leaves what was in the gaps between packed sequences";
        }
        return isSingle(sequences)
                ? "cuDNN has no attention backward for padded batches of one token a sequence"
                : "cuDNN is slower at heads of at most " + NARROW + " columns";
    }

    private static boolean isNarrow(AttentionConfig config) {
        return config.headDim() <= NARROW && config.dropout().isNone();
    }

    private static boolean hasGaps(Sequences sequences) {
        return sequences.cuSeqlensPadded() != null || sequences.keys().cuSeqlensPadded() != null;
    }

    static boolean isSingle(Sequences sequences) {
        return sequences.format() != QkvFormat.THD
                && (sequences.length() == 1 || sequences.keys().length() == 1);
    }
}

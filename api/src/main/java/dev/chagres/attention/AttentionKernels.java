package dev.chagres.attention;

import dev.chagres.DType;

/**
 * Which kernels compute an attention.
 *
 * <p>Threading: immutable.
 */
enum AttentionKernels {
    /** cuDNN's, through TE. */
    FUSED,
    /** Our own. */
    TILED;

    /**
     * Chooses cuDNN's kernels where there are some: it has none of FLOAT32, and none of the gradients of padded batches of
     * one token a sequence.
     */
    static AttentionKernels of(DType dtype, Sequences sequences) {
        boolean single = sequences.format() != Sequences.Format.THD && sequences.length() == 1;
        return dtype == DType.FLOAT32 || single ? TILED : FUSED;
    }
}

package dev.chagres.cudnn;

import org.jspecify.annotations.Nullable;

/**
 * The gradients of attention; each must be read or an output.
 *
 * <p>Threading: immutable.
 *
 * @param dq of queries, with their sizes
 * @param dk of keys, [B, Hk, Skv, D]
 * @param dv of values, [B, Hv, Skv, Dv]
 * @param rowSums the sums of o do over each row, FLOAT[B, H, Sq, 1]: an output already, which cuDNN keeps in memory between its kernels; null for
 *     attention as one operation
 * @param dbias of the bias, with its sizes; null unless {@link AttentionBuilder#biasGradient} asked for it
 * @param dsink of the sink, FLOAT[1, H, 1, 1]; null where {@link AttentionBuilder#sink} was not set
 */
public record SdpaGradients(
        GraphTensor dq,
        GraphTensor dk,
        GraphTensor dv,
        @Nullable GraphTensor rowSums,
        @Nullable GraphTensor dbias,
        @Nullable GraphTensor dsink) {}

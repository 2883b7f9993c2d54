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
 */
public record SdpaGradients(
        GraphTensor dq,
        GraphTensor dk,
        GraphTensor dv,
        @Nullable GraphTensor rowSums) {}

package dev.chagres.cudnn;

/**
 * The gradients of attention in FP8. Each of the first three must be made an output; magnitudes, FLOAT[1, 1, 1, 1], are outputs already.
 *
 * <p>Threading: immutable.
 *
 * @param dq of queries times their scale, with their sizes
 * @param dk of keys times their scale, [B, Hk, Skv, D]
 * @param dv of values times their scale, [B, Hv, Skv, Dv]
 * @param amaxDq the largest magnitude of dq before its scale
 * @param amaxDk the largest magnitude of dk before its scale
 * @param amaxDv the largest magnitude of dv before its scale
 * @param amaxDp the largest magnitude of the gradients of scores before their scale
 */
public record Fp8Gradients(
        GraphTensor dq,
        GraphTensor dk,
        GraphTensor dv,
        GraphTensor amaxDq,
        GraphTensor amaxDk,
        GraphTensor amaxDv,
        GraphTensor amaxDp) {}

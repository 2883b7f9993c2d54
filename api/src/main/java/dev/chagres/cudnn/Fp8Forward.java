package dev.chagres.cudnn;

/**
 * What the forward pass of attention in FP8 gives.
 *
 * <p>Threading: immutable.
 *
 * @param o results times their scale, [B, H, Sq, Dv]; an output must be made of it
 * @param stats the logarithm of each row's sum of exponentials, FLOAT[B, H, Sq, 1], for gradients; an output already
 * @param amaxS the largest magnitude of weights, FLOAT[1, 1, 1, 1]; an output already
 * @param amaxO the largest magnitude of results before their scale, FLOAT[1, 1, 1, 1]; an output already
 */
public record Fp8Forward(GraphTensor o, GraphTensor stats, GraphTensor amaxS, GraphTensor amaxO) {}

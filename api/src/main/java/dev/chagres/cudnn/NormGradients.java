package dev.chagres.cudnn;

import org.jspecify.annotations.Nullable;

/**
 * What the backward pass of a norm gives; each that is not read must be an output.
 *
 * <p>Threading: immutable.
 *
 * @param dx gradient of x
 * @param dscale gradient of the scale
 * @param dbias gradient of the bias; null for RMS norm
 */
public record NormGradients(
        GraphTensor dx, GraphTensor dscale, @Nullable GraphTensor dbias) {}

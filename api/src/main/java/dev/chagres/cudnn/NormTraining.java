package dev.chagres.cudnn;

import org.jspecify.annotations.Nullable;

/**
 * What the forward pass of a norm gives in training; each that is not read must be an output.
 *
 * <p>Threading: immutable.
 *
 * @param y the norm
 * @param mean over the elements that the norm takes together; null for RMS norm
 * @param invVariance 1 / sqrt(variance + epsilon), for the gradient
 */
public record NormTraining(GraphTensor y, @Nullable GraphTensor mean, GraphTensor invVariance) {}

/*
 * What Adam's kernels are given, as adam.cpp fills it in. Host and GPU compiler both read this file, which is why it
 * includes nothing: the integer names come first.
 */
#pragma once

struct AdamArguments {
  const float *gradient;
  void *weight, *mean, *square, *master;
  const float *rate;
  const int32_t *step;
  const float *gradient_scale;
  const int32_t *skip;
  float beta1, beta2, epsilon, weight_decay;
  bool decoupled; /* weight decay beside the learning rate alone, else in the gradient */
  bool corrected; /* moments divided by 1 - beta^step */
  int64_t packs;  /* runs of four elements, each on a boundary of four; 0 when a pointer is not */
  int64_t count;
};

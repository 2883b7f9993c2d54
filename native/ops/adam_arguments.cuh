/*
 * What Adam's kernels are given, as adam.cpp fills it in. Host and GPU compiler both read this file, which is why it
 * includes nothing: the integer names come first.
 */
#pragma once

/* The same for all ranges of a step. */
struct AdamNumbers {
  const int32_t *step;
  const float *gradient_scale;
  const int32_t *skip;
  float beta1, beta2, epsilon;
  int32_t gradient_dtype;
  bool decoupled; /* weight decay beside the learning rate alone, else in the gradient */
  bool corrected; /* moments divided by 1 - beta^step */
};

/* Laid out as OpsAdamRange. */
struct AdamRange {
  const void *gradient;
  void *weight, *mean, *square, *master;
  const float *rate;
  int64_t count;
  int64_t first_block;
  float weight_decay;
};

/* Where the ranges lie on the device. */
struct AdamTable {
  const AdamRange *ranges;
  int32_t count;
  int32_t blocks; /* of all ranges */
};

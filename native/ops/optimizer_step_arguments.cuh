/*
 * What the kernels of optimizer_step.cu are given, as optimizer_step.cpp fills it in. Host and GPU compiler both read this
 * file, which is why it includes nothing: the integer names come first.
 */
#pragma once

/* The same for all ranges of a step. */
struct StepNumbers {
  const int32_t *step;
  const float *gradient_scale;
  const int32_t *skip;
  float beta1, beta2, epsilon;
  int32_t gradient_dtype;
  int32_t method; /* OpsMethod */
  bool decoupled; /* Adam: weight decay beside the learning rate alone, else in the gradient */
  bool corrected; /* Adam: moments divided by 1 - beta^step */
};

/* Laid out as OpsStepRange. */
struct StepRange {
  const void *gradient;
  void *weight, *master, *first, *second;
  float *first_scale, *second_scale;
  const float *rate, *share;
  int64_t count;
  int64_t first_block;
  float weight_decay;
};

/* Where the ranges lie on the device. */
struct StepTable {
  const StepRange *ranges;
  int32_t count;
  int32_t blocks; /* of all ranges */
};

constexpr int kMethodNesterov = 1, kMethodPoint = 5, kMethodAverage = 6;

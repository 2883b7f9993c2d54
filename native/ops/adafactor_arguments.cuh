/*
 * What the kernels of adafactor.cu are given, as adafactor.cpp fills it in. Host and GPU compiler both read this file, which is
 * why it includes nothing: the integer names come first.
 */
#pragma once

/* The same for all ranges of a step. */
struct AdafactorNumbers {
  const int32_t *step;
  const float *gradient_scale;
  const int32_t *skip;
  float power, epsilon1, epsilon2, threshold, beta1;
  int32_t relative; /* OpsRelativeRate */
  bool scaled;
};

/* Laid out as OpsAdafactorRange. */
struct AdafactorRange {
  const float *gradient;
  void *weight, *master;
  float *mean;
  const int32_t *row_map, *column_map;
  float *row_squares, *row_weights, *row_updates, *column_squares, *row, *column, *numbers;
  const float *rate;
  int64_t first, count, columns, rows, whole_columns;
  float weight_decay;
};

constexpr int kRateCapped = 1, kRateWarmUp = 2;

/*
 * What the norms' kernels are given, as residual_norm.cpp fills it in. Host and GPU compiler both read this file, which is
 * why it includes nothing: the integer names come first.
 */
#pragma once

/* Null pointers as in OpsResidualNorm of ops.h. */
struct NormArguments {
  const void *x, *bias, *residual, *gamma, *beta;
  void *h, *y;
  float *mean, *inverse;
  uint8_t *y8, *y8_transposed;
  const float *scale;
  float *amax, *scale_inverse;
  const void *dy, *dresidual;
  void *dh;
  float *dbeta, *partial;
  int64_t rows, columns, filled_rows;
  float epsilon;
  float center; /* what is added to gamma: 0 or 1 */
  int lanes;     /* threads that share a row */
  int tile_rows;  /* rows that a block transposes at once: a multiple of 8 */
  int tile_bytes; /* of shared memory that they take: a multiple of 16 */
  bool centered; /* the mean is taken off: layer norm */
};

/* Bytes of a row of the tile: four more than it has, so that four columns of eight neighbouring quads of rows lie in
 * different banks. */
constexpr int kTilePad = 4;

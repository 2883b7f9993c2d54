/*
 * What attention's kernels are given, as attention.cpp fills it in. Host and GPU compiler both read this file, which is
 * why it includes nothing: the integer names come first.
 */
#pragma once

/* As OpsStrides of ops.h. */
struct AttentionStrides {
  int64_t sequence, token, head;
};

struct AttentionArguments {
  const void *q, *k, *v, *d_o;
  void *o, *dq, *dk, *dv;
  float *log_sum_exp, *delta;
  const int32_t *cu_seqlens;
  const int64_t *rng_state;
  AttentionStrides qkv, output, gradient, statistics;
  int blocks; /* of a sequence as long as `length` */
  int heads, head_dim, length;
  int left, right; /* -1 without limit, else at most `length` */
  float scale;
  float log2_scale;   /* scale * log2(e): exp(scale * s) = 2^(log2_scale * s) */
  float kept;         /* 1 / (1 - dropout) */
  uint32_t threshold; /* words below it are dropped; 0: none */
  bool packed;
  bool vector; /* four neighbouring columns lie on a boundary of four */
};

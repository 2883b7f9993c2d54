/*
 * What attention's kernels are given, as attention.cpp fills it in. Host and GPU compiler both read this file, which is
 * why it includes nothing: the integer names come first.
 */
#pragma once

/* As OpsStrides of ops.h. */
struct AttentionStrides {
  int64_t sequence, token, head;
};

/* What all tensors of queries, or all of keys and values, have in common. */
struct AttentionSide {
  const int32_t *cu_seqlens;
  int heads, length;
  bool packed;
};

struct AttentionArguments {
  const void *q, *k, *v, *d_o;
  void *o, *dq, *dk, *dv;
  float *log_sum_exp, *delta;
  const int64_t *rng_state;
  AttentionStrides query, key, value, output, d_query, d_key, d_value, statistics;
  AttentionSide queries, keys;
  int blocks; /* of a sequence as long as the owned side's `length` */
  int group;  /* heads of queries that read one head of keys */
  int head_dim, value_dim;
  int left, right; /* -1 without limit, else at most the longer `length` */
  float scale;
  float log2_scale;   /* scale * log2(e): exp(scale * s) = 2^(log2_scale * s) */
  float kept;         /* 1 / (1 - dropout) */
  uint32_t threshold; /* words below it are dropped; 0: none */
  bool bottom_right;  /* the last query stands on the last key, else the first on the first */
  bool vector;        /* four neighbouring columns lie on a boundary of four */
};

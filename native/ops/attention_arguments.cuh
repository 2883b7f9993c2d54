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
  const int32_t *cu_seqlens, *starts; /* starts: cu_seqlens_padded where there are gaps, else cu_seqlens */
  int heads, length;
  bool packed;
};

/* A dense tensor with an element for each score, [sequences, heads, queries, keys], which sequences or heads may share. */
struct ScoreTensor {
  int64_t sequence, head, query; /* elements from one to the next; 0 where they share */
  int sequences, heads, queries, keys;
};

/* As OpsScores of ops.h. */
struct ScoreArguments {
  const float *alibi_slopes, *sinks;
  const void *bias;
  const uint8_t *mask;
  void *d_bias;
  float *d_sinks;
  ScoreTensor bias_tensor, mask_tensor;
  int alibi_sequence;       /* slopes from one sequence to the next */
  float softcap;            /* 0: none */
  bool alibi_bottom_right;
  bool bias_before_scale;
  bool has_sink;            /* off by one, where there are no sinks */
};

/* As OpsPlace of ops.h. */
struct PlaceArguments {
  const int32_t *sequences, *first_queries, *first_keys;
  int heads, first_head;
};

struct AttentionArguments {
  const void *q, *k, *v, *d_o;
  void *o, *dq, *dk, *dv;
  float *log_sum_exp, *delta;
  const int64_t *rng_state;
  AttentionStrides query, key, value, output, d_query, d_key, d_value, statistics;
  AttentionSide queries, keys;
  int blocks; /* of a sequence as long as the owned side's `length` */
  int sequences;
  int group;  /* heads of queries that read one head of keys */
  int head_dim, value_dim;
  int left, right; /* -1 without limit, else at most the longer `length` */
  float scale;
  float log2_scale;   /* scale * log2(e): exp(scale * s) = 2^(log2_scale * s) */
  float kept;         /* 1 / (1 - dropout) */
  uint32_t threshold; /* words below it are dropped; 0: none */
  bool bottom_right;  /* the last query stands on the last key, else the first on the first */
  bool by_place;      /* a query stands on the key with its number */
  bool vector;        /* four neighbouring columns lie on a boundary of four */
  ScoreArguments scores;
  PlaceArguments place;
};

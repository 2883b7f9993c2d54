/*
 * The gradients of bias and sinks, after attention_dq has written delta: each element is one block's sum, in the order of
 * sequences and heads, so there are no atomics.
 */
#pragma once

#include <attention_backward.cuh>

/* Adds the gradients of a tile of scores of one head of one sequence. */
template <class T, class S>
__device__ inline void add_bias(float (&sum)[S::kOwn][4], float *shared, const Place &place, int key,
                                const AttentionArguments &a) {
  float *const q = shared, *const d_o = q + S::kRowFloats, *const slice = d_o + S::kRowFloats;
  const Range keys = range_of(place.first, place.first + S::kRows - 1, band_of_queries(a, place));
  if (place.first >= place.queries.length || key + kTile <= keys.first || key >= keys.last) return;
  __syncthreads();
  fill_rows<S>(q, query_rows(static_cast<const T *>(a.q), a, place, a.query), a.query.token, place.first,
               place.queries.length, a.head_dim, a.vector);
  fill_rows<S>(d_o, query_rows(static_cast<const T *>(a.d_o), a, place, a.output), a.output.token, place.first,
               place.queries.length, a.value_dim, a.vector);
  __syncthreads();
  const Queries<S> queries = read_queries<S, T>(d_o, place, a);
  float gradient[S::kOwn][4] = {}, score[S::kOwn][4] = {};
  const T *const k = key_rows(static_cast<const T *>(a.k), a, place, a.key);
  const T *const v = key_rows(static_cast<const T *>(a.v), a, place, a.value);
#pragma unroll 1
  for (int s = 0; s * S::kSlice < a.value_dim; ++s) {
    fill_slice<S>(slice, v, a.value.token, key, place.keys.length, s, a.value_dim, a.vector);
    add_scores<S>(gradient, d_o, slice, s, a.value_dim);
  }
#pragma unroll 1
  for (int s = 0; s * S::kSlice < a.head_dim; ++s) {
    fill_slice<S>(slice, k, a.key.token, key, place.keys.length, s, a.head_dim, a.vector);
    add_scores<S>(score, q, slice, s, a.head_dim);
  }
  differentiate_queries<T, S, ScoreKind::kChanged>(gradient, score, queries, key, place, a);
  const bool before = a.scores.bias_before_scale;
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
    for (int u = 0; u < 4; ++u) sum[r][u] += before ? a.scale * score[r][u] * gradient[r][u] : gradient[r][u];
}

/* A block owns kRows queries by 64 keys of one head of the bias. */
template <class T, class S>
__device__ void attention_d_bias(const AttentionArguments &a) {
  DYNAMIC_SHARED(shared);
  const BiasBlock block = bias_block_of(a, S::kRows);
  float sum[S::kOwn][4] = {};
#pragma unroll 1
  for (int b = block.sequences.first; b < block.sequences.last; ++b)
#pragma unroll 1
    for (int h = block.heads.first; h < block.heads.last; ++h)
      add_bias<T, S>(sum, shared, place_at<Own::kQueries>(a, b, h, block.first), block.key, a);
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
    for (int u = 0; u < 4; ++u)
      store_d_bias<T>(sum[r][u], block, block.first + row_of(r), block.key + 4 * lane() + u, a);
}

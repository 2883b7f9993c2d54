/* The gradient of a bias on tensor cores, after attention_mma_dq has written delta: attention_scores_backward.cuh for
 * the fragments of attention_mma.cuh. A block owns 64 queries by 64 keys of one head of the bias. */
#pragma once

#include <attention_mma_scores.cuh>

/* The block's queries and keys of one head of one sequence, in shared memory. */
template <class N>
struct BiasTiles {
  uint32_t *q, *d_o, *k, *v;

  __device__ inline explicit BiasTiles(float *shared)
      : q(reinterpret_cast<uint32_t *>(shared)), d_o(q + N::kTileWords), k(d_o + N::kTileWords), v(k + N::kTileWords) {}

  template <class T>
  __device__ inline void fill(const Place &place, int key, const AttentionArguments &a) const {
    const int first = place.first, queries = place.queries.length, keys = place.keys.length;
    __syncthreads(); /* all have computed with the last ones */
    copy_tile<N>(q, query_rows(static_cast<const T *>(a.q), a, place, a.query), a.query.token, first, queries,
                 a.head_dim);
    copy_tile<N>(d_o, query_rows(static_cast<const T *>(a.d_o), a, place, a.output), a.output.token, first, queries,
                 a.value_dim);
    copy_tile<N>(k, key_rows(static_cast<const T *>(a.k), a, place, a.key), a.key.token, key, keys, a.head_dim);
    copy_tile<N>(v, key_rows(static_cast<const T *>(a.v), a, place, a.value), a.value.token, key, keys, a.value_dim);
    wait_for_copies();
    __syncthreads();
  }
};

/* Adds the gradients of the block's scores of one head of one sequence. */
template <class T, class N>
__device__ inline void add_bias(Scores (&sum)[4], const BiasTiles<N> &tiles, const Place &place, int key,
                                const AttentionArguments &a) {
  const int first = place.first, length = place.queries.length;
  const Band band = band_of_queries(a, place);
  const Range keys = range_of(first, first + N::kRows - 1, band);
  if (first >= length || key + kTile <= keys.first || key >= keys.last) return;
  tiles.template fill<T>(place, key, a);
  const LeftTile<N> q(tiles.q), d_o(tiles.d_o);
  const float *const sums = query_rows(a.log_sum_exp, a, place, a.statistics);
  const float *const deltas = query_rows(a.delta, a, place, a.statistics);
  float log2_sum[2], delta[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + own_row(i);
    log2_sum[i] = row < length ? log2_of_sum(sums[row * a.statistics.token]) : 0.0f;
    delta[i] = row < length ? deltas[row * a.statistics.token] : 0.0f;
  }
  const Meeting meeting = meeting_of(first, band);
  const ScoreRules<T> rules = rules_of<T>(a, place);
  const bool partial = is_partial<N>(first, key, band);
#pragma unroll 1 /* registers are scarce */
  for (int chunk = 0; chunk < 4; ++chunk) {
    Scores weight = scores_of<N, T>(q, tiles.k, chunk), derivative;
    const Scores gradient = scores_of<N, T>(d_o, tiles.v, chunk);
    change_scores<T, Own::kQueries>(weight, derivative, meeting, first, key, chunk, rules, a);
    differentiate<ScoreKind::kChanged>(weight, gradient, log2_sum, delta, a);
    if (a.scores.bias_before_scale) {
#pragma unroll
      for (int n = 0; n < 8; ++n) weight.eight[n / 4][n % 4] *= a.scale * derivative.eight[n / 4][n % 4];
    }
    if (partial) mask(weight, meeting, key, chunk, 0.0f);
#pragma unroll
    for (int n = 0; n < 32; ++n)
      if (n / 8 == chunk) sum[n / 8].eight[n / 4 % 2][n % 4] += weight.eight[n / 4 % 2][n % 4];
  }
}

template <class T, class N>
__device__ void attention_mma_d_bias(const AttentionArguments &a) {
  DYNAMIC_SHARED(shared);
  const BiasBlock block = bias_block_of(a, N::kRows);
  const BiasTiles<N> tiles(shared);
  Scores sum[4] = {};
#pragma unroll 1
  for (int b = block.sequences.first; b < block.sequences.last; ++b)
#pragma unroll 1
    for (int h = block.heads.first; h < block.heads.last; ++h)
      add_bias<T>(sum, tiles, place_at<Own::kQueries>(a, b, h, block.first), block.key, a);
#pragma unroll
  for (int n = 0; n < 32; ++n)
    store_d_bias<T>(sum[n / 8].eight[n / 4 % 2][n % 4], block, block.first + own_row(n % 4 / 2),
                    block.key + 16 * (n / 8) + 8 * (n / 4 % 2) + 2 * quad() + n % 2, a);
}

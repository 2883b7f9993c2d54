/*
 * Attention backward on tensor cores, with the formulas and the two kernels of attention_backward.cuh: attention_mma_dq
 * owns queries and writes delta, which attention_mma_dkv, launched after it, reads; that one owns keys.
 */
#pragma once

#include <attention_mma.cuh>

/* sum over the columns of left and right, of row i. */
template <class N, class T>
__device__ inline float dot(const Left<N> &left, const Left<N> &right, int i) {
  float sum = 0;
#pragma unroll
  for (int n = 0; n < 2 * N::kSteps; ++n) {
    const uint32_t a = left.words[n / 2][i + n % 2 * 2], b = right.words[n / 2][i + n % 2 * 2];
    sum += to_float(T{static_cast<uint16_t>(a)}) * to_float(T{static_cast<uint16_t>(b)});
    sum += to_float(T{static_cast<uint16_t>(a >> 16)}) * to_float(T{static_cast<uint16_t>(b >> 16)});
  }
  return sum_over_quad(sum);
}

template <class T, class N>
__device__ void attention_mma_dq(const AttentionArguments &a) {
  DYNAMIC_SHARED(shared);
  uint32_t *const k_rows = reinterpret_cast<uint32_t *>(shared), *const k_turned = k_rows + N::kRowWords;
  uint32_t *const v_rows = k_turned + N::kTurnedWords;
  const Place place = place_of<Own::kQueries>(a, N::kRows);
  if (place.first >= place.queries.rows) return;
  const T *const k = key_rows(static_cast<const T *>(a.k), a, place, a.key);
  const T *const v = key_rows(static_cast<const T *>(a.v), a, place, a.value);
  const int first = place.first, length = place.queries.length;
  const Left<N> q = read_left<N>(query_rows(static_cast<const T *>(a.q), a, place, a.query), a.query.token, first,
                                 length, a.head_dim);
  const Left<N> d_o = read_left<N>(query_rows(static_cast<const T *>(a.d_o), a, place, a.output), a.output.token,
                                   first, length, a.value_dim);
  const Left<N> o = read_left<N>(query_rows(static_cast<const T *>(a.o), a, place, a.output), a.output.token, first,
                                 length, a.value_dim);
  const float *const sums = query_rows(a.log_sum_exp, a, place, a.statistics);
  float *const deltas = query_rows(a.delta, a, place, a.statistics);
  float log2_sum[2], delta[2], sum[N::kEights][4] = {};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + own_row(i);
    delta[i] = dot<N, T>(d_o, o, i);
    log2_sum[i] = row < length ? log2_of_sum(sums[row * a.statistics.token]) : 0.0f;
    if (quad() == 0 && row < length) deltas[row * a.statistics.token] = delta[i];
  }
  const Band band = band_of_queries(a, place);
  const Meeting meeting = meeting_of(first, band);
  const Range keys = range_of(first, first + N::kRows - 1, band);
#pragma unroll 1
  for (int key = keys.first; key < keys.last && first < length; key += kTile) {
    __syncthreads();
    fill_tile<N>(k_rows, k_turned, k, a.key.token, key, place.keys.length, a.head_dim);
    fill_tile<N>(v_rows, nullptr, v, a.value.token, key, place.keys.length, a.value_dim);
    __syncthreads();
    const bool partial = is_partial<N>(first, key, band);
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      Scores weight = scores_of<N, T>(q, k_rows, chunk);
      const Scores gradient = scores_of<N, T>(d_o, v_rows, chunk);
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        float &one = weight.eight[n / 4][n % 4];
        one = exp2_of(one * a.log2_scale - log2_sum[n % 4 / 2]) * (gradient.eight[n / 4][n % 4] - delta[n % 4 / 2]);
      }
      if (partial) mask(weight, meeting, key, chunk, 0.0f);
      add_weighted<N, T>(sum, weight, k_turned, chunk);
    }
  }
  const float factor[2] = {a.scale, a.scale};
  store_sum<N>(sum, factor, query_rows(static_cast<T *>(a.dq), a, place, a.d_query), a.d_query.token, first,
               place.queries, a.head_dim);
}

/* Shared memory of attention_mma_dkv: a tile of queries. */
template <class N>
struct QueryTile {
  uint32_t *q_rows, *q_turned, *d_o_rows, *d_o_turned;
  float *log2_sum, *delta;

  __device__ inline explicit QueryTile(float *shared) {
    q_rows = reinterpret_cast<uint32_t *>(shared);
    q_turned = q_rows + N::kRowWords;
    d_o_rows = q_turned + N::kTurnedWords;
    d_o_turned = d_o_rows + N::kRowWords;
    log2_sum = shared + 2 * (N::kRowWords + N::kTurnedWords);
    delta = log2_sum + kTile;
  }

  /* Reads the queries from `query` on, between two barriers. */
  template <class T>
  __device__ inline void fill(const Place &place, int query, const AttentionArguments &a) const {
    const int length = place.queries.length;
    __syncthreads();
    fill_tile<N>(q_rows, q_turned, query_rows(static_cast<const T *>(a.q), a, place, a.query), a.query.token, query,
                 length, a.head_dim);
    fill_tile<N>(d_o_rows, d_o_turned, query_rows(static_cast<const T *>(a.d_o), a, place, a.output), a.output.token,
                 query, length, a.value_dim);
    for (int i = threadIdx.x; i < 2 * kTile; i += kAttentionThreads) {
      const int row = query + i % kTile;
      const float *const from = query_rows(i < kTile ? a.log_sum_exp : a.delta, a, place, a.statistics);
      const float value = row < length ? from[row * a.statistics.token] : 0.0f;
      log2_sum[i] = i < kTile ? log2_of_sum(value) : value; /* delta lies behind */
    }
    __syncthreads();
  }
};

template <class T, class N>
__device__ void attention_mma_dkv(const AttentionArguments &a) {
  DYNAMIC_SHARED(shared);
  const QueryTile<N> tile(shared);
  Place place = place_of<Own::kKeys>(a, N::kRows);
  if (place.first >= place.keys.rows) return;
  const int first = place.first;
  const Left<N> k = read_left<N>(key_rows(static_cast<const T *>(a.k), a, place, a.key), a.key.token, first,
                                 place.keys.length, a.head_dim);
  const Left<N> v = read_left<N>(key_rows(static_cast<const T *>(a.v), a, place, a.value), a.value.token, first,
                                 place.keys.length, a.value_dim);
  float key_sum[N::kEights][4] = {}, value_sum[N::kEights][4] = {};
  const Band band = band_of_keys(a, place);
  const Meeting meeting = meeting_of(first, band);
  const Range queries = range_of(first, first + N::kRows - 1, band);
#pragma unroll 1
  for (int next = place.head + a.group; place.head < next && first < place.keys.length; ++place.head)
#pragma unroll 1
    for (int query = queries.first; query < queries.last; query += kTile) {
      tile.template fill<T>(place, query, a);
      const bool partial = is_partial<N>(first, query, band);
#pragma unroll
      for (int chunk = 0; chunk < 4; ++chunk) {
        Scores weight = scores_of<N, T>(k, tile.q_rows, chunk);
        Scores gradient = scores_of<N, T>(v, tile.d_o_rows, chunk);
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          const int row = 16 * chunk + 8 * (n / 4) + 2 * quad() + n % 2;
          float &one = weight.eight[n / 4][n % 4];
          one = exp2_of(one * a.log2_scale - tile.log2_sum[row]);
          gradient.eight[n / 4][n % 4] -= tile.delta[row];
        }
        if (partial) mask(weight, meeting, query, chunk, 0.0f);
        add_weighted<N, T>(value_sum, weight, tile.d_o_turned, chunk);
#pragma unroll
        for (int n = 0; n < 8; ++n) weight.eight[n / 4][n % 4] *= gradient.eight[n / 4][n % 4];
        add_weighted<N, T>(key_sum, weight, tile.q_turned, chunk);
      }
    }
  const float scale[2] = {a.scale, a.scale}, whole[2] = {1, 1};
  store_sum<N>(key_sum, scale, key_rows(static_cast<T *>(a.dk), a, place, a.d_key), a.d_key.token, first, place.keys,
               a.head_dim);
  store_sum<N>(value_sum, whole, key_rows(static_cast<T *>(a.dv), a, place, a.d_value), a.d_value.token, first,
               place.keys, a.value_dim);
}

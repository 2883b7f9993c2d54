/*
 * Attention backward, with p_ij the probability of key j for query i and m_ij what dropout makes of it:
 *   delta_i = sum_c do[i, c] o[i, c], ds_ij = p_ij (m_ij (do_i . v_j) - delta_i)
 *   dq_i = scale * sum_j ds_ij k_j, dk_j = scale * sum_i ds_ij q_i, dv_j = sum_i m_ij p_ij do_i
 * attention_dq owns queries and writes delta, which attention_dkv, launched after it, reads; that one owns keys, so its
 * tiles are transposed: own rows are keys, columns queries.
 */
#pragma once

#include <attention.cuh>

/* The log-sum-exp in units of log2; of a row without a key 0, as all its scores are -infinity. */
__device__ inline float log2_sum(float log_sum_exp) {
  constexpr float kLog2E = 1.44269504f;
  return log_sum_exp == minus_infinity() ? 0.0f : log_sum_exp * kLog2E;
}

/* What a thread knows of its own queries. */
template <class S>
struct Queries {
  float log2_sum[S::kOwn], delta[S::kOwn];
};

template <class S, class T>
__device__ inline Queries<S> read_queries(const float *d_o, const Place &place, const AttentionArguments &a) {
  Queries<S> queries;
  const T *const o = rows_of(static_cast<const T *>(a.o), a, place, a.output);
  const float *const sums = rows_of(a.log_sum_exp, a, place, a.statistics);
  float *const delta = rows_of(a.delta, a, place, a.statistics);
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r) {
    const int row = place.first + row_of(r);
    float sum = 0;
    for (int c = 4 * lane(); c < a.head_dim && row < place.length; c += 4 * kLanes) {
      const Four left = load_pack<4>(d_o + row_of(r) * S::kRowStride + c);
      const Four right = read_four(o + row * a.output.token + c, a.vector);
#pragma unroll
      for (int e = 0; e < 4; ++e) sum += left.value[e] * right.value[e];
    }
    queries.delta[r] = sum_over_lanes(sum);
    queries.log2_sum[r] = row < place.length ? log2_sum(sums[row * a.statistics.token]) : 0.0f;
    if (lane() == 0 && row < place.length) delta[row * a.statistics.token] = queries.delta[r];
  }
  return queries;
}

/* gradient: do_i . v_j, becomes ds_ij. */
template <class S>
__device__ inline void differentiate_queries(float (&gradient)[S::kOwn][4], const float (&score)[S::kOwn][4],
                                             const Queries<S> &queries, int key, const Place &place,
                                             const AttentionArguments &a) {
  uint32_t seen = 0xffffffffu;
  if (is_partial<S>(place.first, key, a.left, a.right, place.length))
    seen = meeting<S>(place.first, key, a.left, a.right, place.length);
  const uint32_t keep = kept_of_queries<S>(place.first, key, place, a);
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const float probability = bit(seen, r, u) ? exp2f(score[r][u] * a.log2_scale - queries.log2_sum[r]) : 0.0f;
      const float weight = bit(keep, r, u) ? a.kept * gradient[r][u] : 0.0f;
      gradient[r][u] = probability * (weight - queries.delta[r]);
    }
}

template <class T, class S>
__device__ void attention_dq(const AttentionArguments &a) {
  DYNAMIC_SHARED(shared);
  float *const q = shared, *const d_o = q + S::kRowFloats, *const slice = d_o + S::kRowFloats;
  float *const tile = slice + S::kSliceFloats;
  const Place place = place_of(a, S::kRows);
  if (place.first >= place.rows) return;
  if (place.first >= place.length) return store_zeros<S>(static_cast<T *>(a.dq), place, a);
  const T *const k = rows_of(static_cast<const T *>(a.k), a, place, a.qkv);
  const T *const v = rows_of(static_cast<const T *>(a.v), a, place, a.qkv);
  fill_rows<S>(q, rows_of(static_cast<const T *>(a.q), a, place, a.qkv), a.qkv.token, place, a);
  fill_rows<S>(d_o, rows_of(static_cast<const T *>(a.d_o), a, place, a.output), a.output.token, place, a);
  __syncthreads();
  const Queries<S> queries = read_queries<S, T>(d_o, place, a);
  float sum[S::kSlices][S::kOwn][4] = {}, factor[S::kOwn];
  const Range keys = range_of(place.first, place.first + S::kRows - 1, a.left, a.right, place.length);
#pragma unroll 1
  for (int key = keys.first; key < keys.last; key += kTile) {
    float gradient[S::kOwn][4] = {}, score[S::kOwn][4] = {};
#pragma unroll 1
    for (int s = 0; s * S::kSlice < a.head_dim; ++s) {
      fill_slice<S>(slice, v, a.qkv.token, key, place.length, s, a);
      add_scores<S>(gradient, d_o, slice, s, a.head_dim);
    }
#pragma unroll 1
    for (int s = 0; s * S::kSlice < a.head_dim; ++s) {
      fill_slice<S>(slice, k, a.qkv.token, key, place.length, s, a);
      add_scores<S>(score, q, slice, s, a.head_dim);
    }
    differentiate_queries<S>(gradient, score, queries, key, place, a);
    store_tile<S>(tile, gradient);
    __syncthreads();
#pragma unroll
    for (int s = 0; s < S::kSlices; ++s) {
      if (s * S::kSlice >= a.head_dim) break;
      if (S::kSlices > 1) fill_slice<S>(slice, k, a.qkv.token, key, place.length, s, a); /* else it is there */
      add_products<S>(sum[s], tile, slice, keys.last - key);
    }
  }
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r) factor[r] = a.scale;
  store_rows<S>(sum, factor, static_cast<T *>(a.dq), a.gradient, place, a);
}

/* Statistics of the queries that are this thread's columns, zero past the sequence; read where they are needed, as
 * registers are scarce. */
struct Columns {
  float value[4];
};

__device__ inline Columns read_columns(const float *statistics, int query, const Place &place,
                                       const AttentionArguments &a) {
  Columns columns;
#pragma unroll
  for (int u = 0; u < 4; ++u) {
    const int row = query + 4 * lane() + u;
    columns.value[u] = row < place.length ? statistics[row * a.statistics.token] : 0.0f;
  }
  return columns;
}

/* Own rows are keys, tile rows queries: scores become probabilities. */
template <class S>
__device__ inline void weigh_keys(float (&score)[S::kOwn][4], int query, const Place &place,
                                  const AttentionArguments &a) {
  Columns sums = read_columns(rows_of(a.log_sum_exp, a, place, a.statistics), query, place, a);
#pragma unroll
  for (int u = 0; u < 4; ++u) sums.value[u] = log2_sum(sums.value[u]);
  uint32_t seen = 0xffffffffu;
  if (is_partial<S>(place.first, query, a.right, a.left, place.length))
    seen = meeting<S>(place.first, query, a.right, a.left, place.length);
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
    for (int u = 0; u < 4; ++u)
      score[r][u] = bit(seen, r, u) ? exp2f(score[r][u] * a.log2_scale - sums.value[u]) : 0.0f;
}

template <class T, class S>
__device__ void attention_dkv(const AttentionArguments &a) {
  DYNAMIC_SHARED(shared);
  float *const k = shared, *const v = k + S::kRowFloats, *const slice = v + S::kRowFloats;
  float *const tile = slice + S::kSliceFloats;
  const Place place = place_of(a, S::kRows);
  if (place.first >= place.rows) return;
  if (place.first >= place.length) {
    store_zeros<S>(static_cast<T *>(a.dk), place, a);
    return store_zeros<S>(static_cast<T *>(a.dv), place, a);
  }
  const T *const q = rows_of(static_cast<const T *>(a.q), a, place, a.qkv);
  const T *const d_o = rows_of(static_cast<const T *>(a.d_o), a, place, a.output);
  fill_rows<S>(k, rows_of(static_cast<const T *>(a.k), a, place, a.qkv), a.qkv.token, place, a);
  fill_rows<S>(v, rows_of(static_cast<const T *>(a.v), a, place, a.qkv), a.qkv.token, place, a);
  float key_sum[S::kSlices][S::kOwn][4] = {}, value_sum[S::kSlices][S::kOwn][4] = {}, factor[S::kOwn];
  const Range queries = range_of(place.first, place.first + S::kRows - 1, a.right, a.left, place.length);
#pragma unroll 1
  for (int query = queries.first; query < queries.last; query += kTile) {
    float score[S::kOwn][4] = {};
#pragma unroll 1
    for (int s = 0; s * S::kSlice < a.head_dim; ++s) {
      fill_slice<S>(slice, q, a.qkv.token, query, place.length, s, a);
      add_scores<S>(score, k, slice, s, a.head_dim);
    }
    weigh_keys<S>(score, query, place, a);
    const uint32_t keep = kept_of_keys<S>(place.first, query, place, a);
    float gradient[S::kOwn][4];
#pragma unroll
    for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
      for (int u = 0; u < 4; ++u) gradient[r][u] = bit(keep, r, u) ? score[r][u] : 0.0f;
    store_tile<S>(tile, gradient);
#pragma unroll
    for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
      for (int u = 0; u < 4; ++u) gradient[r][u] = 0;
#pragma unroll
    for (int s = 0; s < S::kSlices; ++s) {
      if (s * S::kSlice >= a.head_dim) break;
      fill_slice<S>(slice, d_o, a.output.token, query, place.length, s, a);
      add_products<S>(value_sum[s], tile, slice, queries.last - query);
      add_scores<S>(gradient, v, slice, s, a.head_dim);
    }
    const Columns delta = read_columns(rows_of(a.delta, a, place, a.statistics), query, place, a);
#pragma unroll
    for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
      for (int u = 0; u < 4; ++u) {
        const float weight = bit(keep, r, u) ? a.kept * gradient[r][u] : 0.0f;
        gradient[r][u] = score[r][u] * (weight - delta.value[u]);
      }
    __syncthreads();
    store_tile<S>(tile, gradient);
#pragma unroll
    for (int s = 0; s < S::kSlices; ++s) {
      if (s * S::kSlice >= a.head_dim) break;
      fill_slice<S>(slice, q, a.qkv.token, query, place.length, s, a);
      add_products<S>(key_sum[s], tile, slice, queries.last - query);
    }
  }
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r) factor[r] = a.scale;
  store_rows<S>(key_sum, factor, static_cast<T *>(a.dk), a.gradient, place, a);
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r) factor[r] = a.kept;
  store_rows<S>(value_sum, factor, static_cast<T *>(a.dv), a.gradient, place, a);
}

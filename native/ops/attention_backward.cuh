/*
 * Attention backward, with p_ij the probability of key j for query i and m_ij what dropout makes of it:
 *   delta_i = sum_c do[i, c] o[i, c], ds_ij = p_ij (m_ij (do_i . v_j) - delta_i)
 *   dq_i = scale * sum_j ds_ij k_j, dk_j = scale * sum_i ds_ij q_i, dv_j = sum_i m_ij p_ij do_i
 * attention_dq owns queries and writes delta, which attention_dkv, launched after it, reads; that one owns keys, so its
 * tiles are transposed: own rows are keys, columns queries.
 */
#pragma once

#include <attention_dropout.cuh>
#include <attention_scores.cuh>

/* What a thread knows of its own queries. */
template <class S>
struct Queries {
  float log2_sum[S::kOwn], delta[S::kOwn];
};

template <class S, class T>
__device__ inline Queries<S> read_queries(const float *d_o, const Place &place, const AttentionArguments &a) {
  Queries<S> queries;
  const T *const o = query_rows(static_cast<const T *>(a.o), a, place, a.output);
  const float *const sums = query_rows(a.log_sum_exp, a, place, a.statistics);
  float *const delta = query_rows(a.delta, a, place, a.statistics);
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r) {
    const int row = place.first + row_of(r);
    float sum = 0;
    for (int c = 4 * lane(); c < a.value_dim && row < place.queries.length; c += 4 * kLanes) {
      const Four left = load_pack<4>(d_o + row_of(r) * S::kRowStride + c);
      const Four right = read_four(o + row * a.output.token + c, a.vector);
#pragma unroll
      for (int e = 0; e < 4; ++e) sum += left.value[e] * right.value[e];
    }
    queries.delta[r] = sum_over_lanes(sum);
    queries.log2_sum[r] = row < place.queries.length ? log2_of_sum(sums[row * a.statistics.token]) : 0.0f;
    if (lane() == 0 && row < place.queries.length) delta[row * a.statistics.token] = queries.delta[r];
  }
  return queries;
}

/* gradient: do_i . v_j, becomes ds_ij; score: its derivative if scores are modified. */
template <class T, class S, ScoreKind kind>
__device__ inline void differentiate_queries(float (&gradient)[S::kOwn][4], float (&score)[S::kOwn][4],
                                             const Queries<S> &queries, int key, const Place &place,
                                             const AttentionArguments &a) {
  const uint32_t seen = seen_of<S>(place.first, key, band_of_queries(a, place));
  float derivative[S::kOwn][4];
  if (kind == ScoreKind::kChanged) change_scores<T, S, Own::kQueries>(score, derivative, seen, key, place, a);
  const uint32_t keep = kept_of_queries<S>(place.first, key, place, a);
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const float exponent = score[r][u] * exponent_scale<kind>(a) - queries.log2_sum[r];
      const float probability = bit(seen, r, u) ? exp2f(exponent) : 0.0f;
      const float weight = bit(keep, r, u) ? a.kept * gradient[r][u] : 0.0f;
      gradient[r][u] = probability * (weight - queries.delta[r]);
      if (kind == ScoreKind::kChanged) score[r][u] = derivative[r][u];
    }
}

/* By the derivatives of the scores. */
template <class S>
__device__ inline void multiply(float (&value)[S::kOwn][4], const float (&derivative)[S::kOwn][4]) {
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
    for (int u = 0; u < 4; ++u) value[r][u] *= derivative[r][u];
}

template <class T, class S, ScoreKind kind = ScoreKind::kPlain>
__device__ void attention_dq(const AttentionArguments &a) {
  DYNAMIC_SHARED(shared);
  float *const q = shared, *const d_o = q + S::kRowFloats, *const slice = d_o + S::kRowFloats;
  float *const tile = slice + S::kSliceFloats;
  const Place place = place_of<Own::kQueries>(a, S::kRows);
  if (place.first >= place.queries.rows) return;
  if (place.first >= place.queries.length)
    return store_zeros<S>(query_rows(static_cast<T *>(a.dq), a, place, a.d_query), a.d_query.token, place.first,
                          place.queries, a.head_dim, a.vector);
  const T *const k = key_rows(static_cast<const T *>(a.k), a, place, a.key);
  const T *const v = key_rows(static_cast<const T *>(a.v), a, place, a.value);
  fill_rows<S>(q, query_rows(static_cast<const T *>(a.q), a, place, a.query), a.query.token, place.first,
               place.queries.length, a.head_dim, a.vector);
  fill_rows<S>(d_o, query_rows(static_cast<const T *>(a.d_o), a, place, a.output), a.output.token, place.first,
               place.queries.length, a.value_dim, a.vector);
  __syncthreads();
  const Queries<S> queries = read_queries<S, T>(d_o, place, a);
  float sum[S::kSlices][S::kOwn][4] = {}, factor[S::kOwn];
  const Range keys = range_of(place.first, place.first + S::kRows - 1, band_of_queries(a, place));
#pragma unroll 1
  for (int key = keys.first; key < keys.last; key += kTile) {
    float gradient[S::kOwn][4] = {}, score[S::kOwn][4] = {};
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
    differentiate_queries<T, S, kind>(gradient, score, queries, key, place, a);
    if (kind == ScoreKind::kChanged) multiply<S>(gradient, score);
    store_tile<S>(tile, gradient);
    __syncthreads();
#pragma unroll
    for (int s = 0; s < S::kSlices; ++s) {
      if (s * S::kSlice >= a.head_dim) break;
      if (S::kSlices > 1) /* else it is there */
        fill_slice<S>(slice, k, a.key.token, key, place.keys.length, s, a.head_dim, a.vector);
      add_products<S>(sum[s], tile, slice, keys.last - key);
    }
  }
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r) factor[r] = a.scale;
  store_rows<S>(sum, factor, query_rows(static_cast<T *>(a.dq), a, place, a.d_query), a.d_query.token, place.first,
                place.queries, a.head_dim, a.vector);
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
    columns.value[u] = row < place.queries.length ? statistics[row * a.statistics.token] : 0.0f;
  }
  return columns;
}

/* Own rows are keys, tile rows queries: scores become probabilities. Derivatives are those of modified scores. */
template <class T, class S, ScoreKind kind>
__device__ inline void weigh_keys(float (&score)[S::kOwn][4], float (&derivative)[S::kOwn][4], int query,
                                  const Place &place, const AttentionArguments &a) {
  Columns sums = read_columns(query_rows(a.log_sum_exp, a, place, a.statistics), query, place, a);
#pragma unroll
  for (int u = 0; u < 4; ++u) sums.value[u] = log2_of_sum(sums.value[u]);
  const uint32_t seen = seen_of<S>(place.first, query, band_of_keys(a, place));
  if (kind == ScoreKind::kChanged) change_scores<T, S, Own::kKeys>(score, derivative, seen, query, place, a);
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
    for (int u = 0; u < 4; ++u)
      score[r][u] = bit(seen, r, u) ? exp2f(score[r][u] * exponent_scale<kind>(a) - sums.value[u]) : 0.0f;
}

/* Sums over the queries of one head; q, d_o and dropout are that head's. */
template <class T, class S, ScoreKind kind>
__device__ inline void add_queries(float (&key_sum)[S::kSlices][S::kOwn][4],
                                   float (&value_sum)[S::kSlices][S::kOwn][4], const float *k, const float *v,
                                   float *slice, float *tile, const Dropout &dropout, const Place &place,
                                   const AttentionArguments &a) {
  const T *const q = query_rows(static_cast<const T *>(a.q), a, place, a.query);
  const T *const d_o = query_rows(static_cast<const T *>(a.d_o), a, place, a.output);
  const Range queries = range_of(place.first, place.first + S::kRows - 1, band_of_keys(a, place));
#pragma unroll 1
  for (int query = queries.first; query < queries.last; query += kTile) {
    const uint32_t keep = kept_of_keys<S>(place.first, query, dropout, a); /* early: registers are scarce */
    float score[S::kOwn][4] = {};
#pragma unroll 1
    for (int s = 0; s * S::kSlice < a.head_dim; ++s) {
      fill_slice<S>(slice, q, a.query.token, query, place.queries.length, s, a.head_dim, a.vector);
      add_scores<S>(score, k, slice, s, a.head_dim);
    }
    float derivative[S::kOwn][4];
    weigh_keys<T, S, kind>(score, derivative, query, place, a);
    float gradient[S::kOwn][4];
#pragma unroll
    for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
      for (int u = 0; u < 4; ++u) gradient[r][u] = bit(keep, r, u) ? score[r][u] : 0.0f;
    store_tile<S>(tile, gradient);
    if (kind == ScoreKind::kChanged) multiply<S>(score, derivative); /* early: registers are scarce */
#pragma unroll
    for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
      for (int u = 0; u < 4; ++u) gradient[r][u] = 0;
#pragma unroll
    for (int s = 0; s < S::kSlices; ++s) {
      if (s * S::kSlice >= a.value_dim) break;
      fill_slice<S>(slice, d_o, a.output.token, query, place.queries.length, s, a.value_dim, a.vector);
      add_products<S>(value_sum[s], tile, slice, queries.last - query);
      add_scores<S>(gradient, v, slice, s, a.value_dim);
    }
    const Columns delta = read_columns(query_rows(a.delta, a, place, a.statistics), query, place, a);
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
      fill_slice<S>(slice, q, a.query.token, query, place.queries.length, s, a.head_dim, a.vector);
      add_products<S>(key_sum[s], tile, slice, queries.last - query);
    }
  }
}

template <class T, class S, ScoreKind kind = ScoreKind::kPlain>
__device__ void attention_dkv(const AttentionArguments &a) {
  DYNAMIC_SHARED(shared);
  float *const k = shared, *const v = k + S::kRowFloats, *const slice = v + S::kRowFloats;
  float *const tile = slice + S::kSliceFloats;
  Dropout *const dropout = reinterpret_cast<Dropout *>(tile + S::kTileFloats);
  Place place = place_of<Own::kKeys>(a, S::kRows);
  if (place.first >= place.keys.rows) return;
  if (place.first >= place.keys.length) {
    store_zeros<S>(key_rows(static_cast<T *>(a.dk), a, place, a.d_key), a.d_key.token, place.first, place.keys,
                   a.head_dim, a.vector);
    return store_zeros<S>(key_rows(static_cast<T *>(a.dv), a, place, a.d_value), a.d_value.token, place.first,
                          place.keys, a.value_dim, a.vector);
  }
  fill_rows<S>(k, key_rows(static_cast<const T *>(a.k), a, place, a.key), a.key.token, place.first, place.keys.length,
               a.head_dim, a.vector);
  fill_rows<S>(v, key_rows(static_cast<const T *>(a.v), a, place, a.value), a.value.token, place.first,
               place.keys.length, a.value_dim, a.vector);
  float key_sum[S::kSlices][S::kOwn][4] = {}, value_sum[S::kSlices][S::kOwn][4] = {}, factor[S::kOwn];
#pragma unroll 1
  for (int next = place.head + a.group; place.head < next; ++place.head) {
    if (a.threshold != 0) {
      __syncthreads();
      if (threadIdx.x == 0) *dropout = dropout_of(a, place);
      __syncthreads();
    }
    add_queries<T, S, kind>(key_sum, value_sum, k, v, slice, tile, *dropout, place, a);
  }
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r) factor[r] = a.scale;
  store_rows<S>(key_sum, factor, key_rows(static_cast<T *>(a.dk), a, place, a.d_key), a.d_key.token, place.first,
                place.keys, a.head_dim, a.vector);
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r) factor[r] = a.kept;
  store_rows<S>(value_sum, factor, key_rows(static_cast<T *>(a.dv), a, place, a.d_value), a.d_value.token, place.first,
                place.keys, a.value_dim, a.vector);
}

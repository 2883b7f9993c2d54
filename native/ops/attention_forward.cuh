/* Attention forward: a block owns queries. */
#pragma once

#include <attention_dropout.cuh>
#include <attention_scores.cuh>

/* A thread's running softmax of its rows, in units of log2: largest score, sum of its own columns' weights. */
template <class S>
struct Softmax {
  float largest[S::kOwn], total[S::kOwn];
};

/* Turns scores into weights relative to the largest so far, and what was summed before likewise. */
template <class T, class S, ScoreKind kind>
__device__ inline void weigh(float (&score)[S::kOwn][4], Softmax<S> &softmax, float (&sum)[S::kSlices][S::kOwn][4],
                             int key, const Place &place, const AttentionArguments &a) {
  const uint32_t seen = seen_of<S>(place.first, key, band_of_queries(a, place));
  if (kind == ScoreKind::kChanged) {
    float derivative[S::kOwn][4];
    change_scores<T, S, Own::kQueries>(score, derivative, seen, key, place, a);
  }
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r) {
    float largest = softmax.largest[r];
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      score[r][u] = bit(seen, r, u) ? score[r][u] * exponent_scale<kind>(a) : minus_infinity();
      largest = fmaxf(largest, score[r][u]);
    }
    for (int mask = kLanes / 2; mask > 0; mask /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, mask));
    const float shift = largest == minus_infinity() ? 0.0f : largest; /* a row that sees no key yet */
    const float factor = exp2f(softmax.largest[r] - shift);
    float total = 0;
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      score[r][u] = exp2f(score[r][u] - shift);
      total += score[r][u];
    }
    softmax.total[r] = softmax.total[r] * factor + total;
    softmax.largest[r] = largest;
#pragma unroll
    for (int s = 0; s < S::kSlices; ++s)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[s][r][e] *= factor;
  }
}

/* Writes the log-sum-exp and leaves in `factor` what a row's sum of weighted values must be multiplied by. */
template <class S>
__device__ inline void finish(const Softmax<S> &softmax, float (&factor)[S::kOwn], const Place &place,
                              const AttentionArguments &a) {
  constexpr float kLn2 = 0.693147181f;
  float *statistics = query_rows(a.log_sum_exp, a, place, a.statistics);
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r) {
    const int row = place.first + row_of(r);
    const float total = sum_over_lanes(softmax.total[r]);
    factor[r] = total == 0 ? 0.0f : a.kept / total;
    if (lane() != 0 || row >= place.queries.rows) continue;
    const bool none = total == 0 || row >= place.queries.length;
    statistics[row * a.statistics.token] = none ? minus_infinity() : (softmax.largest[r] + log2f(total)) * kLn2;
  }
}

/* The state before any key: empty, or the softmax's extra term, whose weight one of the threads that share a row has.
 * */
template <class S, ScoreKind kind>
__device__ inline void begin(Softmax<S> &softmax, const Place &place, const AttentionArguments &a) {
  const bool has_sink = kind == ScoreKind::kChanged && a.scores.has_sink;
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r) {
    softmax.largest[r] = has_sink ? sink_of(a, place) : minus_infinity();
    softmax.total[r] = has_sink && lane() == 0 ? 1.0f : 0.0f;
  }
}

template <class T, class S, ScoreKind kind = ScoreKind::kPlain>
__device__ void attention_forward(const AttentionArguments &a) {
  DYNAMIC_SHARED(shared);
  float *const q = shared, *const slice = q + S::kRowFloats, *const tile = slice + S::kSliceFloats;
  const Place place = place_of<Own::kQueries>(a, S::kRows);
  if (place.first >= place.queries.rows) return;
  const T *const k = key_rows(static_cast<const T *>(a.k), a, place, a.key);
  const T *const v = key_rows(static_cast<const T *>(a.v), a, place, a.value);
  Softmax<S> softmax;
  float sum[S::kSlices][S::kOwn][4] = {}, factor[S::kOwn];
  begin<S, kind>(softmax, place, a);
  fill_rows<S>(q, query_rows(static_cast<const T *>(a.q), a, place, a.query), a.query.token, place.first,
               place.queries.length, a.head_dim, a.vector);
  const Range keys = range_of(place.first, place.first + S::kRows - 1, band_of_queries(a, place));
  for (int key = keys.first; key < keys.last && place.first < place.queries.length; key += kTile) {
    float score[S::kOwn][4] = {};
#pragma unroll 1
    for (int s = 0; s * S::kSlice < a.head_dim; ++s) {
      fill_slice<S>(slice, k, a.key.token, key, place.keys.length, s, a.head_dim, a.vector);
      add_scores<S>(score, q, slice, s, a.head_dim);
    }
    weigh<T, S, kind>(score, softmax, sum, key, place, a);
    if (a.threshold != 0) {
      const uint32_t keep = kept_of_queries<S>(place.first, key, place, a);
#pragma unroll
      for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
        for (int u = 0; u < 4; ++u) score[r][u] = bit(keep, r, u) ? score[r][u] : 0.0f;
    }
    store_tile<S>(tile, score);
#pragma unroll
    for (int s = 0; s < S::kSlices; ++s) {
      if (s * S::kSlice >= a.value_dim) break;
      fill_slice<S>(slice, v, a.value.token, key, place.keys.length, s, a.value_dim, a.vector);
      add_products<S>(sum[s], tile, slice, keys.last - key);
    }
  }
  finish<S>(softmax, factor, place, a);
  store_rows<S>(sum, factor, query_rows(static_cast<T *>(a.o), a, place, a.output), a.output.token, place.first,
                place.queries, a.value_dim, a.vector);
}

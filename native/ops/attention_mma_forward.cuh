/* Attention forward on tensor cores: a block owns queries. */
#pragma once

#include <attention_mma_scores.cuh>

/* A thread's running softmax of its two rows: largest product so far, sum of its own columns' weights. */
struct RowSoftmax {
  float largest[2], total[2];
};

/* Turns the products of a tile into weights relative to the largest so far, and what was summed before likewise. */
template <class N>
__device__ inline void weigh_tile(Scores (&scores)[4], RowSoftmax &softmax, float (&sum)[N::kEights][4],
                                  float log2_scale) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float largest = softmax.largest[i];
#pragma unroll
    for (int n = 0; n < 16; ++n) largest = fmaxf(largest, scores[n / 4].eight[n / 2 % 2][2 * i + n % 2]);
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
    largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
    const float shift = largest == minus_infinity() ? 0.0f : largest * log2_scale; /* a row that sees no key yet */
    const float factor = exp2_of(softmax.largest[i] * log2_scale - shift);
    float total = 0;
#pragma unroll
    for (int n = 0; n < 16; ++n) {
      float &score = scores[n / 4].eight[n / 2 % 2][2 * i + n % 2];
      score = exp2_of(score * log2_scale - shift);
      total += score;
    }
    softmax.total[i] = softmax.total[i] * factor + total;
    softmax.largest[i] = largest;
#pragma unroll
    for (int c = 0; c < N::kEights; ++c) {
      sum[c][2 * i] *= factor;
      sum[c][2 * i + 1] *= factor;
    }
  }
}

/* The state before any key, as `begin` of attention_forward.cuh. */
template <ScoreKind kind>
__device__ inline RowSoftmax begin_rows(const Place &place, const AttentionArguments &a) {
  const bool has_sink = kind == ScoreKind::kChanged && a.scores.has_sink;
  const float largest = has_sink ? sink_of(a, place) : minus_infinity();
  const float total = has_sink && quad() == 0 ? 1.0f : 0.0f;
  return {{largest, largest}, {total, total}};
}

template <class T, class N, ScoreKind kind = ScoreKind::kPlain>
__device__ void attention_mma_forward(const AttentionArguments &a) {
  DYNAMIC_SHARED(shared);
  const Place place = place_of<Own::kQueries>(a, N::kRows);
  if (place.first >= place.queries.rows) return;
  const T *const k = key_rows(static_cast<const T *>(a.k), a, place, a.key);
  const T *const v = key_rows(static_cast<const T *>(a.v), a, place, a.value);
  const Left<N> q = read_left<N>(query_rows(static_cast<const T *>(a.q), a, place, a.query), a.query.token,
                                 place.first, place.queries.length, a.head_dim);
  const Band band = band_of_queries(a, place);
  const Meeting meeting = meeting_of(place.first, band);
  const ScoreRules<T> rules = kind == ScoreKind::kChanged ? rules_of<T>(a, place) : ScoreRules<T>{};
  RowSoftmax softmax = begin_rows<kind>(place, a);
  float sum[N::kEights][4] = {}, factor[2];
  const Range keys = range_of(place.first, place.first + N::kRows - 1, band);
  const int last = place.first < place.queries.length ? keys.last : keys.first;
  KeyTiles<N> tiles(shared);
  if (keys.first < last) tiles.copy(k, v, place, keys.first, a);
#pragma unroll 1
  for (int key = keys.first; key < last; key += kTile) {
    tiles.next();
    if (key + kTile < last) tiles.copy(k, v, place, key + kTile, a);
    const bool partial = is_partial<N>(place.first, key, band);
    Scores scores[4];
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) {
      scores[chunk] = scores_of<N, T>(q, tiles.k, chunk);
      Scores derivative;
      if (kind == ScoreKind::kChanged)
        change_scores<T, Own::kQueries>(scores[chunk], derivative, meeting, place.first, key, chunk, rules, a);
      else if (partial)
        mask(scores[chunk], meeting, key, chunk, minus_infinity());
    }
    weigh_tile<N>(scores, softmax, sum, exponent_scale<kind>(a));
#pragma unroll
    for (int chunk = 0; chunk < 4; ++chunk) add_weighted<N, T>(sum, weights_of<N, T>(scores[chunk]), tiles.v, chunk);
  }
  constexpr float kLn2 = 0.693147181f;
  float *const statistics = query_rows(a.log_sum_exp, a, place, a.statistics);
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = place.first + own_row(i);
    const float total = sum_over_quad(softmax.total[i]);
    factor[i] = total == 0 ? 0.0f : 1.0f / total;
    if (quad() != 0 || row >= place.queries.rows) continue;
    const bool none = total == 0 || row >= place.queries.length;
    statistics[row * a.statistics.token] =
        none ? minus_infinity() : (softmax.largest[i] * exponent_scale<kind>(a) + log2f(total)) * kLn2;
  }
  store_sum<N>(sum, factor, query_rows(static_cast<T *>(a.o), a, place, a.output), a.output.token, place.first,
               place.queries, a.value_dim);
}

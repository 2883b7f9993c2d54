/*
 * Attention backward on tensor cores, with the formulas and the two kernels of attention_backward.cuh: attention_mma_dq
 * owns queries and writes delta, which attention_mma_dkv, launched after it, reads; that one owns keys.
 */
#pragma once

#include <attention_mma_scores.cuh>

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

template <class T, class N, ScoreKind kind = ScoreKind::kPlain>
__device__ void attention_mma_dq(const AttentionArguments &a) {
  DYNAMIC_SHARED(shared);
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
  const ScoreRules<T> rules = kind == ScoreKind::kChanged ? rules_of<T>(a, place) : ScoreRules<T>{};
  const Range keys = range_of(first, first + N::kRows - 1, band);
  const int last = first < length ? keys.last : keys.first;
  KeyTiles<N> tiles(shared);
  if (keys.first < last) tiles.copy(k, v, place, keys.first, a);
#pragma unroll 1
  for (int key = keys.first; key < last; key += kTile) {
    tiles.next();
    if (key + kTile < last) tiles.copy(k, v, place, key + kTile, a);
    const bool partial = is_partial<N>(first, key, band);
#pragma unroll(N::kUnrolled)
    for (int chunk = 0; chunk < 4; ++chunk) {
      Scores weight = scores_of<N, T>(q, tiles.k, chunk);
      const Scores gradient = scores_of<N, T>(d_o, tiles.v, chunk);
      Scores derivative;
      if (kind == ScoreKind::kChanged)
        change_scores<T, Own::kQueries>(weight, derivative, meeting, first, key, chunk, rules, a);
      differentiate<kind>(weight, gradient, log2_sum, delta, a);
      if (kind == ScoreKind::kChanged) multiply(weight, derivative);
      if (partial) mask(weight, meeting, key, chunk, 0.0f);
      add_weighted<N, T>(sum, weights_of<N, T>(weight), tiles.k, chunk);
    }
  }
  const float factor[2] = {a.scale, a.scale};
  store_sum<N>(sum, factor, query_rows(static_cast<T *>(a.dq), a, place, a.d_query), a.d_query.token, first,
               place.queries, a.head_dim);
}

/* Queries and their statistics in shared memory: those to compute with, and room for the next. */
template <class N>
class QueryTiles {
  static constexpr int kStatistics = 2 * N::kTileWords; /* behind the tiles of q and d_o: 64 log2_sum, 64 delta */
  static constexpr int kSetWords = kStatistics + 2 * kTile;

 public:
  static constexpr int kWords = 2 * kSetWords;

  __device__ inline explicit QueryTiles(float *shared)
      : now_(reinterpret_cast<uint32_t *>(shared) + kSetWords), next_(reinterpret_cast<uint32_t *>(shared)) {}

  __device__ inline const uint32_t *q() const { return now_; }
  __device__ inline const uint32_t *d_o() const { return now_ + N::kTileWords; }
  __device__ inline const float *log2_sum() const { return reinterpret_cast<const float *>(now_ + kStatistics); }
  __device__ inline const float *delta() const { return log2_sum() + kTile; }

  /* Begins to copy the queries from `query` on to where the next tile lies. */
  template <class T>
  __device__ inline void copy(const Place &place, int query, const AttentionArguments &a) {
    const int length = place.queries.length;
    copy_tile<N>(next_, query_rows(static_cast<const T *>(a.q), a, place, a.query), a.query.token, query, length,
                 a.head_dim);
    copy_tile<N>(next_ + N::kTileWords, query_rows(static_cast<const T *>(a.d_o), a, place, a.output), a.output.token,
                 query, length, a.value_dim);
    static_assert(kAttentionThreads == 2 * kTile, "a thread carries one statistic");
    const int row = query + static_cast<int>(threadIdx.x) % kTile;
    const float *const from = query_rows(is_sum() ? a.log_sum_exp : a.delta, a, place, a.statistics);
    carried_ = row < length ? from[row * a.statistics.token] : 0.0f;
  }

  /* Waits until all have computed with this tile and copied the next, and goes on to that. */
  __device__ inline void next() {
    reinterpret_cast<float *>(next_ + kStatistics)[threadIdx.x] = is_sum() ? log2_of_sum(carried_) : carried_;
    exchange(now_, next_);
    wait_for_copies();
    __syncthreads();
  }

 private:
  __device__ static inline bool is_sum() { return static_cast<int>(threadIdx.x) < kTile; }

  uint32_t *now_, *next_;
  float carried_ = 0; /* the thread's statistic of the next tile */
};

/* How a block keeps its own keys: in registers, or, where the sums of wide heads take these, in a tile. */
template <class N, bool wide>
struct OwnKeys {
  using Factor = Left<N>;

  template <class T>
  __device__ static inline Factor read(uint32_t *, const T *source, int64_t token_stride, int first, int length,
                                       int columns) {
    return read_left<N>(source, token_stride, first, length, columns);
  }
};

template <class N>
struct OwnKeys<N, true> {
  using Factor = LeftTile<N>;

  /* Begins to copy the rows; whoever multiplies by them waits for copies first. */
  template <class T>
  __device__ static inline Factor read(uint32_t *tile, const T *source, int64_t token_stride, int first, int length,
                                       int columns) {
    copy_tile<N>(tile, source, token_stride, first, length, columns);
    return Factor(tile);
  }
};

template <class T, class N, ScoreKind kind = ScoreKind::kPlain>
__device__ void attention_mma_dkv(const AttentionArguments &a) {
  DYNAMIC_SHARED(shared);
  QueryTiles<N> tiles(shared);
  Place place = place_of<Own::kKeys>(a, N::kRows);
  if (place.first >= place.keys.rows) return;
  const int first = place.first;
  using Keys = OwnKeys<N, N::kWide>;
  const typename Keys::Factor k =
      Keys::read(reinterpret_cast<uint32_t *>(shared) + QueryTiles<N>::kWords,
                 key_rows(static_cast<const T *>(a.k), a, place, a.key), a.key.token, first, place.keys.length,
                 a.head_dim);
  const Left<N> v = read_left<N>(key_rows(static_cast<const T *>(a.v), a, place, a.value), a.value.token, first,
                                 place.keys.length, a.value_dim);
  float key_sum[N::kEights][4] = {}, value_sum[N::kEights][4] = {};
  const Band band = band_of_keys(a, place);
  const Meeting meeting = meeting_of(first, band);
  const Range queries = range_of(first, first + N::kRows - 1, band);
  const bool none = first >= place.keys.length || queries.first >= queries.last;
  const int end = none ? place.head : place.head + a.group;
  if (place.head < end) tiles.template copy<T>(place, queries.first, a);
#pragma unroll 1
  while (place.head < end) {
#pragma unroll 1
    for (int query = queries.first; query < queries.last; query += kTile) {
      tiles.next();
      const bool more = query + kTile < queries.last;
      const ScoreRules<T> rules = kind == ScoreKind::kChanged ? rules_of<T>(a, place) : ScoreRules<T>{};
      if (!more) ++place.head;
      if (place.head < end) tiles.template copy<T>(place, more ? query + kTile : queries.first, a);
      const bool partial = N::kWide || is_partial<N>(first, query, band); /* asking would take registers */
#pragma unroll(N::kUnrolled)
      for (int chunk = 0; chunk < 4; ++chunk) {
        Scores weight = scores_of<N, T>(k, tiles.q(), chunk), derivative;
        if (kind == ScoreKind::kChanged)
          change_scores<T, Own::kKeys>(weight, derivative, meeting, first, query, chunk, rules, a);
        const int column = 16 * chunk + 2 * quad();
#pragma unroll
        for (int n = 0; n < 8; ++n) {
          float &one = weight.eight[n / 4][n % 4];
          const float exponent = one * exponent_scale<kind>(a) - tiles.log2_sum()[column + 8 * (n / 4) + n % 2];
          const bool meets = !partial || meeting.has(n % 4 / 2, query + column + 8 * (n / 4) + n % 2);
          one = meets ? exp2_of(exponent) : 0.0f;
        }
        const Weights<N> probability = weights_of<N, T>(weight);
        if (kind == ScoreKind::kChanged) multiply(weight, derivative); /* early: registers are scarce */
        add_weighted<N, T>(value_sum, probability, tiles.d_o(), chunk);
        const Scores gradient = scores_of<N, T>(v, tiles.d_o(), chunk);
#pragma unroll
        for (int n = 0; n < 8; ++n)
          weight.eight[n / 4][n % 4] *= gradient.eight[n / 4][n % 4] - tiles.delta()[column + 8 * (n / 4) + n % 2];
        add_weighted<N, T>(key_sum, weights_of<N, T>(weight), tiles.q(), chunk);
      }
    }
  }
  const float scale[2] = {a.scale, a.scale}, whole[2] = {1, 1};
  store_sum<N>(key_sum, scale, key_rows(static_cast<T *>(a.dk), a, place, a.d_key), a.d_key.token, first, place.keys,
               a.head_dim);
  store_sum<N>(value_sum, whole, key_rows(static_cast<T *>(a.dv), a, place, a.d_value), a.d_value.token, first,
               place.keys, a.value_dim);
}

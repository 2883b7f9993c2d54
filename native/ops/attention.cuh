/*
 * Attention by tiles, in FP32 whatever the storage; attention_N.cu compiles it for heads of up to N columns.
 *
 * A block of threads owns kRows rows of one head of one sequence and meets the rows of the other side 64 at a time.
 * Forward and the gradient of q own queries and meet keys, with the softmax's maximum and sum carried along (Milakov
 * and Gimelshein, "Online normalizer calculation for softmax", 2018; Dao et al., "FlashAttention", 2022). The gradients
 * of k and v own keys and meet the queries of every head that reads the key head. Backward computes the probabilities
 * again from the log-sum-exp. One block sums each output element, in a fixed order: no atomics.
 *
 * Threads are 8 rows of 16. A thread keeps up to 8 x 4 scores: rows row_of(r), columns 4 * lane .. 4 * lane + 3, so one
 * Philox draw serves four neighbours. The other side's rows come through shared memory in slices of up to 64 columns.
 */
#pragma once

#include <common.cuh>
#include <attention_arguments.cuh>

constexpr int kAttentionThreads = 128;
constexpr int kLanes = 16;
constexpr int kTile = 64; /* rows of the other side that are met at a time */
constexpr int kPad = 4;   /* floats after a row of shared memory: rows then start in different banks */
constexpr int kTileStride = kTile + kPad;
constexpr float kLog2E = 1.44269504f;

/* Sizes of heads with up to Width columns, when a block owns Rows rows: 64, or 32 where the sums of 64 would not fit
 * into registers. */
template <int Width, int Rows>
struct Sizes {
  static constexpr int kWidth = Width;
  static constexpr int kRows = Rows;
  static constexpr int kOwn = Rows / 8; /* rows of a thread */
  static constexpr int kSlice = Width < 64 ? Width : 64;
  static constexpr int kSlices = Width / kSlice;
  static constexpr int kRowStride = Width + kPad;
  static constexpr int kSliceStride = kSlice + kPad;
  /* In a product over the tile, kColumnLanes threads share a slice's columns and kParts share the tile's rows. */
  static constexpr int kColumnLanes = kSlice / 4;
  static constexpr int kParts = kLanes / kColumnLanes;
  static constexpr int kRowFloats = kRows * kRowStride;
  static constexpr int kSliceFloats = kTile * kSliceStride;
  static constexpr int kTileFloats = kRows * kTileStride;
};

using Four = Pack<float, 4>;

__device__ inline float minus_infinity() { return __int_as_float(static_cast<int>(0xff800000u)); }

/* The log-sum-exp in units of log2; of a row without a key 0, as all its scores are -infinity. */
__device__ inline float log2_of_sum(float log_sum_exp) {
  return log_sum_exp == minus_infinity() ? 0.0f : log_sum_exp * kLog2E;
}

__device__ inline int lane() { return threadIdx.x % kLanes; }

/* The r-th row of this thread. A warp's two rows of threads lie four rows apart: in different banks. */
__device__ inline int row_of(int r) { return r / 4 * 32 + static_cast<int>(threadIdx.x) / kLanes * 4 + r % 4; }

/* Where a slice keeps row j: the four rows that one thread multiplies by lie 16 apart, those of neighbouring threads
 * side by side, which leaves no two of them in one bank. */
__device__ inline int slot_of(int j) { return j % 4 * kLanes + j / 4; }

/* One side of one sequence. */
struct Rows {
  int start;  /* the first token when packed */
  int length; /* tokens */
  int rows;   /* that the sequence owns, padding included */
};

/* The part of the problem that a block works on. */
struct Place {
  int sequence;
  int head, kv_head; /* of queries, of keys */
  int first;         /* of the block's rows */
  Rows queries, keys;
  int diagonal; /* the key on which query 0 stands */
};

__device__ inline Rows rows_in(const AttentionSide &side, int sequence) {
  Rows rows;
  rows.start = side.starts[sequence];
  const int length = side.cu_seqlens[sequence + 1] - side.cu_seqlens[sequence];
  rows.length = length < 0 ? 0 : length < side.length ? length : side.length;
  const int owned = side.packed ? side.starts[sequence + 1] - rows.start : side.length;
  rows.rows = owned < side.length ? owned : side.length;
  return rows;
}

/* The number of a sequence's first row within the whole sequence. */
__device__ inline int first_number(const int32_t *numbers, int sequence) {
  return numbers == nullptr ? 0 : numbers[sequence];
}

/* The place of a block that owns `block_rows` rows of queries, or of keys: then `head` is the first that reads them. */
enum class Own { kQueries, kKeys };

/* Of `head`, which is one of the owned side. */
template <Own own>
__device__ inline Place place_at(const AttentionArguments &a, int sequence, int head, int first) {
  Place place;
  place.sequence = sequence;
  place.head = own == Own::kQueries ? head : head * a.group;
  place.kv_head = own == Own::kQueries ? head / a.group : head;
  place.first = first;
  place.queries = rows_in(a.queries, place.sequence);
  place.keys = rows_in(a.keys, place.sequence);
  place.diagonal = a.bottom_right ? place.keys.length - place.queries.length : 0;
  if (a.by_place)
    place.diagonal = first_number(a.place.first_queries, sequence) - first_number(a.place.first_keys, sequence);
  return place;
}

template <Own own>
__device__ inline Place place_of(const AttentionArguments &a, int block_rows) {
  const int item = blockIdx.x, block = item % a.blocks, pair = item / a.blocks;
  const int heads = own == Own::kQueries ? a.queries.heads : a.keys.heads;
  const int sequence = pair / heads;
  return place_at<own>(a, sequence, pair - sequence * heads, block * block_rows);
}

/* Row 0 of the place's sequence and head in a tensor of queries. */
template <class T>
__device__ inline T *query_rows(T *data, const AttentionArguments &a, const Place &place, const AttentionStrides &by) {
  const int64_t start = a.queries.packed ? place.queries.start * by.token : place.sequence * by.sequence;
  return data + start + place.head * by.head;
}

/* The same in a tensor of keys or values. */
template <class T>
__device__ inline T *key_rows(T *data, const AttentionArguments &a, const Place &place, const AttentionStrides &by) {
  const int64_t start = a.keys.packed ? place.keys.start * by.token : place.sequence * by.sequence;
  return data + start + place.kv_head * by.head;
}

template <class T>
__device__ inline Four read_four(const T *source, bool vector) {
  Pack<T, 4> values;
  if (vector) values = load_pack<4>(source);
  else
    for (int e = 0; e < 4; ++e) values.value[e] = source[e];
  Four result;
  for (int e = 0; e < 4; ++e) result.value[e] = to_float(values.value[e]);
  return result;
}

template <class T>
__device__ inline void write_four(T *destination, const Four &source, bool vector) {
  Pack<T, 4> values;
  for (int e = 0; e < 4; ++e) from_float(source.value[e], values.value[e]);
  if (vector) return store_pack<4>(destination, values);
  for (int e = 0; e < 4; ++e) destination[e] = values.value[e];
}

/* Moves four columns of a row to shared memory as float, or zeros. */
template <class T>
__device__ inline void move_four(float *destination, const T *source, bool there, bool vector) {
  Four values = {};
  if (there) values = read_four(source, vector);
  store_pack<4>(destination, values);
}

__device__ inline void move_four(float *destination, const float32 *source, bool there, bool vector) {
  if (vector) return copy_async(destination, source, there);
  Four values = {};
  if (there) values = read_four(source, false);
  store_pack<4>(destination, values);
}

/* Moves rows first .. first + Count - 1, columns column .. column + Width - 1; what lies past `length` or `columns`
 * becomes zero. Slotted: in the order of slot_of. */
template <int Count, int Width, int Stride, bool Slotted, class T>
__device__ inline void fill(float *destination, const T *source, int64_t token_stride, int first, int length,
                            int column, int columns, bool vector) {
  constexpr int kPacks = Width / 4;
#pragma unroll 1
  for (int i = threadIdx.x; i < Count * kPacks; i += kAttentionThreads) {
    const int row = i / kPacks, c = i % kPacks * 4;
    move_four(destination + (Slotted ? slot_of(row) : row) * Stride + c,
              source + (first + row) * token_stride + column + c, first + row < length && column + c < columns, vector);
  }
  wait_for_copies();
}

/* The block's own rows, of `columns` columns, in a sequence of `length`. */
template <class S, class T>
__device__ inline void fill_rows(float *rows, const T *source, int64_t token_stride, int first, int length,
                                 int columns, bool vector) {
  fill<S::kRows, S::kWidth, S::kRowStride, false>(rows, source, token_stride, first, length, 0, columns, vector);
}

/* Slice s of the other side's rows first .. first + 63, loaded between two barriers, so that all threads have finished
 * with the last one and see this one. */
template <class S, class T>
__device__ inline void fill_slice(float *slice, const T *source, int64_t token_stride, int first, int length, int s,
                                  int columns, bool vector) {
  __syncthreads();
  fill<kTile, S::kSlice, S::kSliceStride, true>(slice, source, token_stride, first, length, s * S::kSlice, columns,
                                                vector);
  __syncthreads();
}

/* sum[r][u] += the product of own row row_of(r) and tile row 4 * lane + u over the columns of slice s. */
template <class S>
__device__ inline void add_scores(float (&sum)[S::kOwn][4], const float *rows, const float *slice, int s, int columns) {
  const float *own = rows + row_of(0) * S::kRowStride + s * S::kSlice;
  const float *other = slice + lane() * S::kSliceStride;
  const int rest = columns - s * S::kSlice, count = rest < S::kSlice ? rest : S::kSlice;
#pragma unroll 1
  for (int c = 0; c < count; c += 4) {
    Four right[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) right[u] = load_pack<4>(other + u * kLanes * S::kSliceStride + c);
#pragma unroll
    for (int r = 0; r < S::kOwn; ++r) {
      const Four left = load_pack<4>(own + (r / 4 * 32 + r % 4) * S::kRowStride + c);
#pragma unroll
      for (int u = 0; u < 4; ++u)
#pragma unroll
        for (int e = 0; e < 4; ++e) sum[r][u] += left.value[e] * right[u].value[e];
    }
  }
}

/* sum[r][e] += this thread's part of sum over j of tile[row_of(r)][j] * slice[j][column + e]; past `count` rows there
 * is nothing. */
template <class S>
__device__ inline void add_products(float (&sum)[S::kOwn][4], const float *tile, const float *slice, int count) {
  const int part = lane() / S::kColumnLanes;
  const float *own = tile + row_of(0) * kTileStride;
  const float *other = slice + lane() % S::kColumnLanes * 4;
  /* Counting costs a register, which narrow heads, whose products are short, do not have. */
  const int rows = S::kParts > 1 || count > kTile ? kTile : count;
#pragma unroll 1
  for (int group = part; group * 4 < rows; group += S::kParts) {
    Four right[4];
#pragma unroll
    for (int u = 0; u < 4; ++u) right[u] = load_pack<4>(other + (u * kLanes + group) * S::kSliceStride);
#pragma unroll
    for (int r = 0; r < S::kOwn; ++r) {
      const Four left = load_pack<4>(own + (r / 4 * 32 + r % 4) * kTileStride + group * 4);
#pragma unroll
      for (int e = 0; e < 4; ++e)
#pragma unroll
        for (int u = 0; u < 4; ++u) sum[r][e] += left.value[u] * right[u].value[e];
    }
  }
}

/* The same row of all lanes' tiles, written to shared memory. */
template <class S>
__device__ inline void store_tile(float *tile, const float (&values)[S::kOwn][4]) {
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r) {
    Four row;
    for (int u = 0; u < 4; ++u) row.value[u] = values[r][u];
    store_pack<4>(tile + row_of(r) * kTileStride + 4 * lane(), row);
  }
}

/* The sum over the threads that share rows; `step` below: only over those a multiple of it apart. */
__device__ inline float sum_over_lanes(float value, int step = 1) {
  for (int mask = kLanes / 2; mask >= step; mask /= 2) value += __shfl_xor_sync(0xffffffffu, value, mask);
  return value;
}

/* Writes factor * sum of the threads' parts to the sequence's rows from `first`; zeros past its length. */
template <class S, class T>
__device__ inline void store_rows(float (&sum)[S::kSlices][S::kOwn][4], const float (&factor)[S::kOwn], T *destination,
                                  int64_t token_stride, int first, const Rows &own, int columns, bool vector) {
#pragma unroll
  for (int s = 0; s < S::kSlices; ++s)
#pragma unroll
    for (int r = 0; r < S::kOwn; ++r) {
      const int row = first + row_of(r), column = s * S::kSlice + lane() % S::kColumnLanes * 4;
      Four values;
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float total = sum_over_lanes(sum[s][r][e], S::kColumnLanes) * factor[r];
        values.value[e] = row < own.length ? total : 0.0f;
      }
      if (lane() < S::kColumnLanes && row < own.rows && column < columns)
        write_four(destination + row * token_stride + column, values, vector);
    }
}

/* The gradient of rows that are all padding. */
template <class S, class T>
__device__ inline void store_zeros(T *destination, int64_t token_stride, int first, const Rows &own, int columns,
                                   bool vector) {
  const int packs = columns / 4;
  for (int i = threadIdx.x; i < S::kRows * packs; i += kAttentionThreads) {
    const int row = first + i / packs;
    if (row < own.rows) write_four(destination + row * token_stride + i % packs * 4, Four{}, vector);
  }
}

/* A range of rows of the other side. */
struct Range {
  int first, last;
};

/* How own rows and rows of the other side meet: own row i from row i + shift - before to row i + shift + after of the
 * other side, as far as both are within their lengths. -1: without limit. */
struct Band {
  int shift, before, after;
  int length, other_length;
};

__device__ inline Band band_of_queries(const AttentionArguments &a, const Place &place) {
  return {place.diagonal, a.left, a.right, place.queries.length, place.keys.length};
}

__device__ inline Band band_of_keys(const AttentionArguments &a, const Place &place) {
  return {-place.diagonal, a.right, a.left, place.keys.length, place.queries.length};
}

/* The rows that own row `row` meets; `first` may lie before row 0. */
__device__ inline Range range_of_row(int row, const Band &band) {
  const int on = row + band.shift;
  return {band.before < 0 ? 0 : on - band.before,
          band.after < 0 || on + band.after >= band.other_length ? band.other_length : on + band.after + 1};
}

/* The rows that own rows first .. last meet; starts on a multiple of the tile. */
__device__ inline Range range_of(int first, int last, const Band &band) {
  Range range = {0, band.other_length};
  first += band.shift;
  last += band.shift;
  if (band.before >= 0 && first > band.before) range.first = (first - band.before) / kTile * kTile;
  if (band.after >= 0 && last + band.after + 1 < band.other_length) range.last = last + band.after + 1;
  return range;
}

/* Whether some pair of own rows from `own` and tile rows from `other` must be masked. */
template <class S>
__device__ inline bool is_partial(int own, int other, const Band &band) {
  if (own + S::kRows > band.length || other + kTile > band.other_length) return true;
  own += band.shift;
  return (band.before >= 0 && other < own + S::kRows - 1 - band.before) ||
         (band.after >= 0 && other + kTile - 1 > own + band.after);
}

/*
 * Bit 4 * r + u of these words says something of own row row_of(r) and tile row 4 * lane + u. The loops that make them
 * stay loops: unrolled they would take the registers that sums and scores need.
 */

/* Which own rows from `own` and tile rows from `other` meet. */
template <class S>
__device__ inline uint32_t meeting(int own, int other, const Band &band) {
  uint32_t bits = 0;
  const int first_column = other + 4 * lane();
#pragma unroll 1
  for (int r = 0; r < S::kOwn; ++r) {
    const int row = own + row_of(r);
    const Range range = range_of_row(row, band);
    uint32_t four = 0;
#pragma unroll
    for (int u = 0; u < 4; ++u)
      four |= (row < band.length && first_column + u >= range.first && first_column + u < range.last ? 1u : 0u) << u;
    bits |= four << 4 * r;
  }
  return bits;
}

/* `meeting`, cheap where no pair must be masked. */
template <class S>
__device__ inline uint32_t seen_of(int own, int other, const Band &band) {
  return is_partial<S>(own, other, band) ? meeting<S>(own, other, band) : 0xffffffffu;
}

__device__ inline bool bit(uint32_t bits, int r, int u) { return bits >> (4 * r + u) & 1; }

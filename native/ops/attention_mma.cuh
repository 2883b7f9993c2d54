/*
 * Attention of 16-bit numbers on tensor cores; attention_mma_N.cu compiles it for heads of up to N columns. The
 * algorithm is that of attention.cuh: a block owns 64 rows of one head, a warp 16 of them, and meets the rows of the
 * other side 64 at a time; sums are FP32 in a fixed order. There is no dropout here. Weights are multiplied as numbers
 * of 16 bits: kernels of up to 32 columns round them to one, as cuDNN does; wider ones, which also take all modified
 * scores, multiply the rounded weight and the rounded rest, and add both products.
 *
 * A product is mma.m16n8k16. In its fragments a thread has rows `group` and `group + 8` of the warp's 16, and of each
 * eight columns the two from 2 * quad on. A word holds two neighbours of 16 bits. While a block computes with one tile
 * the next is copied beside it.
 */
#pragma once

#include <attention.cuh>
#include <mma.cuh>

/* Sizes of heads with up to Width columns. */
template <int Width>
struct Mma {
  static constexpr int kWidth = Width;
  static constexpr int kRows = 64;
  static constexpr int kSteps = Width / 16; /* products of a row with a row */
  static constexpr int kEights = Width / 8; /* of columns */
  static constexpr int kRowStride = Width / 2 + 4; /* words between rows: eight of them then lie in different banks */
  static constexpr int kTileWords = kTile * kRowStride;
  static constexpr bool kWide = Width > 64;
  static constexpr int kParts = Width > 32 ? 2 : 1; /* numbers of 16 bits that make a weight */
  static constexpr int kUnrolled = Width > 32 ? 1 : 4; /* of a tile's four chunks in backward; more take registers */
};

__device__ inline int quad() { return static_cast<int>(threadIdx.x) % 4; }
__device__ inline int group() { return static_cast<int>(threadIdx.x) % 32 / 4; }
__device__ inline int in_warp() { return static_cast<int>(threadIdx.x) % 32; }

/* The thread's row i, 0 or 1, of the block's. */
__device__ inline int own_row(int i) { return static_cast<int>(threadIdx.x) / 32 * 16 + group() + 8 * i; }

/* Own rows as the left factor of products, in registers. */
template <class N>
struct Left {
  uint32_t words[N::kSteps][4];

  /* Columns 16 * step .. 16 * step + 15. */
  __device__ inline void columns(int step, uint32_t (&of)[4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) of[i] = words[step][i];
  }
};

/* The same in a tile of shared memory, for kernels whose sums take the registers. */
template <class N>
struct LeftTile {
  const uint32_t *row; /* that the thread names to load_matrices */

  __device__ inline explicit LeftTile(const uint32_t *tile)
      : row(tile + (static_cast<int>(threadIdx.x) / 32 * 16 + in_warp() % 16) * N::kRowStride + in_warp() / 16 * 4) {}
  __device__ inline void columns(int step, uint32_t (&of)[4]) const { load_matrices(of, row + 8 * step); }
};

template <class N, class T>
__device__ inline Left<N> read_left(const T *source, int64_t token_stride, int first, int length, int columns) {
  Left<N> left;
#pragma unroll
  for (int s = 0; s < N::kSteps; ++s)
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int row = first + own_row(i % 2), column = 16 * s + 8 * (i / 2) + 2 * quad();
      left.words[s][i] = row < length && column < columns
                             ? *reinterpret_cast<const uint32_t *>(source + row * token_stride + column)
                             : 0;
    }
  return left;
}

/* Begins to copy rows first .. first + 63 into `tile`; what lies past `length` or `columns` becomes zero. */
template <class N, class T>
__device__ inline void copy_tile(uint32_t *tile, const T *source, int64_t token_stride, int first, int length,
                                 int columns) {
#pragma unroll(N::kWide ? 1 : 2)
  for (int part = 0; part < kTile * N::kEights / kAttentionThreads; ++part) {
    const int i = part * kAttentionThreads + static_cast<int>(threadIdx.x);
    const int row = i / N::kEights, column = i % N::kEights * 8;
    const bool there = first + row < length && column < columns;
    const T *const from = there ? source + (first + row) * token_stride + column : source;
    copy_async(reinterpret_cast<float *>(tile + row * N::kRowStride + column / 2),
               reinterpret_cast<const float *>(from), there);
  }
}

template <class P>
__device__ inline void exchange(P *&left, P *&right) {
  P *const was = left;
  left = right;
  right = was;
}

/* Keys and values in shared memory: those to compute with, and room for the next. */
template <class N>
struct KeyTiles {
  uint32_t *k, *v, *next_k, *next_v;

  __device__ inline explicit KeyTiles(float *shared) {
    next_k = reinterpret_cast<uint32_t *>(shared);
    next_v = next_k + N::kTileWords;
    k = next_v + N::kTileWords;
    v = k + N::kTileWords;
  }

  /* Begins to copy the keys from `key` on to where the next tile lies. */
  template <class T>
  __device__ inline void copy(const T *keys, const T *values, const Place &place, int key,
                              const AttentionArguments &a) const {
    copy_tile<N>(next_k, keys, a.key.token, key, place.keys.length, a.head_dim);
    copy_tile<N>(next_v, values, a.value.token, key, place.keys.length, a.value_dim);
  }

  /* Waits until all have computed with this tile and copied the next, and goes on to that. */
  __device__ inline void next() {
    exchange(k, next_k);
    exchange(v, next_v);
    wait_for_copies();
    __syncthreads();
  }
};

/* Scores of own rows and 16 rows of a tile: eight[b][2 * i + e] is of own row i and row 8 * b + 2 * quad + e. */
struct Scores {
  float eight[2][4];
};

/* The products of own rows and rows 16 * chunk .. of a tile. */
template <class N, class T, class Factor>
__device__ inline Scores scores_of(const Factor &left, const uint32_t *tile, int chunk) {
  Scores scores = {};
  const uint32_t *const rows = tile + (16 * chunk + in_warp() / 16 * 8 + in_warp() % 8) * N::kRowStride;
#pragma unroll
  for (int s = 0; s < N::kSteps; ++s) {
    uint32_t own[4], right[4];
    left.columns(s, own);
    load_matrices(right, rows + 8 * s + in_warp() / 8 % 2 * 4);
#pragma unroll
    for (int b = 0; b < 2; ++b) multiply_add<T>(scores.eight[b], own, right[2 * b], right[2 * b + 1]);
  }
  return scores;
}

/* Weights as the left factor of products, each the sum of its parts. */
template <class N>
struct Weights {
  uint32_t words[N::kParts][4];
};

template <class N, class T>
__device__ inline Weights<N> weights_of(const Scores &scores) {
  Weights<N> weights;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    float left = scores.eight[i / 2][i % 2 * 2], right = scores.eight[i / 2][i % 2 * 2 + 1];
#pragma unroll
    for (int part = 0; part < N::kParts; ++part) {
      const uint32_t word = two_of<T>(left, right);
      weights.words[part][i] = word;
      left -= to_float(T{static_cast<uint16_t>(word)});
      right -= to_float(T{static_cast<uint16_t>(word >> 16)});
    }
  }
  return weights;
}

/* sum += weights times rows 16 * chunk .. of a tile. */
template <class N, class T>
__device__ inline void add_weighted(float (&sum)[N::kEights][4], const Weights<N> &weights, const uint32_t *tile,
                                    int chunk) {
  const uint32_t *const rows = tile + (16 * chunk + in_warp() % 16) * N::kRowStride + in_warp() / 16 * 4;
#pragma unroll
  for (int c = 0; c < N::kEights; c += 2) {
    uint32_t right[4];
    load_turned_matrices(right, rows + 4 * c);
#pragma unroll
    for (int part = N::kParts - 1; part >= 0; --part) {
      multiply_add<T>(sum[c], weights.words[part], right[0], right[1]);
      multiply_add<T>(sum[c + 1], weights.words[part], right[2], right[3]);
    }
  }
}

/* The rows of the other side that own rows meet. */
struct Meeting {
  Range rows[2];

  __device__ inline bool has(int i, int other) const { return other >= rows[i].first && other < rows[i].last; }
};

__device__ inline Meeting meeting_of(int first, const Band &band) {
  Meeting meeting;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + own_row(i);
    meeting.rows[i] = row < band.length ? range_of_row(row, band) : Range{0, 0};
  }
  return meeting;
}

/* Sets what belongs to no pair that meets to `value`; the tile's rows begin at `other`. */
__device__ inline void mask(Scores &scores, const Meeting &meeting, int other, int chunk, float value) {
#pragma unroll
  for (int b = 0; b < 2; ++b)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (!meeting.has(i / 2, other + 16 * chunk + 8 * b + 2 * quad() + i % 2)) scores.eight[b][i] = value;
}

/* The sum over the threads that share rows. */
__device__ inline float sum_over_quad(float value) {
  value += __shfl_xor_sync(0xffffffffu, value, 1);
  return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

/* Writes factor * sum to the sequence's rows from `first`; zeros past its length. */
template <class N, class T>
__device__ inline void store_sum(const float (&sum)[N::kEights][4], const float (&factor)[2], T *destination,
                                 int64_t token_stride, int first, const Rows &own, int columns) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const int row = first + own_row(i);
    if (row >= own.rows) continue;
#pragma unroll
    for (int c = 0; c < N::kEights; ++c) {
      const int column = 8 * c + 2 * quad();
      if (column >= columns) continue;
      const uint32_t two = two_of<T>(sum[c][2 * i] * factor[i], sum[c][2 * i + 1] * factor[i]);
      *reinterpret_cast<uint32_t *>(destination + row * token_stride + column) = row < own.length ? two : 0;
    }
  }
}

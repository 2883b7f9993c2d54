/*
 * h = x + residual and its norm in one pass, in FP8 too, and backward with the residual's gradient added. `lanes` threads
 * share a row, P packs each, and keep it in registers: every tensor is read and written once.
 */
#include <fp8.cuh>
#include <partial_sums.cuh>
#include <residual_norm_arguments.cuh>

constexpr int kWarps = kThreads / 32;

/* Sums a and b over the `lanes` threads of a row; the rows of a block end together. */
__device__ inline void sum_row(float &a, float &b, int lanes) {
  __shared__ float warp_a[kWarps], warp_b[kWarps];
  for (int distance = lanes < 32 ? lanes / 2 : 16; distance > 0; distance /= 2) {
    a += __shfl_xor_sync(0xffffffffu, a, distance);
    b += __shfl_xor_sync(0xffffffffu, b, distance);
  }
  if (lanes <= 32) return;
  const int warp = threadIdx.x / 32, warps = lanes / 32, first = warp / warps * warps;
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    warp_a[warp] = a;
    warp_b[warp] = b;
  }
  __syncthreads();
  a = b = 0;
  for (int w = first; w < first + warps; ++w) {
    a += warp_a[w];
    b += warp_b[w];
  }
}

/* Raises *amax to the largest value of the block's threads. */
__device__ inline void raise(float *amax, float value) {
  __shared__ float warp_largest[kWarps];
  for (int distance = 16; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  if (threadIdx.x % 32 == 0) warp_largest[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kWarps; ++w) value = fmaxf(value, warp_largest[w]);
  atomic_max(amax, value);
}

/* The packs of a row that one thread keeps: pack p is number p * lanes + lane of the row. */
#define EACH_PACK(p) _Pragma("unroll") for (int p = 0; p < P; ++p)
#define EACH_ELEMENT(j) _Pragma("unroll") for (int j = 0; j < N; ++j)

/* One row, that of this thread's lanes. Where rows end before those of the tile, the tile gets zeros. Returns the largest
 * magnitude that the thread has met. */
template <class T, int P>
__device__ inline float norm_row(const NormArguments &a, int64_t row, float scale, uint8_t *tile_row) {
  constexpr int N = kPack<T>;
  const int lane = threadIdx.x % a.lanes, lanes = a.lanes, width = static_cast<int>(a.columns);
  const bool inside = row < a.rows;
  const int64_t start = row * a.columns;
  Pack<T, N> value[P], other[P];
  EACH_PACK(p) {
    const int column = (p * lanes + lane) * N;
    if (inside && column < width) {
      value[p] = load_pack<N>(static_cast<const T *>(a.x) + start + column);
      if (a.residual != nullptr) other[p] = load_pack<N>(static_cast<const T *>(a.residual) + start + column);
    }
  }
  float sum = 0, squares = 0, unused = 0;
  EACH_PACK(p) {
    const int column = (p * lanes + lane) * N;
    if (inside && column < width) {
      EACH_ELEMENT(j) {
        if (a.residual != nullptr)
          from_float(to_float(value[p].value[j]) + to_float(other[p].value[j]), value[p].value[j]);
        /* The norm sees what backward will read: the rounded sum. */
        sum += to_float(value[p].value[j]);
      }
      if (a.residual != nullptr) store_pack<N>(static_cast<T *>(a.h) + start + column, value[p]);
    }
  }
  float mu = 0;
  if (a.centered) {
    sum_row(sum, unused, lanes);
    mu = sum / a.columns;
  }
  EACH_PACK(p) {
    if (inside && (p * lanes + lane) * N < width) {
      EACH_ELEMENT(j) {
        const float off = to_float(value[p].value[j]) - mu;
        squares += off * off;
      }
    }
  }
  unused = 0;
  sum_row(squares, unused, lanes);
  const float factor = 1 / sqrtf(squares / a.columns + a.epsilon);
  if (inside && lane == 0) {
    if (a.mean != nullptr) a.mean[row] = mu;
    a.inverse[row] = factor;
  }
  float largest = 0;
  EACH_PACK(p) {
    const int column = (p * lanes + lane) * N;
    if (column < width) {
      float exact[N];
      EACH_ELEMENT(j) exact[j] = 0;
      if (inside) {
        const auto g = load_pack<N>(static_cast<const T *>(a.gamma) + column);
        Pack<T, N> b, normed;
        if (a.beta != nullptr) b = load_pack<N>(static_cast<const T *>(a.beta) + column);
        EACH_ELEMENT(j) {
          const float scaled = (to_float(value[p].value[j]) - mu) * factor;
          const float factor_of_column = to_float(g.value[j]) + a.center;
          exact[j] = a.beta != nullptr ? scaled * factor_of_column + to_float(b.value[j]) : scaled * factor_of_column;
          from_float(exact[j], normed.value[j]);
          /* Who casts y afterwards wants the largest of what is in y. */
          largest = fmaxf(largest, fabsf(a.scale != nullptr ? exact[j] : to_float(normed.value[j])));
        }
        if (a.y != nullptr) store_pack<N>(static_cast<T *>(a.y) + start + column, normed);
      }
      if (a.scale != nullptr) {
        Pack<uint32_t, N / 4> quads;
        _Pragma("unroll") for (int q = 0; q < N / 4; ++q)
            quads.value[q] = e4m3_of(exact[4 * q] * scale, exact[4 * q + 1] * scale, exact[4 * q + 2] * scale,
                                     exact[4 * q + 3] * scale);
        if (inside && a.y8 != nullptr)
          store_pack<N / 4>(reinterpret_cast<uint32_t *>(a.y8 + start + column), quads);
        if (tile_row != nullptr)
          _Pragma("unroll") for (int q = 0; q < N / 4; ++q)
              reinterpret_cast<uint32_t *>(tile_row + column)[q] = quads.value[q];
      }
    }
  }
  return largest;
}

/* Writes the tile's rows as columns: a thread turns four rows of four columns, its neighbours the next rows. */
__device__ inline void write_transposed(const NormArguments &a, const uint8_t *tile, int64_t first) {
  const int width = static_cast<int>(a.columns), stride = width + kTilePad, quads = a.tile_rows / 4;
  const int row = threadIdx.x % quads * 4;
  if (first + row >= a.filled_rows) return;
  for (int column = threadIdx.x / quads * 4; column < width; column += kThreads / quads * 4) {
    uint32_t of_row[4];
    _Pragma("unroll") for (int r = 0; r < 4; ++r)
        of_row[r] = *reinterpret_cast<const uint32_t *>(tile + (row + r) * stride + column);
    _Pragma("unroll") for (int c = 0; c < 4; ++c) {
      uint32_t of_column = 0;
      _Pragma("unroll") for (int r = 0; r < 4; ++r) of_column |= (of_row[r] >> 8 * c & 0xffu) << 8 * r;
      *reinterpret_cast<uint32_t *>(a.y8_transposed + (column + c) * a.filled_rows + first + row) = of_column;
    }
  }
}

/* `tile`: room for the rows that are transposed at once; null where none are. */
template <class T, int P>
__device__ inline void residual_norm(const NormArguments &a, uint8_t *tile) {
  const int rows_a_block = kThreads / a.lanes, mine = threadIdx.x / a.lanes;
  const int step = tile != nullptr ? a.tile_rows : rows_a_block;
  const int64_t covered = tile != nullptr ? a.filled_rows : a.rows;
  const float scale = a.scale != nullptr ? *a.scale : 1.0f;
  float largest = 0;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * step; first < covered;
       first += static_cast<int64_t>(gridDim.x) * step) {
    for (int row = mine; row < step; row += rows_a_block) {
      uint8_t *const tile_row = tile == nullptr ? nullptr : tile + row * (a.columns + kTilePad);
      largest = fmaxf(largest, norm_row<T, P>(a, first + row, scale, tile_row));
    }
    if (tile != nullptr) {
      __syncthreads();
      write_transposed(a, tile, first);
      __syncthreads();
    }
  }
  if (a.amax != nullptr) raise(a.amax, largest);
  if (a.scale_inverse != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *a.scale_inverse = 1 / scale;
}

/* Adds the columns of the rows of a block, in their order, and writes them as one row of partial sums. */
template <int P, int N>
__device__ inline void write_columns(const float (&sum)[P][N], float *out, int64_t columns, int lanes) {
  DYNAMIC_SHARED(tile);
  const int lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows = kThreads / lanes;
  EACH_PACK(p) {
    const int64_t column = (static_cast<int64_t>(p) * lanes + lane) * N;
    __syncthreads();
    EACH_ELEMENT(j) tile[j * kThreads + threadIdx.x] = sum[p][j];
    __syncthreads();
    if (row == 0 && column < columns) {
      for (int j = 0; j < N; ++j) {
        float total = 0;
        for (int r = 0; r < rows; ++r) total += tile[j * kThreads + r * lanes + lane];
        out[column + j] = total;
      }
    }
  }
}

template <class T, int P>
__device__ void norm_gradient(const NormArguments &a) {
  constexpr int N = kPack<T>;
  const int lanes = a.lanes, lane = threadIdx.x % lanes, rows_a_block = kThreads / lanes;
  const int width = static_cast<int>(a.columns);
  const T *const gamma = static_cast<const T *>(a.gamma);
  float dgamma[P][N] = {}, dbeta[P][N] = {};
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * rows_a_block; first < a.rows;
       first += static_cast<int64_t>(gridDim.x) * rows_a_block) {
    const int64_t row = first + threadIdx.x / lanes;
    const bool inside = row < a.rows;
    const int64_t start = row * a.columns;
    /* All of the row is asked for at once, what is added last included. */
    Pack<T, N> value[P], gradient[P], through[P];
    EACH_PACK(p) {
      const int column = (p * lanes + lane) * N;
      if (inside && column < width) {
        value[p] = load_pack<N>(static_cast<const T *>(a.h) + start + column);
        gradient[p] = load_pack<N>(static_cast<const T *>(a.dy) + start + column);
        if (a.dresidual != nullptr) {
          through[p] = load_pack<N>(static_cast<const T *>(a.dresidual) + start + column);
        } else {
          EACH_ELEMENT(j) from_float(0, through[p].value[j]);
        }
      }
    }
    const float mu = inside && a.centered ? a.mean[row] : 0.0f, factor = inside ? a.inverse[row] : 0.0f;
    float sum = 0, products = 0;
    EACH_PACK(p) {
      const int column = (p * lanes + lane) * N;
      if (inside && column < width) {
        const auto g = load_pack<N>(gamma + column);
        EACH_ELEMENT(j) {
          const float d = to_float(gradient[p].value[j]), normed = (to_float(value[p].value[j]) - mu) * factor;
          const float scaled = d * (to_float(g.value[j]) + a.center);
          dgamma[p][j] += d * normed;
          dbeta[p][j] += d;
          sum += scaled;
          products += scaled * normed;
        }
      }
    }
    sum_row(sum, products, lanes);
    const float mean_of_sum = a.centered ? sum / a.columns : 0.0f, mean_of_products = products / a.columns;
    EACH_PACK(p) {
      const int column = (p * lanes + lane) * N;
      if (inside && column < width) {
        const auto g = load_pack<N>(gamma + column);
        EACH_ELEMENT(j) {
          const float normed = (to_float(value[p].value[j]) - mu) * factor;
          const float scaled = to_float(gradient[p].value[j]) * (to_float(g.value[j]) + a.center);
          from_float(factor * (scaled - mean_of_sum - normed * mean_of_products) + to_float(through[p].value[j]),
                     through[p].value[j]);
        }
        store_pack<N>(static_cast<T *>(a.dh) + start + column, through[p]);
      }
    }
  }
  /* Partial sums lie as [2, blocks, columns]: those of gamma, then those of beta. */
  write_columns(dgamma, a.partial + blockIdx.x * a.columns, a.columns, lanes);
  if (a.dbeta != nullptr)
    write_columns(dbeta, a.partial + (static_cast<int64_t>(gridDim.x) + blockIdx.x) * a.columns, a.columns, lanes);
}

#define FORWARD(name, T, P) \
  KERNEL(name, const NormArguments a) { residual_norm<T, P>(a, nullptr); }
#define TRANSPOSING(name, T, P)                                \
  KERNEL(name, const NormArguments a) {                        \
    DYNAMIC_SHARED(tile);                                      \
    residual_norm<T, P>(a, reinterpret_cast<uint8_t *>(tile)); \
  }
#define BACKWARD(blocks, name, T, P) \
  KERNEL_OF(blocks, name, const NormArguments a) { norm_gradient<T, P>(a); }
#define FORWARD_2(name, T) FORWARD(name, T, 2)
#define FORWARD_3(name, T) FORWARD(name, T, 3)
#define FORWARD_4(name, T) FORWARD(name, T, 4)
#define TRANSPOSING_2(name, T) TRANSPOSING(name, T, 2)
#define TRANSPOSING_3(name, T) TRANSPOSING(name, T, 3)
#define TRANSPOSING_4(name, T) TRANSPOSING(name, T, 4)
/* Two blocks a multiprocessor hide more latency; with four packs a thread their registers would not suffice. */
#define BACKWARD_2(name, T) BACKWARD(2, name, T, 2)
#define BACKWARD_3(name, T) BACKWARD(2, name, T, 3)
#define BACKWARD_4(name, T) BACKWARD(1, name, T, 4)

FOR_FLOATS(FORWARD_2, residual_norm_2)
FOR_FLOATS(FORWARD_3, residual_norm_3)
FOR_FLOATS(FORWARD_4, residual_norm_4)
FOR_FLOATS(TRANSPOSING_2, norm_transposed_2)
FOR_FLOATS(TRANSPOSING_3, norm_transposed_3)
FOR_FLOATS(TRANSPOSING_4, norm_transposed_4)
FOR_FLOATS(BACKWARD_2, norm_gradient_2)
FOR_FLOATS(BACKWARD_3, norm_gradient_3)
FOR_FLOATS(BACKWARD_4, norm_gradient_4)

KERNEL(norm_partials, const float *partial, float *dgamma, float *dbeta, float accumulate, int64_t chunks,
       int64_t columns) {
  sum_partials(partial + blockIdx.y * chunks * columns, blockIdx.y == 0 ? dgamma : dbeta, accumulate, chunks, columns);
}

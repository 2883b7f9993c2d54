/*
 * h = x + residual and its layer norm in one pass, and backward with the residual's gradient added. `lanes` threads share
 * a row, P packs each, and keep it in registers: every tensor is read and written once.
 */
#include <partial_sums.cuh>

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

/* The packs of a row that one thread keeps: pack p is number p * lanes + lane of the row. */
#define EACH_PACK(p) _Pragma("unroll") for (int p = 0; p < P; ++p)
#define EACH_ELEMENT(j) _Pragma("unroll") for (int j = 0; j < N; ++j)

template <class T, int P>
__device__ void residual_norm(const T *x, const T *residual, const T *gamma, const T *beta, float epsilon, T *h, T *y,
                              float *mean, float *inverse, int64_t rows, int64_t columns, int lanes) {
  constexpr int N = kPack<T>;
  const int lane = threadIdx.x % lanes, rows_a_block = kThreads / lanes, width = static_cast<int>(columns);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * rows_a_block; first < rows;
       first += static_cast<int64_t>(gridDim.x) * rows_a_block) {
    const int64_t row = first + threadIdx.x / lanes;
    const bool inside = row < rows;
    const int64_t start = row * columns;
    Pack<T, N> value[P], other[P];
    EACH_PACK(p) {
      const int column = (p * lanes + lane) * N;
      if (inside && column < width) {
        value[p] = load_pack<N>(x + start + column);
        other[p] = load_pack<N>(residual + start + column);
      }
    }
    float sum = 0, squares = 0, unused = 0;
    EACH_PACK(p) {
      const int column = (p * lanes + lane) * N;
      if (inside && column < width) {
        EACH_ELEMENT(j) {
          from_float(to_float(value[p].value[j]) + to_float(other[p].value[j]), value[p].value[j]);
          /* The norm sees what backward will read: the rounded sum. */
          sum += to_float(value[p].value[j]);
        }
        store_pack<N>(h + start + column, value[p]);
      }
    }
    sum_row(sum, unused, lanes);
    const float mu = sum / columns;
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
    const float factor = 1 / sqrtf(squares / columns + epsilon);
    if (inside && lane == 0) {
      mean[row] = mu;
      inverse[row] = factor;
    }
    EACH_PACK(p) {
      const int column = (p * lanes + lane) * N;
      if (inside && column < width) {
        const auto g = load_pack<N>(gamma + column);
        const auto b = load_pack<N>(beta + column);
        Pack<T, N> normed;
        EACH_ELEMENT(j) {
          from_float((to_float(value[p].value[j]) - mu) * factor * to_float(g.value[j]) + to_float(b.value[j]),
                     normed.value[j]);
        }
        store_pack<N>(y + start + column, normed);
      }
    }
  }
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
__device__ void norm_gradient(const T *dy, const T *h, const float *mean, const float *inverse, const T *gamma,
                              const T *dresidual, T *dh, float *partial, int64_t rows, int64_t columns, int lanes) {
  constexpr int N = kPack<T>;
  const int lane = threadIdx.x % lanes, rows_a_block = kThreads / lanes, width = static_cast<int>(columns);
  float dgamma[P][N] = {}, dbeta[P][N] = {};
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * rows_a_block; first < rows;
       first += static_cast<int64_t>(gridDim.x) * rows_a_block) {
    const int64_t row = first + threadIdx.x / lanes;
    const bool inside = row < rows;
    const int64_t start = row * columns;
    /* All of the row is asked for at once, what is added last included. */
    Pack<T, N> value[P], gradient[P], through[P];
    EACH_PACK(p) {
      const int column = (p * lanes + lane) * N;
      if (inside && column < width) {
        value[p] = load_pack<N>(h + start + column);
        gradient[p] = load_pack<N>(dy + start + column);
        through[p] = load_pack<N>(dresidual + start + column);
      }
    }
    const float mu = inside ? mean[row] : 0.0f, factor = inside ? inverse[row] : 0.0f;
    float sum = 0, products = 0;
    EACH_PACK(p) {
      const int column = (p * lanes + lane) * N;
      if (inside && column < width) {
        const auto g = load_pack<N>(gamma + column);
        EACH_ELEMENT(j) {
          const float d = to_float(gradient[p].value[j]), normed = (to_float(value[p].value[j]) - mu) * factor;
          const float scaled = d * to_float(g.value[j]);
          dgamma[p][j] += d * normed;
          dbeta[p][j] += d;
          sum += scaled;
          products += scaled * normed;
        }
      }
    }
    sum_row(sum, products, lanes);
    const float mean_of_sum = sum / columns, mean_of_products = products / columns;
    EACH_PACK(p) {
      const int column = (p * lanes + lane) * N;
      if (inside && column < width) {
        const auto g = load_pack<N>(gamma + column);
        EACH_ELEMENT(j) {
          const float normed = (to_float(value[p].value[j]) - mu) * factor;
          const float scaled = to_float(gradient[p].value[j]) * to_float(g.value[j]);
          from_float(factor * (scaled - mean_of_sum - normed * mean_of_products) + to_float(through[p].value[j]),
                     through[p].value[j]);
        }
        store_pack<N>(dh + start + column, through[p]);
      }
    }
  }
  /* Partial sums lie as [2, blocks, columns]: those of gamma, then those of beta. */
  write_columns(dgamma, partial + blockIdx.x * columns, columns, lanes);
  write_columns(dbeta, partial + (static_cast<int64_t>(gridDim.x) + blockIdx.x) * columns, columns, lanes);
}

#define FORWARD(name, T, P)                                                                                           \
  KERNEL(name, const T *x, const T *residual, const T *gamma, const T *beta, float epsilon, T *h, T *y, float *mean, \
         float *inverse, int64_t rows, int64_t columns, int lanes) {                                                 \
    residual_norm<T, P>(x, residual, gamma, beta, epsilon, h, y, mean, inverse, rows, columns, lanes);               \
  }
#define BACKWARD(blocks, name, T, P)                                                                               \
  KERNEL_OF(blocks, name, const T *dy, const T *h, const float *mean, const float *inverse, const T *gamma,       \
         const T *dresidual, T *dh, float *partial, int64_t rows, int64_t columns, int lanes) {                   \
    norm_gradient<T, P>(dy, h, mean, inverse, gamma, dresidual, dh, partial, rows, columns, lanes);               \
  }
#define FORWARD_2(name, T) FORWARD(name, T, 2)
#define FORWARD_3(name, T) FORWARD(name, T, 3)
#define FORWARD_4(name, T) FORWARD(name, T, 4)
/* Two blocks a multiprocessor hide more latency; with four packs a thread their registers would not suffice. */
#define BACKWARD_2(name, T) BACKWARD(2, name, T, 2)
#define BACKWARD_3(name, T) BACKWARD(2, name, T, 3)
#define BACKWARD_4(name, T) BACKWARD(1, name, T, 4)

FOR_FLOATS(FORWARD_2, residual_norm_2)
FOR_FLOATS(FORWARD_3, residual_norm_3)
FOR_FLOATS(FORWARD_4, residual_norm_4)
FOR_FLOATS(BACKWARD_2, norm_gradient_2)
FOR_FLOATS(BACKWARD_3, norm_gradient_3)
FOR_FLOATS(BACKWARD_4, norm_gradient_4)

KERNEL(norm_partials, const float *partial, float *dgamma, float *dbeta, float accumulate, int64_t chunks,
       int64_t columns) {
  sum_partials(partial + blockIdx.y * chunks * columns, blockIdx.y == 0 ? dgamma : dbeta, accumulate, chunks, columns);
}

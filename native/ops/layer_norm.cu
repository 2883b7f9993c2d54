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

template <class T, int P>
__device__ void residual_norm(const T *x, const T *residual, const T *gamma, const T *beta, float epsilon, T *h, T *y,
                              float *mean, float *inverse, int64_t rows, int64_t columns, int lanes) {
  constexpr int N = kPack<T>;
  const int lane = threadIdx.x % lanes, rows_a_block = kThreads / lanes;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * rows_a_block; first < rows;
       first += static_cast<int64_t>(gridDim.x) * rows_a_block) {
    const int64_t row = first + threadIdx.x / lanes;
    const bool inside = row < rows;
    float value[P][N];
    float sum = 0, squares = 0;
    for (int p = 0; p < P; ++p) {
      const int64_t column = (static_cast<int64_t>(p) * lanes + lane) * N;
      for (int j = 0; j < N; ++j) value[p][j] = 0;
      if (!inside || column >= columns) continue;
      const auto a = load_pack<N>(x + row * columns + column);
      const auto b = load_pack<N>(residual + row * columns + column);
      Pack<T, N> total;
      for (int j = 0; j < N; ++j) {
        from_float(to_float(a.value[j]) + to_float(b.value[j]), total.value[j]);
        /* The norm sees what backward will read: the rounded sum. */
        value[p][j] = to_float(total.value[j]);
        sum += value[p][j];
      }
      store_pack<N>(h + row * columns + column, total);
    }
    float unused = 0;
    sum_row(sum, unused, lanes);
    const float mu = sum / columns;
    for (int p = 0; p < P; ++p) {
      const int64_t column = (static_cast<int64_t>(p) * lanes + lane) * N;
      if (column >= columns) continue;
      for (int j = 0; j < N; ++j) squares += (value[p][j] - mu) * (value[p][j] - mu);
    }
    unused = 0;
    sum_row(squares, unused, lanes);
    const float factor = 1 / sqrtf(squares / columns + epsilon);
    if (!inside) continue;
    if (lane == 0) {
      mean[row] = mu;
      inverse[row] = factor;
    }
    for (int p = 0; p < P; ++p) {
      const int64_t column = (static_cast<int64_t>(p) * lanes + lane) * N;
      if (column >= columns) continue;
      const auto g = load_pack<N>(gamma + column);
      const auto b = load_pack<N>(beta + column);
      Pack<T, N> normed;
      for (int j = 0; j < N; ++j)
        from_float((value[p][j] - mu) * factor * to_float(g.value[j]) + to_float(b.value[j]), normed.value[j]);
      store_pack<N>(y + row * columns + column, normed);
    }
  }
}

/* Adds the columns of the rows of a block, in their order, and writes them as one row of partial sums. */
template <int P, int N>
__device__ inline void write_columns(const float (&sum)[P][N], float *out, int64_t columns, int lanes) {
  DYNAMIC_SHARED(tile);
  const int lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows = kThreads / lanes;
  for (int p = 0; p < P; ++p) {
    const int64_t column = (static_cast<int64_t>(p) * lanes + lane) * N;
    __syncthreads();
    for (int j = 0; j < N; ++j) tile[j * kThreads + threadIdx.x] = sum[p][j];
    __syncthreads();
    if (row != 0 || column >= columns) continue;
    for (int j = 0; j < N; ++j) {
      float total = 0;
      for (int r = 0; r < rows; ++r) total += tile[j * kThreads + r * lanes + lane];
      out[column + j] = total;
    }
  }
}

template <class T, int P>
__device__ void norm_gradient(const T *dy, const T *h, const float *mean, const float *inverse, const T *gamma,
                              const T *dresidual, T *dh, float *partial, int64_t rows, int64_t columns, int lanes) {
  constexpr int N = kPack<T>;
  const int lane = threadIdx.x % lanes, rows_a_block = kThreads / lanes;
  float dgamma[P][N] = {}, dbeta[P][N] = {};
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * rows_a_block; first < rows;
       first += static_cast<int64_t>(gridDim.x) * rows_a_block) {
    const int64_t row = first + threadIdx.x / lanes;
    const bool inside = row < rows;
    const float mu = inside ? mean[row] : 0.0f, factor = inside ? inverse[row] : 0.0f;
    float normed[P][N], scaled[P][N];
    float sum = 0, products = 0;
    for (int p = 0; p < P; ++p) {
      const int64_t column = (static_cast<int64_t>(p) * lanes + lane) * N;
      for (int j = 0; j < N; ++j) normed[p][j] = scaled[p][j] = 0;
      if (!inside || column >= columns) continue;
      const auto value = load_pack<N>(h + row * columns + column);
      const auto gradient = load_pack<N>(dy + row * columns + column);
      const auto g = load_pack<N>(gamma + column);
      for (int j = 0; j < N; ++j) {
        const float d = to_float(gradient.value[j]);
        normed[p][j] = (to_float(value.value[j]) - mu) * factor;
        scaled[p][j] = d * to_float(g.value[j]);
        dgamma[p][j] += d * normed[p][j];
        dbeta[p][j] += d;
        sum += scaled[p][j];
        products += scaled[p][j] * normed[p][j];
      }
    }
    sum_row(sum, products, lanes);
    if (!inside) continue;
    const float mean_of_sum = sum / columns, mean_of_products = products / columns;
    for (int p = 0; p < P; ++p) {
      const int64_t column = (static_cast<int64_t>(p) * lanes + lane) * N;
      if (column >= columns) continue;
      const auto through = load_pack<N>(dresidual + row * columns + column);
      Pack<T, N> result;
      for (int j = 0; j < N; ++j)
        from_float(factor * (scaled[p][j] - mean_of_sum - normed[p][j] * mean_of_products) +
                       to_float(through.value[j]),
                   result.value[j]);
      store_pack<N>(dh + row * columns + column, result);
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
#define BACKWARD(name, T, P)                                                                                       \
  KERNEL(name, const T *dy, const T *h, const float *mean, const float *inverse, const T *gamma,                  \
         const T *dresidual, T *dh, float *partial, int64_t rows, int64_t columns, int lanes) {                   \
    norm_gradient<T, P>(dy, h, mean, inverse, gamma, dresidual, dh, partial, rows, columns, lanes);               \
  }
#define FORWARD_2(name, T) FORWARD(name, T, 2)
#define FORWARD_3(name, T) FORWARD(name, T, 3)
#define FORWARD_4(name, T) FORWARD(name, T, 4)
#define BACKWARD_2(name, T) BACKWARD(name, T, 2)
#define BACKWARD_3(name, T) BACKWARD(name, T, 3)
#define BACKWARD_4(name, T) BACKWARD(name, T, 4)

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

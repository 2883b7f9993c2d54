/*
 * sum[c] = beta * sum[c] + sum over r of x[r, c]. A block owns a tile of columns and a chunk of rows. `lanes` threads
 * stand side by side on a row, a pack of N columns each; the other threads of the block take the rows below. With one
 * chunk the block writes the result, else it writes a row of partial sums for row_sum_partials. Few rows would leave
 * most threads of such a block idle: row_sum_few adds them up without blocks.
 */
#include <partial_sums.cuh>

template <class T, int N>
__device__ void row_sum(const T *x, float *out, float beta, int64_t rows, int64_t columns, int64_t chunk_rows,
                        int lanes) {
  __shared__ float tile[N][kThreads];
  const int thread = threadIdx.x, lane = thread % lanes, rows_a_pass = kThreads / lanes;
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * lanes + lane) * N;
  const int64_t begin = blockIdx.y * chunk_rows;
  const int64_t end = begin + chunk_rows < rows ? begin + chunk_rows : rows;
  float sum[N] = {};
  if (column < columns) {
    constexpr int kLoads = 4;
    const T *source = x + column;
    int64_t row = begin + thread / lanes;
    for (; row + (kLoads - 1) * rows_a_pass < end; row += kLoads * rows_a_pass) {
      Pack<T, N> pack[kLoads];
      for (int k = 0; k < kLoads; ++k) pack[k] = load_pack<N>(source + (row + k * rows_a_pass) * columns);
      for (int k = 0; k < kLoads; ++k)
        for (int j = 0; j < N; ++j) sum[j] += to_float(pack[k].value[j]);
    }
    for (; row < end; row += rows_a_pass) {
      const auto pack = load_pack<N>(source + row * columns);
      for (int j = 0; j < N; ++j) sum[j] += to_float(pack.value[j]);
    }
  }
  for (int j = 0; j < N; ++j) tile[j][thread] = sum[j];
  for (int half = kThreads / 2; half >= lanes; half /= 2) {
    __syncthreads();
    if (thread < half)
      for (int j = 0; j < N; ++j) tile[j][thread] += tile[j][thread + half];
  }
  if (thread < lanes && column < columns) {
    float *destination = out + blockIdx.y * columns + column;
    for (int j = 0; j < N; ++j)
      destination[j] = beta != 0 ? fmaf(beta, destination[j], tile[j][thread]) : tile[j][thread];
  }
}

#define PACKED(name, T)                                                                                            \
  KERNEL(name, const T *x, float *out, float beta, int64_t rows, int64_t columns, int64_t chunk_rows, int lanes) { \
    row_sum<T, kPack<T>>(x, out, beta, rows, columns, chunk_rows, lanes);                                          \
  }
#define SCALAR(name, T)                                                                                            \
  KERNEL(name, const T *x, float *out, float beta, int64_t rows, int64_t columns, int64_t chunk_rows, int lanes) { \
    row_sum<T, 1>(x, out, beta, rows, columns, chunk_rows, lanes);                                                 \
  }

FOR_FLOATS(PACKED, row_sum)
FOR_FLOATS(SCALAR, row_sum_scalar)

/* Few rows: a thread adds up N columns, one row after another. */
template <class T, int N>
__device__ void sum_few_rows(const T *x, float *out, float beta, int64_t rows, int64_t columns) {
  constexpr int kLoads = 4;
  for (int64_t i = thread_index(); i < columns / N; i += thread_total()) {
    const T *source = x + i * N;
    float sum[N] = {};
    int64_t row = 0;
    for (; row + kLoads <= rows; row += kLoads) {
      Pack<T, N> pack[kLoads];
      for (int k = 0; k < kLoads; ++k) pack[k] = load_pack<N>(source + (row + k) * columns);
      for (int k = 0; k < kLoads; ++k)
        for (int j = 0; j < N; ++j) sum[j] += to_float(pack[k].value[j]);
    }
    for (; row < rows; ++row) {
      const auto pack = load_pack<N>(source + row * columns);
      for (int j = 0; j < N; ++j) sum[j] += to_float(pack.value[j]);
    }
    Pack<float, N> total;
    if (beta != 0) total = load_pack<N>(out + i * N);
    for (int j = 0; j < N; ++j) total.value[j] = beta != 0 ? fmaf(beta, total.value[j], sum[j]) : sum[j];
    store_pack<N>(out + i * N, total);
  }
}

#define FEW_PACKED(name, T)                                                               \
  KERNEL(name, const T *x, float *out, float beta, int64_t rows, int64_t columns) {       \
    sum_few_rows<T, 4>(x, out, beta, rows, columns);                                      \
  }
#define FEW_SCALAR(name, T)                                                               \
  KERNEL(name, const T *x, float *out, float beta, int64_t rows, int64_t columns) {       \
    sum_few_rows<T, 1>(x, out, beta, rows, columns);                                      \
  }

FOR_FLOATS(FEW_PACKED, row_sum_few)
FOR_FLOATS(FEW_SCALAR, row_sum_few_scalar)

KERNEL(row_sum_partials, const float *partial, float *out, float beta, int64_t chunks, int64_t columns) {
  sum_partials(partial, out, beta, chunks, columns);
}

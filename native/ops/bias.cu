/* A bias added to rows, with or without a residual. */
#include <common.cuh>

/* A thread's packs of N lie a fixed number of packs apart, so that their columns do, too. */
template <class T, int N>
__device__ void bias_add(const T *x, const T *bias, const T *residual, T *y, int64_t rows, int64_t columns) {
  const int64_t width = columns / N, packs = rows * width, step = thread_total() % width;
  int64_t column = thread_index() % width;
  for (int64_t i = thread_index(); i < packs; i += thread_total()) {
    auto value = load_pack<N>(x + i * N);
    const auto summand = load_pack<N>(bias + column * N);
    if (residual != nullptr) {
      const auto base = load_pack<N>(residual + i * N);
      for (int j = 0; j < N; ++j)
        from_float(to_float(value.value[j]) + to_float(summand.value[j]) + to_float(base.value[j]), value.value[j]);
    } else {
      for (int j = 0; j < N; ++j) from_float(to_float(value.value[j]) + to_float(summand.value[j]), value.value[j]);
    }
    store_pack<N>(y + i * N, value);
    column += step;
    if (column >= width) column -= width;
  }
}

#define KERNELS(name, T, N)                                                                                   \
  KERNEL(name, const T *x, const T *bias, const T *residual, T *y, int64_t rows, int64_t columns) {           \
    bias_add<T, N>(x, bias, residual, y, rows, columns);                                                      \
  }
#define PACKED(name, T) KERNELS(name, T, kPack<T>)
#define SCALAR(name, T) KERNELS(name, T, 1)

FOR_FLOATS(PACKED, bias_add)
FOR_FLOATS(SCALAR, bias_add_scalar)

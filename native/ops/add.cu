/* y = x + residual */
#include <common.cuh>

template <class T, int N>
__device__ void add(const T *x, const T *residual, T *y, int64_t count) {
  const int64_t packs = count / N;
  for (int64_t i = thread_index(); i < packs; i += thread_total()) {
    const auto a = load_pack<N>(x + i * N);
    const auto b = load_pack<N>(residual + i * N);
    Pack<T, N> sum;
    for (int j = 0; j < N; ++j) from_float(to_float(a.value[j]) + to_float(b.value[j]), sum.value[j]);
    store_pack<N>(y + i * N, sum);
  }
  for (int64_t i = packs * N + thread_index(); i < count; i += thread_total())
    from_float(to_float(x[i]) + to_float(residual[i]), y[i]);
}

#define PACKED(name, T) \
  KERNEL(name, const T *x, const T *residual, T *y, int64_t count) { add<T, kPack<T>>(x, residual, y, count); }
#define SCALAR(name, T) \
  KERNEL(name, const T *x, const T *residual, T *y, int64_t count) { add<T, 1>(x, residual, y, count); }

FOR_FLOATS(PACKED, add)
FOR_FLOATS(SCALAR, add_scalar)

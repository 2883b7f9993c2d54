/* y = x + residual, y = x in another dtype, and y = beta * y + x into FP32. */
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

/* Packs as long as the wider type allows: both sides move in whole instructions without gaps. */
template <class X, class Y>
constexpr int kCastPack = 16 / (sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));

template <class X, class Y, int N>
__device__ void cast(const X *x, Y *y, int64_t count) {
  const int64_t packs = count / N;
  for (int64_t i = thread_index(); i < packs; i += thread_total()) {
    const auto in = load_pack<N>(x + i * N);
    Pack<Y, N> out;
    for (int j = 0; j < N; ++j) from_float(to_float(in.value[j]), out.value[j]);
    store_pack<N>(y + i * N, out);
  }
  for (int64_t i = packs * N + thread_index(); i < count; i += thread_total()) from_float(to_float(x[i]), y[i]);
}

template <class T, int N>
__device__ void accumulate(const T *x, float *y, float beta, int64_t count) {
  const int64_t packs = count / N;
  for (int64_t i = thread_index(); i < packs; i += thread_total()) {
    const auto in = load_pack<N>(x + i * N);
    Pack<float, N> out = {};
    if (beta != 0) out = load_pack<N>(y + i * N);
    for (int j = 0; j < N; ++j) {
      const float added = to_float(in.value[j]);
      out.value[j] = beta != 0 ? fmaf(beta, out.value[j], added) : added;
    }
    store_pack<N>(y + i * N, out);
  }
  for (int64_t i = packs * N + thread_index(); i < count; i += thread_total())
    y[i] = beta != 0 ? fmaf(beta, y[i], to_float(x[i])) : to_float(x[i]);
}

#define CAST(name, X, Y)                                                                             \
  KERNEL(cast_##name, const X *x, Y *y, int64_t count) { cast<X, Y, kCastPack<X, Y>>(x, y, count); } \
  KERNEL(cast_scalar_##name, const X *x, Y *y, int64_t count) { cast<X, Y, 1>(x, y, count); }

CAST(float32_float32, float32, float32)
CAST(float32_float16, float32, float16)
CAST(float32_bfloat16, float32, bfloat16)
CAST(float16_float32, float16, float32)
CAST(float16_float16, float16, float16)
CAST(float16_bfloat16, float16, bfloat16)
CAST(bfloat16_float32, bfloat16, float32)
CAST(bfloat16_float16, bfloat16, float16)
CAST(bfloat16_bfloat16, bfloat16, bfloat16)

#define ADD(name, T) \
  KERNEL(name, const T *x, const T *residual, T *y, int64_t count) { add<T, kPack<T>>(x, residual, y, count); }
#define ADD_SCALAR(name, T) \
  KERNEL(name, const T *x, const T *residual, T *y, int64_t count) { add<T, 1>(x, residual, y, count); }

FOR_FLOATS(ADD, add)
FOR_FLOATS(ADD_SCALAR, add_scalar)

#define ACCUMULATE(name, T) \
  KERNEL(name, const T *x, float *y, float beta, int64_t count) { accumulate<T, 4>(x, y, beta, count); }
#define ACCUMULATE_SCALAR(name, T) \
  KERNEL(name, const T *x, float *y, float beta, int64_t count) { accumulate<T, 1>(x, y, beta, count); }

FOR_FLOATS(ACCUMULATE, accumulate)
FOR_FLOATS(ACCUMULATE_SCALAR, accumulate_scalar)

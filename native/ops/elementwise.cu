/*
 * Operations of which each result depends on one element of each input: a formula a line, in FP32, of a (b and c), the
 * elements of the inputs in the order of the function's arguments. Below them what takes more than a line: cast and
 * accumulate.
 */
#include <amax.cuh>
#include <common.cuh>

template <int N, class Y, class Formula, class... X>
__device__ inline Pack<Y, N> map_pack(const Formula &formula, const Pack<X, N> &...x) {
  Pack<Y, N> y;
  for (int j = 0; j < N; ++j) from_float(formula(to_float(x.value[j])...), y.value[j]);
  return y;
}

/* y[i] = formula(x[i]...), in packs of N as far as they go. y may be an input. */
template <int N, class Y, class Formula, class... X>
__device__ inline void map(Y *y, int64_t count, const Formula &formula, const X *...x) {
  const int64_t packs = count / N;
  for (int64_t i = thread_index(); i < packs; i += thread_total())
    store_pack<N>(y + i * N, map_pack<N, Y>(formula, load_pack<N>(x + i * N)...));
  for (int64_t i = packs * N + thread_index(); i < count; i += thread_total()) from_float(formula(to_float(x[i])...), y[i]);
}

template <class T>
__device__ inline void raise_to(float &largest, T value) {
  largest = fmaxf(largest, fabsf(to_float(value)));
}

/* The same, and raises *amax to the largest |y[i]|. */
template <int N, class Y, class Formula, class... X>
__device__ inline void map_amax(Y *y, float *amax, int64_t count, const Formula &formula, const X *...x) {
  float largest = 0;
  const int64_t packs = count / N;
  for (int64_t i = thread_index(); i < packs; i += thread_total()) {
    const Pack<Y, N> pack = map_pack<N, Y>(formula, load_pack<N>(x + i * N)...);
    for (int j = 0; j < N; ++j) raise_to(largest, pack.value[j]);
    store_pack<N>(y + i * N, pack);
  }
  for (int64_t i = packs * N + thread_index(); i < count; i += thread_total()) {
    from_float(formula(to_float(x[i])...), y[i]);
    raise_to(largest, y[i]);
  }
  raise(amax, largest);
}

/* The normal distribution at -|a|, to 3e-6 of itself, and in `density` its derivative without the factor 1/sqrt(2 pi): a
 * third of the instructions of erfcf. The polynomial of t is erfc(x) exp(x^2) / 2 for x = |a| / sqrt 2, t = 1 / (1 + 0.52 x). */
__device__ inline float lower_tail(float a, float &density) {
  const float t = reciprocal(fmaf(0.52f * 0.70710678f, fabsf(a), 1.0f));
  density = __expf(-0.5f * a * a);
  float sum = 0.5f * 0.096623264f;
  const float terms[] = {0.5f * -0.3471497f,  0.5f * 0.3109178f,  0.5f * 0.0813614f,
                         0.5f * 0.27357346f, 0.5f * 0.29120168f, 0.5f * 0.29347324f};
#pragma unroll
  for (float term : terms) sum = fmaf(sum, t, term);
  return sum * t * density;
}

/* By erfc of the other sign, so that small results keep their digits. */
template <class T>
__device__ inline float gelu_erf_of(float a) {
  if (sizeof(T) == 4) return 0.5f * a * erfcf(-0.70710678f * a);
  float density;
  const float tail = lower_tail(a, density);
  return a * (a < 0 ? tail : 1 - tail);
}

template <class T>
__device__ inline float gelu_erf_slope(float a) {
  if (sizeof(T) == 4) return 0.5f * erfcf(-0.70710678f * a) + a * (0.39894228f * expf(-0.5f * a * a));
  float density;
  const float tail = lower_tail(a, density);
  return fmaf(a, 0.39894228f * density, a < 0 ? tail : 1 - tail);
}

#define UNARY_KERNEL(name, X, Y, N, formula) \
  KERNEL(name, const X *x, Y *y, int64_t count) {   \
    using T [[maybe_unused]] = Y;                   \
    map<N>(y, count, [](float a) { return formula; }, x); \
  }
#define BINARY_KERNEL(name, X, Y, N, formula)                               \
  KERNEL(name, const X *x0, const X *x1, Y *y, int64_t count) {             \
    using T [[maybe_unused]] = Y;                                           \
    map<N>(y, count, [](float a, float b) { return formula; }, x0, x1);     \
  }
#define TERNARY_KERNEL(name, X, Y, N, formula)                              \
  KERNEL(name, const X *x0, const X *x1, const X *x2, Y *y, int64_t count) { \
    map<N>(y, count, [](float a, float b, float c) { return formula; }, x0, x1, x2); \
  }
#define UNARY_AMAX_KERNEL(name, X, Y, N, formula)                                  \
  KERNEL(name, const X *x, Y *y, int64_t count, float *amax) {                     \
    using T = Y;                                                                   \
    map_amax<N>(y, amax, count, [](float a) { return formula; }, x);               \
  }
#define BINARY_AMAX_KERNEL(name, X, Y, N, formula)                                 \
  KERNEL(name, const X *x0, const X *x1, Y *y, int64_t count, float *amax) {       \
    using T = Y;                                                                   \
    map_amax<N>(y, amax, count, [](float a, float b) { return formula; }, x0, x1); \
  }
#define FOR_ELEMENTS(kernel, name, formula)                                 \
  kernel(name##_float32, float32, float32, kPack<float32>, formula)         \
  kernel(name##_float16, float16, float16, kPack<float16>, formula)         \
  kernel(name##_bfloat16, bfloat16, bfloat16, kPack<bfloat16>, formula)     \
  kernel(name##_scalar_float32, float32, float32, 1, formula)               \
  kernel(name##_scalar_float16, float16, float16, 1, formula)               \
  kernel(name##_scalar_bfloat16, bfloat16, bfloat16, 1, formula)
#define UNARY(name, formula) FOR_ELEMENTS(UNARY_KERNEL, name, formula)
#define BINARY(name, formula) FOR_ELEMENTS(BINARY_KERNEL, name, formula)
#define TERNARY(name, formula) FOR_ELEMENTS(TERNARY_KERNEL, name, formula)

BINARY(add, a + b)
BINARY(subtract, a - b)
BINARY(multiply, a * b)
UNARY(sigmoid, 1 / (1 + expf(-a)))
BINARY(sigmoid_backward, a * (b * (1 - b)))
UNARY(erf, erff(a))
BINARY(erf_backward, a * (1.1283792f * expf(-b * b)))
BINARY(squared_error, (a - b) * (a - b))
TERNARY(squared_error_backward, a * (2 * (b - c)))
BINARY(binary_cross_entropy, (a >= 0 ? a * (1 - b) : -a * b) + log1pf(expf(-fabsf(a))))
TERNARY(binary_cross_entropy_backward, a * (1 / (1 + expf(-b)) - c))
UNARY(reciprocal, 1 / a)
UNARY(tanh, tanhf(a))
BINARY(tanh_backward, a * (1 - b * b))
UNARY(gelu_erf, gelu_erf_of<T>(a))
BINARY(gelu_erf_backward, a * gelu_erf_slope<T>(b))
FOR_ELEMENTS(UNARY_AMAX_KERNEL, gelu_erf_amax, gelu_erf_of<T>(a))
FOR_ELEMENTS(BINARY_AMAX_KERNEL, gelu_erf_backward_amax, a * gelu_erf_slope<T>(b))

/* ---- cast: packs as long as the wider type allows, so that both sides move in whole instructions without gaps ---- */

template <class X, class Y>
constexpr int kCastPack = 16 / (sizeof(X) > sizeof(Y) ? sizeof(X) : sizeof(Y));

#define CAST(X, Y)                                         \
  UNARY_KERNEL(cast_##X##_##Y, X, Y, (kCastPack<X, Y>), a) \
  UNARY_KERNEL(cast_scalar_##X##_##Y, X, Y, 1, a)

CAST(float32, float32)
CAST(float32, float16)
CAST(float32, bfloat16)
CAST(float16, float32)
CAST(float16, float16)
CAST(float16, bfloat16)
CAST(bfloat16, float32)
CAST(bfloat16, float16)
CAST(bfloat16, bfloat16)

/* ---- accumulate: beta 0 does not read y ---- */

template <int N, class T>
__device__ inline void accumulate(const T *x, float *y, float beta, int64_t count) {
  const float *sum = y;
  if (beta == 0) map<N>(y, count, [](float added) { return added; }, x);
  else map<N>(y, count, [beta](float old, float added) { return fmaf(beta, old, added); }, sum, x);
}

#define ACCUMULATE(name, T) \
  KERNEL(name, const T *x, float *y, float beta, int64_t count) { accumulate<4>(x, y, beta, count); }
#define ACCUMULATE_SCALAR(name, T) \
  KERNEL(name, const T *x, float *y, float beta, int64_t count) { accumulate<1>(x, y, beta, count); }

FOR_FLOATS(ACCUMULATE, accumulate)
FOR_FLOATS(ACCUMULATE_SCALAR, accumulate_scalar)

/*
 * How well FP8 numbers stand for the ones that they were made of. A block takes rows in turn and writes one row of partial
 * results; quantization_statistics_merge takes those in their order.
 */
#include <common.cuh>

constexpr int kResults = 6; /* largest |x|, underflows, overflows, squared errors, smallest scale, largest scale */
constexpr int kAllWarps = kThreads / 32;

__device__ inline bool is_sum(int result) { return result >= 1 && result <= 3; }

/* Two partial results become one. */
__device__ inline float merged(int result, float a, float b) {
  if (is_sum(result)) return a + b;
  return result == 4 ? fminf(a, b) : fmaxf(a, b);
}

__device__ inline float from_e4m3(uint8_t bits) {
  const uint32_t sign = (bits & 0x80u) << 24, magnitude = bits & 0x7fu;
  if (magnitude == 0x7fu) return __uint_as_float(0x7fc00000u);
  /* Below 8 it counts 2^-9; above, exponents begin at 120 of FP32's. */
  const float value =
      magnitude < 8 ? static_cast<float>(magnitude) * 0.001953125f : __uint_as_float((magnitude << 20) + (120u << 23));
  return __uint_as_float(__float_as_uint(value) | sign);
}

__device__ inline float from_e5m2(uint8_t bits) {
  float16 half;
  half.bits = static_cast<uint16_t>(bits << 8);
  return to_float(half);
}

template <class T>
__device__ void quantization_statistics(const T *x, const uint8_t *q, const float *scale_inverse, float *partial,
                                        int64_t rows, int64_t columns, int64_t stride, int scaling, int fp8) {
  __shared__ float of_warp[kResults][kAllWarps];
  const float infinity = __uint_as_float(0x7f800000u), beyond = 1.001f * (fp8 == 7 ? 448.0f : 57344.0f);
  float result[kResults] = {0, 0, 0, 0, infinity, 0};
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    for (int64_t column = threadIdx.x; column < columns; column += kThreads) {
      const int64_t place = scaling == 0   ? 0
                            : scaling == 2 ? column / 128 * stride + row
                                           : row / 128 * stride + column / 128;
      const float s = scale_inverse[place], value = to_float(x[row * columns + column]), magnitude = fabsf(value);
      result[4] = fminf(result[4], 1 / s);
      result[5] = fmaxf(result[5], 1 / s);
      if (!(magnitude >= 0)) continue;
      if (magnitude > beyond * s) result[2] += 1;
      if (magnitude == infinity) continue;
      const uint8_t bits = q[row * columns + column];
      const float stored = fp8 == 7 ? from_e4m3(bits) : from_e5m2(bits), error = value - stored * s;
      result[0] = fmaxf(result[0], magnitude);
      if (magnitude > 0 && stored == 0) result[1] += 1;
      if (error * error < infinity) result[3] += error * error;
    }
  }
  for (int i = 0; i < kResults; ++i) {
    for (int distance = 16; distance > 0; distance /= 2)
      result[i] = merged(i, result[i], __shfl_xor_sync(0xffffffffu, result[i], distance));
    if (threadIdx.x % 32 == 0) of_warp[i][threadIdx.x / 32] = result[i];
  }
  __syncthreads();
  if (threadIdx.x >= kResults) return;
  const int mine = threadIdx.x;
  float all = of_warp[mine][0];
  for (int w = 1; w < kAllWarps; ++w) all = merged(mine, all, of_warp[mine][w]);
  partial[blockIdx.x * kResults + mine] = all;
}

#define STATISTICS(name, T)                                                                                      \
  KERNEL(name, const T *x, const uint8_t *q, const float *scale_inverse, float *partial, int64_t rows,           \
         int64_t columns, int64_t stride, int scaling, int fp8) {                                                \
    quantization_statistics<T>(x, q, scale_inverse, partial, rows, columns, stride, scaling, fp8);               \
  }

FOR_FLOATS(STATISTICS, quantization_statistics)

KERNEL(quantization_statistics_merge, const float *partial, float *statistics, int64_t blocks, float count) {
  const int mine = threadIdx.x;
  if (mine >= kResults) return;
  float all = 0;
  for (int64_t b = 0; b < blocks; ++b)
    all = b == 0 ? partial[mine] : merged(mine, all, partial[b * kResults + mine]);
  statistics[mine] = is_sum(mine) && blocks > 0 ? all / count : all;
}

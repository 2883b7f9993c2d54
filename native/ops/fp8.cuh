/*
 * FP8 numbers. E4M3: four bits of exponent, three of mantissa, largest 448; what is larger becomes 448, NaN stays. E5M2: the upper
 * byte of an FP16 number, largest 57344. Rounds to nearest even.
 */
#pragma once

#include <common.cuh>

__device__ inline uint32_t e4m3(float value) {
  const uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
  if (magnitude > 0x7f800000u) return 0x7f;
  const uint32_t bounded = magnitude < 0x43e00000u ? magnitude : 0x43e00000u;
  /* Below 2^-6 numbers are multiples of 2^-9, the last bit of a float near 2^14: the addition rounds. */
  if (bounded < 0x3c800000u) return sign | (__float_as_uint(__uint_as_float(bounded) + 16384.0f) - 0x46800000u);
  return sign | ((bounded + 0x7ffffu + (bounded >> 20 & 1) - (120u << 23)) >> 20);
}

/* As TE casts: what is larger than 57344, infinity too, becomes 57344. */
__device__ inline uint32_t e5m2(float value) {
  const uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7fffffffu, sign = bits >> 24 & 0x80u;
  if (magnitude > 0x7f800000u) return 0x7f;
  const uint32_t bounded = magnitude < 0x47600000u ? magnitude : 0x47600000u;
  /* Below 2^-14 numbers are multiples of 2^-16, the last bit of a float near 2^7. */
  if (bounded < 0x38800000u) return sign | (__float_as_uint(__uint_as_float(bounded) + 128.0f) - 0x43000000u);
  return sign | ((bounded + 0xfffffu + (bounded >> 21 & 1) - (112u << 23)) >> 21);
}

/* Four neighbours, the first in the lowest byte. */
__device__ inline uint32_t e4m3_of(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t low, high;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return low | static_cast<uint32_t>(high) << 16;
#else
  return e4m3(a) | e4m3(b) << 8 | e4m3(c) << 16 | e4m3(d) << 24;
#endif
}

__device__ inline uint32_t e5m2_of(float a, float b, float c, float d) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint16_t low, high;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(low) : "f"(b), "f"(a));
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(high) : "f"(d), "f"(c));
  return low | static_cast<uint32_t>(high) << 16;
#else
  return e5m2(a) | e5m2(b) << 8 | e5m2(c) << 16 | e5m2(d) << 24;
#endif
}

__device__ inline float from_e4m3(uint32_t byte) {
  const uint32_t sign = (byte & 0x80u) << 24, magnitude = byte & 0x7fu;
  if (magnitude == 0x7fu) return __uint_as_float(0x7fc00000u);
  /* Below 8 it counts 2^-9; above, exponents begin at 120 of FP32's. */
  const float value =
      magnitude < 8 ? static_cast<float>(magnitude) * 0.001953125f : __uint_as_float((magnitude << 20) + (120u << 23));
  return __uint_as_float(__float_as_uint(value) | sign);
}

__device__ inline float from_e5m2(uint32_t byte) {
  float16 half;
  half.bits = static_cast<uint16_t>(byte << 8);
  return to_float(half);
}

/* The two E4M3 numbers of 16 bits, the first in the lower byte. */
__device__ inline void two_from_e4m3(uint32_t bytes, float &first, float &second) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 890
  uint32_t halves;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(halves) : "h"(static_cast<uint16_t>(bytes)));
  two_floats(halves, float16{}, first, second);
#else
  first = from_e4m3(bytes & 0xffu);
  second = from_e4m3(bytes >> 8 & 0xffu);
#endif
}

__device__ inline void two_from_e5m2(uint32_t bytes, float &first, float &second) {
  two_floats((bytes & 0xffu) << 8 | (bytes & 0xff00u) << 16, float16{}, first, second);
}

/* N neighbours of TE's type fp8, 7 (E4M3) or 8 (E5M2), as they lie in memory. */
template <int N>
__device__ inline void from_fp8(const Pack<uint32_t, N / 4> &bytes, int fp8, float (&value)[N]) {
#pragma unroll
  for (int i = 0; i < N; i += 2) {
    const uint32_t two = bytes.value[i / 4] >> (i % 4 * 8);
    if (fp8 == 7) {
      two_from_e4m3(two, value[i], value[i + 1]);
    } else {
      two_from_e5m2(two, value[i], value[i + 1]);
    }
  }
}

__device__ inline float from_fp8(uint32_t byte, int fp8) { return fp8 == 7 ? from_e4m3(byte) : from_e5m2(byte); }

/* Where the scale lies of row `row` and columns 128 `block` to 128 `block` + 127. scaling 2: of 128 neighbours in a row; 3: of 128 x 128. */
__device__ inline int64_t place_of_scale(int scaling, int64_t row, int64_t block, int64_t stride) {
  return scaling == 2 ? block * stride + row : row / 128 * stride + block;
}

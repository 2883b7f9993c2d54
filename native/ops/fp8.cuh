/* FP8 E4M3: four bits of exponent, three of mantissa, largest 448. To nearest even; what is larger becomes 448, NaN stays. */
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

/*
 * FP8: E4M3 (one sign bit, four of exponent, three of mantissa; largest 448, no infinity, NaN 0x7f and 0xff) and E5M2
 * (largest 57344, infinity, three NaNs a sign).
 *
 * From float as cvt.rn.satfinite does on the GPU: to the nearest, ties to even; beyond the largest, infinity included,
 * becomes the largest; NaN becomes 0x7f whatever its sign. No branches, so that loops vectorize.
 */
#ifndef CHAGRES_FP8_H
#define CHAGRES_FP8_H

#include <limits>

#include "runtime/reference.h"

namespace chagres::reference {

constexpr float kE4m3Max = 448.0f;
constexpr float kE5m2Max = 57344.0f;

inline bool is_fp8(NVTEDType dtype) { return dtype == kNVTEFloat8E4M3 || dtype == kNVTEFloat8E5M2; }

/* The largest number of an FP8 dtype. */
inline float fp8_max(NVTEDType dtype) { return dtype == kNVTEFloat8E4M3 ? kE4m3Max : kE5m2Max; }

/* `drop` low bits of a float's mantissa go. Exponents: a float's field less `rebias` is the FP8 one's; below the least
 * normal number, adding `aligner` puts the last bit kept where a float's last bit is, so that the addition rounds. */
inline uint8_t float_to_fp8(float value, uint32_t largest, uint32_t least_normal, int drop, uint32_t rebias,
                            float aligner) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t bounded = magnitude < largest ? magnitude : largest;
  const uint32_t half = (1u << (drop - 1)) - 1u;
  const uint32_t normal = (bounded + half + ((bounded >> drop) & 1u) - (rebias << 23)) >> drop;
  const uint32_t small = bit_cast<uint32_t>(bit_cast<float>(bounded) + aligner) - bit_cast<uint32_t>(aligner);
  const uint32_t code = (bounded < least_normal ? small : normal) | ((bits >> 24) & 0x80u);
  return static_cast<uint8_t>(magnitude > 0x7f800000u ? 0x7fu : code);
}

inline uint8_t float_to_e4m3(float value) {
  return float_to_fp8(value, 0x43e00000u, 0x3c800000u, 20, 120, 16384.0f);
}

inline uint8_t float_to_e5m2(float value) {
  return float_to_fp8(value, 0x47600000u, 0x38800000u, 21, 112, 128.0f);
}

inline float e4m3_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24, magnitude = code & 0x7fu;
  const uint32_t small = bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-9f);
  const uint32_t normal = (magnitude << 20) + (120u << 23);
  const uint32_t bits = magnitude < 8 ? small : normal;
  return bit_cast<float>(sign | (magnitude == 0x7fu ? 0x7fc00000u : bits));
}

inline float e5m2_to_float(uint8_t code) {
  const uint32_t sign = static_cast<uint32_t>(code & 0x80u) << 24, magnitude = code & 0x7fu;
  const uint32_t small = bit_cast<uint32_t>(static_cast<float>(static_cast<int32_t>(magnitude)) * 0x1p-16f);
  const uint32_t normal = (magnitude << 21) + (112u << 23);
  const uint32_t beyond = magnitude == 0x7cu ? 0x7f800000u : 0x7fc00000u;
  const uint32_t bits = magnitude < 4 ? small : normal;
  return bit_cast<float>(sign | (magnitude >= 0x7cu ? beyond : bits));
}

}  // namespace chagres::reference

#endif /* CHAGRES_FP8_H */

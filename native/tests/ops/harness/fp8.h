/* FP8 in double precision. */
#ifndef CHAGRES_TESTS_OPS_FP8_H
#define CHAGRES_TESTS_OPS_FP8_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>

namespace chagres::tests {

/* The number of an FP8 byte with `mantissa` bits of mantissa. */
inline double fp8_value(uint8_t bits, int mantissa) {
  const int exponent = (bits & 0x7f) >> mantissa, bias = mantissa == 3 ? 7 : 15;
  const double fraction = static_cast<double>(bits & ((1 << mantissa) - 1)) / (1 << mantissa);
  const double value = exponent == 0 ? std::ldexp(fraction, 1 - bias) : std::ldexp(1 + fraction, exponent - bias);
  if (mantissa == 3 ? (bits & 0x7f) == 0x7f : exponent == 31 && fraction > 0)
    return std::numeric_limits<double>::quiet_NaN();
  if (mantissa == 2 && exponent == 31) return std::copysign(std::numeric_limits<double>::infinity(), bits & 0x80 ? -1 : 1);
  return bits & 0x80 ? -value : value;
}

/* The nearest number of that format, the even one of two; as TE casts, beyond the largest the largest. */
inline double fp8_nearest(double value, int mantissa) {
  if (std::isnan(value)) return value;
  const double largest = mantissa == 3 ? 448 : 57344, magnitude = std::fmin(std::fabs(value), largest);
  const int least = mantissa == 3 ? -6 : -14;
  const int unit = std::max(magnitude == 0 ? least : std::ilogb(magnitude), least) - mantissa;
  return std::copysign(std::ldexp(std::nearbyint(std::ldexp(magnitude, -unit)), unit), value);
}

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_FP8_H */

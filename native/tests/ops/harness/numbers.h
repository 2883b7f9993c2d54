/* Number formats in double precision, written without a look at the libraries under test, and random numbers. */
#ifndef CHAGRES_TESTS_OPS_NUMBERS_H
#define CHAGRES_TESTS_OPS_NUMBERS_H

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace chagres::tests {

/* A binary floating-point format: significant bits, exponents of the smallest and largest normal number. */
struct Format {
  int dtype;
  const char *name;
  int64_t size;
  int precision;
  int least_exponent;
  int most_exponent;

  double roundoff() const { return std::ldexp(1.0, -precision); }
  double smallest() const { return std::ldexp(1.0, least_exponent - precision + 1); }
};

constexpr Format kFormats[] = {
    {4, "float32", 4, 24, -126, 127}, {5, "float16", 2, 11, -14, 15}, {6, "bfloat16", 2, 8, -126, 127}};

inline const Format &format_of(int dtype) { return kFormats[dtype - 4]; }

/* The nearest number of the format, ties to even. nearbyint rounds so in the default mode. */
inline double round_to(const Format &format, double value) {
  if (!std::isfinite(value) || value == 0) return value;
  const int exponent = std::max(std::ilogb(value), format.least_exponent);
  const int unit = exponent - format.precision + 1;
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -unit)), unit);
  const double largest = std::ldexp(2 - std::ldexp(1.0, 1 - format.precision), format.most_exponent);
  return std::fabs(rounded) > largest ? std::copysign(std::numeric_limits<double>::infinity(), value) : rounded;
}

/* Bits of a number that the format has. */
inline uint32_t encode(const Format &format, double value) {
  const int fraction = format.precision - 1;
  const uint32_t exponent_mask = format.dtype == 5 ? 0x1f : 0xff;
  const uint32_t sign = std::signbit(value) ? 1u << (8 * format.size - 1) : 0;
  if (std::isnan(value)) return exponent_mask << fraction | 1u << (fraction - 1);
  if (std::isinf(value)) return sign | exponent_mask << fraction;
  const double magnitude = std::fabs(value);
  if (magnitude < std::ldexp(1.0, format.least_exponent))
    return sign | static_cast<uint32_t>(std::ldexp(magnitude, fraction - format.least_exponent));
  const int exponent = std::ilogb(magnitude);
  const auto mantissa = static_cast<uint32_t>(std::ldexp(magnitude, fraction - exponent)) & ((1u << fraction) - 1);
  return sign | static_cast<uint32_t>(exponent - format.least_exponent + 1) << fraction | mantissa;
}

inline double decode(const Format &format, uint32_t bits) {
  const int fraction = format.precision - 1;
  const uint32_t exponent_mask = format.dtype == 5 ? 0x1f : 0xff;
  const double sign = bits >> (8 * format.size - 1) & 1 ? -1 : 1;
  const uint32_t exponent = bits >> fraction & exponent_mask, mantissa = bits & ((1u << fraction) - 1);
  if (exponent == exponent_mask)
    return mantissa != 0 ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(mantissa, format.least_exponent - fraction);
  return sign *
         std::ldexp(mantissa | 1u << fraction, static_cast<int>(exponent) + format.least_exponent - 1 - fraction);
}

using Bytes = std::vector<unsigned char>;
using Doubles = std::vector<double>;

inline Bytes to_bytes(const Format &format, const Doubles &values) {
  Bytes bytes(values.size() * static_cast<size_t>(format.size));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t bits = encode(format, values[i]); /* x86 and ARM: the low bytes come first */
    std::memcpy(bytes.data() + i * static_cast<size_t>(format.size), &bits, static_cast<size_t>(format.size));
  }
  return bytes;
}

inline Doubles to_doubles(const Format &format, const Bytes &bytes) {
  Doubles values(bytes.size() / static_cast<size_t>(format.size));
  for (size_t i = 0; i < values.size(); ++i) {
    uint32_t bits = 0;
    std::memcpy(&bits, bytes.data() + i * static_cast<size_t>(format.size), static_cast<size_t>(format.size));
    values[i] = decode(format, bits);
  }
  return values;
}

template <class T>
Bytes raw_bytes(const std::vector<T> &values) {
  Bytes bytes(values.size() * sizeof(T));
  if (!bytes.empty()) std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

template <class T>
std::vector<T> from_raw(const Bytes &bytes) {
  std::vector<T> values(bytes.size() / sizeof(T));
  if (!bytes.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  /* Normal numbers that the format has. */
  Doubles normal(const Format &format, int64_t count, double deviation = 1) {
    std::normal_distribution<double> distribution(0, deviation);
    Doubles values(static_cast<size_t>(count));
    for (double &value : values) value = round_to(format, distribution(engine_));
    return values;
  }

  int64_t below(int64_t bound) { return static_cast<int64_t>(engine_() % static_cast<uint64_t>(bound)); }

 private:
  std::mt19937_64 engine_;
};

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_NUMBERS_H */

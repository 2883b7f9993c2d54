/* Number formats: every 16-bit pattern, and rounding against double arithmetic. */
#include "check.h"

using namespace chagres::reference;

namespace {

/* The value of a binary16 or bfloat16 pattern, computed in double. */
double decode(uint16_t bits, int exponent_bits) {
  const int mantissa_bits = 15 - exponent_bits;
  const int bias = (1 << (exponent_bits - 1)) - 1;
  const int exponent = (bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
  const int mantissa = bits & ((1 << mantissa_bits) - 1);
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == (1 << exponent_bits) - 1) {
    return mantissa ? std::numeric_limits<double>::quiet_NaN() : sign * std::numeric_limits<double>::infinity();
  }
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - mantissa_bits);
  return sign * std::ldexp((1 << mantissa_bits) + mantissa, exponent - bias - mantissa_bits);
}

/* Round to nearest even by trying the neighbours; independent of bit tricks. */
uint16_t encode(double value, int exponent_bits) {
  if (std::isnan(value)) return 0x7fff;
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  const double magnitude = std::fabs(value);
  const uint16_t infinity = exponent_bits == 5 ? 0x7c00 : 0x7f80;
  uint16_t low = 0, high = infinity;
  while (high - low > 1) {
    const auto middle = static_cast<uint16_t>((low + high) / 2);
    (decode(middle, exponent_bits) <= magnitude ? low : high) = middle;
  }
  if (std::isinf(magnitude)) return sign | infinity;
  const double below = decode(low, exponent_bits);
  /* Infinity stands where the next finite number would be. */
  const double above = high == infinity ? 2 * below - decode(static_cast<uint16_t>(low - 1), exponent_bits)
                                        : decode(high, exponent_bits);
  const double half = below + (above - below) / 2;
  const bool up = magnitude > half || (magnitude == half && (low & 1));
  return static_cast<uint16_t>(sign | (up ? high : low));
}

void round_trip(NVTEDType dtype, int exponent_bits) {
  std::vector<uint16_t> patterns(65536), back(65536);
  for (int i = 0; i < 65536; ++i) patterns[i] = static_cast<uint16_t>(i);
  std::vector<float> values(65536);
  to_float(values.data(), patterns.data(), dtype, 65536);
  from_float(back.data(), values.data(), dtype, 65536);
  for (int i = 0; i < 65536; ++i) {
    const double expected = decode(patterns[i], exponent_bits);
    if (std::isnan(expected)) {
      EXPECT(std::isnan(values[i]) && std::isnan(load(patterns.data(), i, dtype)));
      EXPECT_EQUAL(back[i], uint16_t{0x7fff});
    } else {
      EXPECT_EQUAL(static_cast<double>(values[i]), expected);
      EXPECT_EQUAL(static_cast<double>(load(patterns.data(), i, dtype)), expected);
      EXPECT_EQUAL(back[i], patterns[i]);
    }
  }
}

std::vector<float> awkward_floats() {
  std::vector<float> values = {0.0f, -0.0f, 1.0f, 65504.0f, 65519.99f, 65520.0f, -65520.0f, 0x1p-24f, 0x1p-25f, 0x1.8p-24f,
                               0x1.8p-25f, 0x1.000002p-25f, 0x1p-14f, 0x1.ffep-15f, 0x1.fffp-15f, 3.4e38f, -3.4e38f, 1e-45f,
                               INFINITY, -INFINITY, NAN, -NAN, 0x1.fep127f, 0x1.ffp127f, 1.00390625f, 1.01171875f};
  for (int i = 0; i < 100000; ++i) values.push_back(bit_cast<float>(static_cast<uint32_t>(check::random()())));
  std::normal_distribution<float> normal;
  for (int i = 0; i < 100000; ++i) values.push_back(normal(check::random()));
  return values;
}

void rounding_is_exact(NVTEDType dtype, int exponent_bits) {
  const std::vector<float> values = awkward_floats();
  std::vector<uint16_t> bulk(values.size());
  from_float(bulk.data(), values.data(), dtype, static_cast<int64_t>(values.size()));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t expected = encode(values[i], exponent_bits);
    uint16_t one;
    store(&one, 0, dtype, values[i]);
    EXPECT_EQUAL(one, expected);
    EXPECT_EQUAL(bulk[i], expected);
  }
}

}  // namespace

TEST(bf16_round_trip) { round_trip(kNVTEBFloat16, 8); }
TEST(fp16_round_trip) { round_trip(kNVTEFloat16, 5); }
TEST(bf16_rounds_to_nearest_even) { rounding_is_exact(kNVTEBFloat16, 8); }
TEST(fp16_rounds_to_nearest_even) { rounding_is_exact(kNVTEFloat16, 5); }

TEST(runs_of_every_short_length) {
  for (const NVTEDType dtype : {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16}) {
    for (int64_t count = 0; count < 40; ++count) {
      std::vector<float> values(count), back(count);
      for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) - 7;
      std::vector<uint8_t> stored(count * element_size(dtype));
      from_float(stored.data(), values.data(), dtype, count);
      to_float(back.data(), stored.data(), dtype, count);
      EXPECT(back == values);
    }
  }
}

TEST(other_dtypes_are_named) {
  float value = 0;
  EXPECT_THROWS(to_float(&value, &value, kNVTEFloat8E8M0, 1), "Float8E8M0", "BFloat16");
  EXPECT_THROWS(from_float(&value, &value, kNVTEInt32, 1), "Int32");
}

/* Known answers of Random123's kat_vectors for philox4x32-10. */
TEST(philox_known_answers) {
  const Philox4 zero = philox(0, 0, 0);
  EXPECT_EQUAL(zero.word[0], 0x6627e8d5u);
  EXPECT_EQUAL(zero.word[1], 0xe169c58du);
  EXPECT_EQUAL(zero.word[2], 0xbc57ac4cu);
  EXPECT_EQUAL(zero.word[3], 0x9b00dbd8u);
  const Philox4 ones = philox(~uint64_t{0}, ~uint64_t{0}, ~uint64_t{0});
  EXPECT_EQUAL(ones.word[0], 0x408f276du);
  EXPECT_EQUAL(ones.word[1], 0x41c83b0eu);
  EXPECT_EQUAL(ones.word[2], 0xa20bc7c6u);
  EXPECT_EQUAL(ones.word[3], 0x6d5451fdu);
  const Philox4 pi = philox(0x299f31d0a4093822u, 0x0370734413198a2eu, 0x85a308d3243f6a88u);
  EXPECT_EQUAL(pi.word[0], 0xd16cfe09u);
  EXPECT_EQUAL(pi.word[1], 0x94fdccebu);
  EXPECT_EQUAL(pi.word[2], 0x5001e420u);
  EXPECT_EQUAL(pi.word[3], 0x24126ea1u);
}

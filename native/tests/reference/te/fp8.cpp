/* FP8 numbers: every code, every BF16 value, ties, edges; against double arithmetic. */
#include "runtime/fp8.h"

#include "check.h"

using namespace chagres::reference;

namespace {

struct Format {
  NVTEDType dtype;
  int mantissa_bits, bias;
  int largest; /* the code of the largest number */
};

constexpr Format kFormats[] = {{kNVTEFloat8E4M3, 3, 7, 0x7e}, {kNVTEFloat8E5M2, 2, 15, 0x7b}};

double decode(const Format &format, int code) {
  const int magnitude = code & 0x7f;
  const double sign = code & 0x80 ? -1 : 1;
  if (format.dtype == kNVTEFloat8E5M2 && magnitude == 0x7c) return sign * std::numeric_limits<double>::infinity();
  if (magnitude > format.largest) return std::numeric_limits<double>::quiet_NaN();
  const int exponent = magnitude >> format.mantissa_bits;
  const int mantissa = magnitude & ((1 << format.mantissa_bits) - 1);
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - format.bias - format.mantissa_bits);
  return sign * std::ldexp((1 << format.mantissa_bits) + mantissa, exponent - format.bias - format.mantissa_bits);
}

/* The nearest code by looking at all of them; of two as near the even one. */
int encode(const Format &format, double value) {
  if (std::isnan(value)) return 0x7f;
  const int sign = std::signbit(value) ? 0x80 : 0;
  const double magnitude = std::fabs(value);
  if (magnitude >= decode(format, format.largest)) return sign | format.largest;
  int best = 0;
  for (int code = 1; code <= format.largest; ++code) {
    const double error = std::fabs(decode(format, code) - magnitude), least = std::fabs(decode(format, best) - magnitude);
    if (error < least || (error == least && code % 2 == 0)) best = code;
  }
  return sign | best;
}

int stored(const Format &format, float value) {
  uint8_t code;
  store(&code, 0, format.dtype, value);
  return code;
}

}  // namespace

TEST(every_code_is_its_number_and_comes_back) {
  for (const Format &format : kFormats) {
    std::vector<uint8_t> codes(256), back(256);
    std::vector<float> values(256);
    for (int code = 0; code < 256; ++code) codes[code] = static_cast<uint8_t>(code);
    to_float(values.data(), codes.data(), format.dtype, 256);
    from_float(back.data(), values.data(), format.dtype, 256);
    for (int code = 0; code < 256; ++code) {
      const double expected = decode(format, code);
      EXPECT(check::close(values[code], expected, 0, 0));
      EXPECT(check::close(load(codes.data(), code, format.dtype), expected, 0, 0));
      if (std::isnan(expected)) {
        EXPECT_EQUAL(static_cast<int>(back[code]), 0x7f);
      } else if (std::isinf(expected)) {
        EXPECT_EQUAL(static_cast<int>(back[code]), (code & 0x80) | format.largest);
      } else {
        EXPECT_EQUAL(static_cast<int>(back[code]), code);
        EXPECT_EQUAL(std::signbit(values[code]), code >= 128);
      }
    }
  }
}

TEST(every_bf16_value) {
  for (const Format &format : kFormats) {
    std::vector<float> values(65536);
    std::vector<uint8_t> codes(65536);
    for (int bits = 0; bits < 65536; ++bits) values[bits] = bf16_to_float(static_cast<uint16_t>(bits));
    from_float(codes.data(), values.data(), format.dtype, 65536);
    for (int bits = 0; bits < 65536; ++bits) {
      EXPECT_EQUAL(static_cast<int>(codes[bits]), encode(format, values[bits]));
      EXPECT_EQUAL(stored(format, values[bits]), encode(format, values[bits]));
    }
  }
}

TEST(ties_go_to_even_and_their_neighbours_do_not) {
  for (const Format &format : kFormats) {
    for (int code = 0; code < format.largest; ++code) {
      const double half = (decode(format, code) + decode(format, code + 1)) / 2;
      const auto tie = static_cast<float>(half);
      EXPECT_EQUAL(static_cast<double>(tie), half);
      for (const float sign : {1.0f, -1.0f}) {
        const int bit = sign < 0 ? 0x80 : 0;
        EXPECT_EQUAL(stored(format, sign * tie), bit | (code % 2 == 0 ? code : code + 1));
        EXPECT_EQUAL(stored(format, sign * std::nextafter(tie, 0.0f)), bit | code);
        EXPECT_EQUAL(stored(format, sign * std::nextafter(tie, 1e6f)), bit | (code + 1));
      }
    }
  }
}

TEST(what_is_too_large_becomes_the_largest) {
  for (const Format &format : kFormats) {
    const auto largest = static_cast<float>(decode(format, format.largest));
    EXPECT_EQUAL(fp8_max(format.dtype), largest);
    for (const float value : {std::nextafter(largest, 1e9f), 1.2f * largest, std::numeric_limits<float>::max(), INFINITY}) {
      EXPECT_EQUAL(stored(format, value), format.largest);
      EXPECT_EQUAL(stored(format, -value), 0x80 | format.largest);
    }
    EXPECT_EQUAL(stored(format, NAN), 0x7f);
    EXPECT_EQUAL(stored(format, -NAN), 0x7f);
    EXPECT_EQUAL(stored(format, -0.0f), 0x80);
    EXPECT_EQUAL(stored(format, std::numeric_limits<float>::denorm_min()), 0);
  }
}

TEST(other_dtypes_are_refused) {
  uint8_t byte = 0;
  EXPECT_THROWS(load(&byte, 0, kNVTEFloat8E8M0), "Float8E4M3", "Float8E8M0");
  EXPECT_THROWS(store(&byte, 0, kNVTEFloat4E2M1, 1), "Float8E4M3", "Float4E2M1");
}

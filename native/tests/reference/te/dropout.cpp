/* Dropout: the mask's statistics and layout, values, gradients, error texts. */
#include "check.h"

using namespace chagres::reference;
using check::Array;

namespace {

bool kept(const Array &mask, size_t i) { return (mask.as<uint8_t>()[i / 8] >> (i % 8)) & 1; }

struct State {
  State(int64_t seed, int64_t offset) : array({2}, kNVTEInt64) {
    array.as<int64_t>()[0] = seed;
    array.as<int64_t>()[1] = offset;
  }
  Array array;
};

}  // namespace

TEST(kept_elements_are_scaled_and_others_zero) {
  for (const NVTEDType dtype : {kNVTEFloat16, kNVTEBFloat16}) {
    for (const size_t count : {16, 48, 8192 + 16, 100000}) {
      for (const float probability : {0.0f, 0.1f, 0.5f, 0.9f}) {
        Array x({count}, dtype), y({count}, dtype), mask({count / 8}, kNVTEByte), dy({count}, dtype), dx({count}, dtype);
        State state(42, 4);
        x.normal();
        dy.normal();
        nvte_dropout_fwd(x, y, mask, state.array, probability, nullptr);
        nvte_dropout_bwd(dy, mask, dx, probability, nullptr);
        size_t survivors = 0;
        for (size_t i = 0; i < count; ++i) {
          const double scale = kept(mask, i) ? 1 / (1 - static_cast<double>(probability)) : 0;
          survivors += kept(mask, i);
          EXPECT(check::close(y.get(i), x.get(i) * scale, check::rounding(dtype), 1e-7));
          EXPECT(check::close(dx.get(i), dy.get(i) * scale, check::rounding(dtype), 1e-7));
        }
        /* The threshold is floor(256 p) / 256; five standard deviations. */
        const double expected = 1 - std::floor(probability * 256) / 256;
        const double deviation = std::sqrt(expected * (1 - expected) * static_cast<double>(count));
        EXPECT(std::fabs(static_cast<double>(survivors) - expected * static_cast<double>(count)) <= 5 * deviation);
      }
    }
  }
}

/* FP8 stands for its number times the inverse scale. */
TEST(fp8_is_read_with_its_inverse_scale) {
  for (const NVTEDType from : {kNVTEFloat8E4M3, kNVTEFloat8E5M2}) {
    for (const NVTEDType to : {kNVTEFloat16, kNVTEBFloat16}) {
      Array x({4096}, from), y({4096}, to), mask({512}, kNVTEByte), inverse({1}, kNVTEFloat32);
      inverse.set(0, 0.375);
      x.record(kNVTERowwiseScaleInv, inverse.data(), kNVTEFloat32, {1});
      x.normal(4);
      State state(9, 4);
      nvte_dropout_fwd(x, y, mask, state.array, 0.25f, nullptr);
      for (size_t i = 0; i < y.count(); ++i) {
        const double expected = kept(mask, i) ? x.get(i) * 0.375 / 0.75 : 0;
        EXPECT(check::close(y.get(i), expected, check::rounding(to), 1e-7));
      }
    }
  }
}

/* Element by element: byte and word of Philox as the documentation of dropout.cpp says, derived here from the bits. */
TEST(mask_bits_come_from_philox) {
  Array x({64}, kNVTEBFloat16), y({64}, kNVTEBFloat16), mask({8}, kNVTEByte);
  x.fill(1);
  for (const int64_t offset : {0, 4, 5, 6, 7, 1001}) {
    State state(0x123456789abcdef0, offset);
    nvte_dropout_fwd(x, y, mask, state.array, 0.3f, nullptr);
    for (size_t chunk = 0; chunk < 4; ++chunk) {
      uint32_t stream[8];
      for (uint64_t block = 0; block < 2; ++block) {
        const Philox4 words = philox(0x123456789abcdef0, chunk, static_cast<uint64_t>(offset) / 4 + block);
        std::memcpy(stream + 4 * block, words.word, sizeof(words.word));
      }
      /* Most significant bit of byte b of word w, two positions lower a word, then the high half folded by 17. */
      uint32_t dropped = 0;
      for (int w = 0; w < 4; ++w) {
        uint32_t most_significant = 0;
        for (int b = 0; b < 4; ++b) {
          if (((stream[w + offset % 4] >> (8 * b)) & 0xff) < 76) most_significant |= 0x80u << (8 * b);
        }
        dropped = (dropped >> 2) | most_significant;
      }
      dropped |= dropped >> 17;
      const uint16_t expected = static_cast<uint16_t>(~dropped);
      EXPECT_EQUAL(mask.as<uint16_t>()[chunk], expected);
    }
  }
}

TEST(seed_and_offset_matter) {
  Array x({160}, kNVTEBFloat16), y({160}, kNVTEBFloat16), first({20}, kNVTEByte), again({20}, kNVTEByte), other({20}, kNVTEByte);
  x.fill(1);
  nvte_dropout_fwd(x, y, first, State(1, 8).array, 0.5f, nullptr);
  nvte_dropout_fwd(x, y, again, State(1, 8).array, 0.5f, nullptr);
  EXPECT(first.values() == again.values());
  nvte_dropout_fwd(x, y, other, State(1, 12).array, 0.5f, nullptr);
  EXPECT(first.values() != other.values());
  nvte_dropout_fwd(x, y, other, State(2, 8).array, 0.5f, nullptr);
  EXPECT(first.values() != other.values());
}

TEST(refusals) {
  Array x({32}, kNVTEBFloat16), y({32}, kNVTEBFloat16), mask({4}, kNVTEByte), floats({32}, kNVTEFloat32), odd({24}, kNVTEBFloat16),
      odd_out({24}, kNVTEBFloat16), odd_mask({3}, kNVTEByte), other({32}, kNVTEFloat16), three({3}, kNVTEInt64);
  State state(1, 0);
  EXPECT_THROWS(nvte_dropout_fwd(floats, y, mask, state.array, 0.5f, nullptr), "nvte_dropout_fwd", "\"input\"", "Float16, BFloat16", "Float32");
  Array unscaled({32}, kNVTEFloat8E4M3);
  EXPECT_THROWS(nvte_dropout_fwd(unscaled, y, mask, state.array, 0.5f, nullptr), "\"input\"", "scale_inv");
  EXPECT_THROWS(nvte_dropout_fwd(x, other, mask, state.array, 0.5f, nullptr), "\"output\"", "Float16");
  EXPECT_THROWS(nvte_dropout_fwd(odd, odd_out, odd_mask, state.array, 0.5f, nullptr), "multiple of 16", "24");
  EXPECT_THROWS(nvte_dropout_fwd(x, y, odd_mask, state.array, 0.5f, nullptr), "\"mask\"", "4 bytes", "(3)");
  EXPECT_THROWS(nvte_dropout_fwd(x, y, mask, three, 0.5f, nullptr), "\"rng_state\"", "2 elements", "3");
  EXPECT_THROWS(nvte_dropout_fwd(x, y, mask, x, 0.5f, nullptr), "\"rng_state\"", "Int64", "BFloat16");
  for (const float probability : {-0.1f, 1.0f, NAN}) {
    EXPECT_THROWS(nvte_dropout_fwd(x, y, mask, state.array, probability, nullptr), "\"dropout_probability\"");
    EXPECT_THROWS(nvte_dropout_bwd(x, mask, y, probability, nullptr), "nvte_dropout_bwd", "\"dropout_probability\"");
  }
  EXPECT_THROWS(nvte_dropout_bwd(x, mask, odd, 0.5f, nullptr), "\"grad_input\"", "32 elements", "24");
}

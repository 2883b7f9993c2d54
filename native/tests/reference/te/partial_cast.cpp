/* Amaxes and casts of a shard of a block scaled matrix. */
#include "fp8_matrix.h"

using namespace chagres::reference;
using check::Array;

namespace {

struct Shape {
  size_t h, w, start, count;
};

const std::vector<Shape> kShapes = {{1, 1, 0, 1}, {128, 128, 0, 128 * 128}, {200, 300, 123, 40000}, {130, 5, 7, 600}, {3, 700, 650, 800}, {3, 3, 4, 0}};

}  // namespace

TEST(amax_of_the_shard_by_blocks) {
  for (const NVTEDType dtype : {kNVTEFloat32, kNVTEBFloat16}) {
    for (const Shape &s : kShapes) {
      const size_t down = (s.h + 127) / 128, across = (s.w + 127) / 128, stride = across + 3;
      Array x({s.count == 0 ? 1 : s.count}, dtype), amax({down * stride}, kNVTEFloat32);
      x.normal();
      if (s.count == 0) x.record(kNVTERowwiseData, x.data(), dtype, {0, 1});
      amax.fill(9);
      nvte_fp8_block_scaling_compute_partial_amax(x, amax, s.h, s.w, stride, 1, s.start, 128, nullptr);
      std::vector<double> expected(down * stride, 9);
      for (size_t i = 0; i < down * across; ++i) expected[i / across * stride + i % across] = 0;
      for (size_t i = 0; i < s.count; ++i) {
        double &cell = expected[(s.start + i) / s.w / 128 * stride + (s.start + i) % s.w / 128];
        cell = std::fmax(cell, std::fabs(x.get(i)));
      }
      EXPECT_CLOSE(amax.values(), expected, 0, 0);
    }
  }
}

TEST(cast_of_the_shard) {
  for (const NVTEDType to : {kNVTEFloat8E4M3, kNVTEFloat8E5M2}) {
    for (const Shape &s : kShapes) {
      if (s.count == 0) continue;
      const size_t down = (s.h + 127) / 128, across = (s.w + 127) / 128;
      Array x({s.count}, kNVTEFloat32), y({s.count}, kNVTEByte), scale({across, down}, kNVTEFloat32);
      x.normal();
      for (size_t i = 0; i < scale.count(); ++i) scale.set(i, 3.0 * static_cast<double>(i + 1));
      nvte_fp8_block_scaling_partial_cast(x, y, scale, s.h, s.w, 1, down, s.start, 128, to, nullptr);
      for (size_t i = 0; i < s.count; ++i) {
        const size_t row = (s.start + i) / s.w / 128, column = (s.start + i) % s.w / 128;
        uint8_t expected;
        store(&expected, 0, to, static_cast<float>(x.get(i)) * static_cast<float>(scale.get(column * down + row)));
        EXPECT_EQUAL(static_cast<int>(y.get(i)), static_cast<int>(expected));
      }
    }
  }
}

TEST(refusals) {
  Array x({10}, kNVTEFloat32), amax({2}, kNVTEFloat32), y({10}, kNVTEByte), short_y({9}, kNVTEByte);
  const auto compute = [&](size_t h, size_t w, size_t stride_h, size_t stride_w, size_t start, size_t block) {
    nvte_fp8_block_scaling_compute_partial_amax(x, amax, h, w, stride_h, stride_w, start, block, nullptr);
  };
  EXPECT_THROWS(compute(4, 4, 1, 1, 0, 64), "nvte_fp8_block_scaling_compute_partial_amax", "block_len = 128", "64");
  EXPECT_THROWS(compute(4, 4, 1, 1, 7, 128), "\"inp\"", "16 elements", "10 from 7");
  EXPECT_THROWS(compute(4, 4, 1, 1, SIZE_MAX, 128), "\"inp\"");
  EXPECT_THROWS(compute(0, 4, 1, 1, 0, 128), "\"h\" and \"w\"", "0 and 4");
  EXPECT_THROWS(compute(SIZE_MAX, SIZE_MAX, 1, 1, 0, 128), "2^60");
  EXPECT_THROWS(compute(200, 4, 2, 1, 0, 128), "\"amax\"", "2 x 1 blocks", "strides 2 and 1", "2 elements");
  EXPECT_THROWS(compute(200, 4, SIZE_MAX, 1, 0, 128), "\"amax\"");
  EXPECT_THROWS(nvte_fp8_block_scaling_partial_cast(x, short_y, amax, 4, 4, 1, 1, 0, 128, kNVTEFloat8E4M3, nullptr), "\"out\"", "10 elements", "got 9");
  EXPECT_THROWS(nvte_fp8_block_scaling_partial_cast(x, y, amax, 4, 4, 1, 1, 0, 128, kNVTEBFloat16, nullptr), "\"out_dtype\"", "BFloat16");
  EXPECT_THROWS(nvte_fp8_block_scaling_partial_cast(x, y, y, 4, 4, 1, 1, 0, 128, kNVTEFloat8E4M3, nullptr), "\"scale\"", "Float32", "Byte");
}

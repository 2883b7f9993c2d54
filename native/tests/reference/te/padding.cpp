/* Rows added to lists of matrices, and taken from them. */
#include "fp8_matrix.h"

using namespace chagres::reference;
using check::Array;
using check::Fp8Matrix;
using check::Parts;

TEST(rows_are_added_and_taken) {
  for (const NVTEDType dtype : {kNVTEFloat32, kNVTEBFloat16, kNVTEByte, kNVTEInt64}) {
    Array a({3, 5}, dtype), b({4, 2}, dtype), none({0, 7}, dtype), pa({8, 5}, dtype), pb({4, 2}, dtype), pn({2, 7}, dtype);
    for (Array *array : {&a, &b, &pa, &pb, &pn}) {
      for (size_t i = 0; i < array->count(); ++i) array->set(i, static_cast<double>(i + 1));
    }
    NVTETensor inputs[] = {a, b, none}, outputs[] = {pa, pb, pn};
    const int padded[] = {8, 4, 2};
    nvte_multi_padding(3, inputs, outputs, padded, nullptr);
    for (size_t i = 0; i < pa.count(); ++i) EXPECT_EQUAL(pa.get(i), i < 15 ? a.get(i) : 0.0);
    EXPECT_CLOSE(pb.values(), b.values(), 0, 0);
    EXPECT_EQUAL(check::largest_of(pn.values()), 0.0);
    a.fill(0);
    NVTETensor back[] = {pa}, unpadded[] = {a};
    const int rows[] = {3};
    nvte_multi_unpadding(1, back, unpadded, rows, nullptr);
    for (size_t i = 0; i < a.count(); ++i) EXPECT_EQUAL(a.get(i), static_cast<double>(i + 1));
  }
  Fp8Matrix x({2, 4}, kNVTEFloat8E4M3, Parts::Rowwise), y({3, 4}, kNVTEFloat8E4M3, Parts::Rowwise);
  x.data.normal();
  NVTETensor input = x, output = y;
  const int rows = 3;
  nvte_multi_padding(1, &input, &output, &rows, nullptr);
  for (size_t i = 0; i < 12; ++i) EXPECT_EQUAL(y.data.get(i), i < 8 ? x.data.get(i) : 0.0);
  nvte_multi_padding(0, nullptr, nullptr, nullptr, nullptr);
}

TEST(refusals) {
  Array x({4, 3}, kNVTEFloat32), y({8, 3}, kNVTEFloat32), wide({8, 4}, kNVTEFloat32), half({8, 3}, kNVTEFloat16), raw({4, 3}, kNVTEFloat8E4M3),
      cube({2, 2, 3}, kNVTEFloat32), small({2, 3}, kNVTEFloat32);
  const auto pad = [](NVTETensor input, NVTETensor output, int rows) { nvte_multi_padding(1, &input, &output, &rows, nullptr); };
  const auto unpad = [](NVTETensor input, NVTETensor output, int rows) { nvte_multi_unpadding(1, &input, &output, &rows, nullptr); };
  EXPECT_THROWS(pad(x, y, 6), "nvte_multi_padding", "6 (of \"padded_num_rows_list\") x 3", "(8, 3)");
  EXPECT_THROWS(pad(x, wide, 8), "8 (of", "x 3", "(8, 4)");
  EXPECT_THROWS(pad(x, half, 8), "\"output_list\"", "Float32", "Float16");
  EXPECT_THROWS(pad(raw, y, 8), "\"input_list\"", "FP8", "scale_inv");
  EXPECT_THROWS(pad(cube, y, 8), "two dimensions", "(2, 2, 3)");
  EXPECT_THROWS(pad(x, small, 2), "at least the input's 4", "got 2");
  EXPECT_THROWS(unpad(x, y, 8), "nvte_multi_unpadding", "at most the input's 4", "got 8");
  EXPECT_THROWS(unpad(y, x, -4), "-4 (of \"unpadded_num_rows_list\")");
  EXPECT_THROWS(nvte_multi_padding(1, nullptr, nullptr, nullptr, nullptr), "\"padded_num_rows_list\"", "NULL");
}

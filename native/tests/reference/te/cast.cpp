/* Casts and transposes. */
#include "check.h"

using namespace chagres::reference;
using check::Array;

TEST(casts_round_once) {
  for (const NVTEDType from : {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16}) {
    for (const NVTEDType to : {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16}) {
      Array x({3, 5001}, from), y({3, 5001}, to);
      x.normal(100);
      x.set(7, INFINITY);
      x.set(8, NAN);
      float amax = 1;
      const check::Known known_amax(amax);
      y.record(kNVTEAmax, &amax, kNVTEFloat32, {1});
      nvte_quantize_v2(x, y, nullptr, nullptr);
      EXPECT_CLOSE(y.values(), x.values(), check::rounding(to), 1e-7);
      EXPECT(std::isinf(amax));
    }
  }
}

TEST(a_noop_flag_stops_a_cast) {
  Array x({4}, kNVTEFloat32), y({4}, kNVTEBFloat16), noop({1}, kNVTEFloat32), wrong({2}, kNVTEFloat32);
  x.fill(3);
  y.fill(9);
  noop.fill(1);
  nvte_quantize_noop(x, y, noop, nullptr);
  EXPECT_EQUAL(y.get(0), 9.0);
  NVTEQuantizationConfig config = nvte_create_quantization_config();
  NVTETensor handle = noop;
  nvte_set_quantization_config_attribute(config, kNVTEQuantizationConfigNoopTensor, &handle, sizeof(handle));
  nvte_quantize_v2(x, y, config, nullptr);
  EXPECT_EQUAL(y.get(0), 9.0);
  noop.fill(0);
  NVTETensor in[] = {x}, out[] = {y};
  nvte_multi_tensor_quantize(in, out, config, 1, nullptr);
  EXPECT_EQUAL(y.get(3), 3.0);
  EXPECT_THROWS(nvte_quantize_noop(x, y, wrong, nullptr), "\"noop\"", "1 elements", "got 2");
  EXPECT_THROWS(nvte_multi_tensor_quantize(nullptr, out, config, 1, nullptr), "NULL");
  const uint8_t yes = 1;
  nvte_set_quantization_config_attribute(config, kNVTEQuantizationConfigStochasticRounding, &yes, 1);
  EXPECT_THROWS(nvte_quantize_v2(x, y, config, nullptr), "nvte_quantize_v2", "Stochastic rounding");
  nvte_destroy_quantization_config(config);
  EXPECT_THROWS(nvte_quantize_v2(x, y, config, nullptr), "Invalid NVTEQuantizationConfig");
}

TEST(cast_refusals) {
  Array x({2, 3}, kNVTEFloat32), other({3, 2}, kNVTEBFloat16), y({2, 3}, kNVTEBFloat16), bytes({2, 3}, kNVTEByte);
  EXPECT_THROWS(nvte_quantize(x, other, nullptr), "nvte_quantize", "\"output\"", "(2, 3)", "(3, 2)");
  EXPECT_THROWS(nvte_quantize(x, bytes, nullptr), "\"output\"", "Byte", "does not compute");
  y.record(kNVTEColumnwiseData, other.data(), kNVTEBFloat16, {2, 3});
  EXPECT_THROWS(nvte_quantize(x, y, nullptr), "columnwise", "(3, 2)", "(2, 3)");
}

TEST(transposes) {
  for (const NVTEDType dtype : {kNVTEByte, kNVTEBFloat16, kNVTEFloat32, kNVTEInt64}) {
    for (const auto &[rows, columns] : std::vector<std::pair<size_t, size_t>>{{1, 1}, {33, 31}, {32, 64}, {300, 7}, {0, 5}}) {
      Array x({rows, columns}, dtype), y({columns, rows}, dtype);
      for (size_t i = 0; i < x.count(); ++i) x.set(i, static_cast<double>(i % 251));
      nvte_transpose(x, y, nullptr);
      for (size_t i = 0; i < rows; ++i) {
        for (size_t j = 0; j < columns; ++j) EXPECT_EQUAL(y.get(j * rows + i), x.get(i * columns + j));
      }
    }
  }
}

TEST(first_dimensions_swap) {
  Array x({3, 5, 2, 2}, kNVTEBFloat16), y({5, 3, 2, 2}, kNVTEBFloat16), none({0, 5}, kNVTEFloat32), none_out({5, 0}, kNVTEFloat32);
  x.normal();
  nvte_swap_first_dims(x, y, nullptr);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 5; ++j) {
      for (size_t k = 0; k < 4; ++k) EXPECT_EQUAL(y.get((j * 3 + i) * 4 + k), x.get((i * 5 + j) * 4 + k));
    }
  }
  nvte_swap_first_dims(none, none_out, nullptr);
}

TEST(transpose_refusals_and_noop) {
  Array x({2, 3}, kNVTEFloat32), y({3, 2}, kNVTEFloat32), cube({2, 3, 1}, kNVTEFloat32), bf16({3, 2}, kNVTEBFloat16), noop({1}, kNVTEFloat32);
  EXPECT_THROWS(nvte_transpose(x, x, nullptr), "nvte_transpose", "\"output\"", "(3, 2)", "(2, 3)");
  EXPECT_THROWS(nvte_transpose(cube, y, nullptr), "two dimensions", "(2, 3, 1)");
  EXPECT_THROWS(nvte_transpose(x, bf16, nullptr), "\"output\"", "Float32", "BFloat16");
  EXPECT_THROWS(nvte_swap_first_dims(x, x, nullptr), "nvte_swap_first_dims", "(3, 2)");
  x.normal();
  y.fill(5);
  noop.fill(1);
  nvte_transpose_with_noop(x, noop, y, nullptr);
  EXPECT_EQUAL(y.get(0), 5.0);
  noop.fill(0);
  nvte_transpose_with_noop(x, noop, y, nullptr);
  EXPECT_EQUAL(y.get(1), x.get(3));
}

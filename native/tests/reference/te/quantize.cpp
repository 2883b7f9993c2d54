/* Casts to FP8 with one scale, with and without the transpose; back again. */
#include "fp8_matrix.h"

using namespace chagres::reference;
using check::Array;
using check::Fp8Matrix;
using check::Parts;
using check::Unset;
using Config = check::QuantizationConfig;

namespace {

constexpr NVTEDType kFp8[] = {kNVTEFloat8E4M3, kNVTEFloat8E5M2};
constexpr NVTEDType kInputs[] = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16};

}  // namespace

TEST(quantizes_rowwise_and_columnwise) {
  for (const NVTEDType from : kInputs) {
    for (const NVTEDType to : kFp8) {
      for (const Parts parts : {Parts::Rowwise, Parts::Both}) {
        for (const auto &shape : std::vector<std::vector<size_t>>{{1, 1}, {3, 7}, {33, 65}, {2, 3, 40}, {130, 257}}) {
          Array x(shape, from);
          Fp8Matrix y(shape, to, parts, 37.5f);
          x.normal(100);
          nvte_quantize(x, y, nullptr);
          EXPECT_QUANTIZED(y, x.values());
          if (parts == Parts::Both) EXPECT_TRANSPOSED(y);
        }
      }
    }
  }
}

TEST(every_bf16_value_at_several_scales) {
  Array x({256, 256}, kNVTEBFloat16);
  for (int i = 0; i < 65536; ++i) x.as<uint16_t>()[i] = static_cast<uint16_t>(i);
  for (const NVTEDType to : kFp8) {
    for (const float scale : {1.0f, 0.3f, 1e-30f, 1e30f, std::numeric_limits<float>::max()}) {
      Fp8Matrix y({256, 256}, to, Parts::Both, scale);
      nvte_quantize(x, y, nullptr);
      for (int i = 0; i < 65536; ++i) {
        uint8_t expected;
        store(&expected, 0, to, bf16_to_float(static_cast<uint16_t>(i)) * scale);
        EXPECT_EQUAL(static_cast<int>(y.data.as<uint8_t>()[i]), static_cast<int>(expected));
      }
      EXPECT_TRANSPOSED(y);
      EXPECT_EQUAL(y.scale_inv.as<float>()[0], 1.0f / scale);
      EXPECT(std::isinf(y.amax.get(0)));
    }
  }
}

TEST(amax_ignores_nan_and_keeps_what_is_larger) {
  Array x({1, 5}, kNVTEFloat32);
  Fp8Matrix y({1, 5}, kNVTEFloat8E4M3, Parts::Rowwise);
  const float values[] = {NAN, -3, 2, NAN, 1};
  std::memcpy(x.data(), values, sizeof(values));
  nvte_quantize(x, y, nullptr);
  EXPECT_EQUAL(y.amax.get(0), 3.0);
  EXPECT_EQUAL(static_cast<int>(y.data.as<uint8_t>()[0]), 0x7f);
  y.amax.fill(5);
  nvte_quantize(x, y, nullptr);
  EXPECT_EQUAL(y.amax.get(0), 5.0);
  y.amax.fill(-9); /* bits are compared as integers */
  nvte_quantize(x, y, nullptr);
  EXPECT_EQUAL(y.amax.get(0), 3.0);
  y.amax.fill(NAN);
  nvte_quantize(x, y, nullptr);
  EXPECT(std::isnan(y.amax.get(0)));
}

TEST(without_scale_and_amax) {
  Array x({4, 8}, kNVTEBFloat16), y({4, 8}, kNVTEFloat8E5M2), scale_inv({1}, kNVTEFloat32);
  x.normal();
  y.record(kNVTERowwiseScaleInv, scale_inv.data(), kNVTEFloat32, {1});
  nvte_quantize_v2(x, y, nullptr, nullptr);
  EXPECT_CLOSE(y.values(), x.values(), check::fp8_rounding(kNVTEFloat8E5M2), check::fp8_least(kNVTEFloat8E5M2));
  EXPECT_EQUAL(scale_inv.get(0), 1.0);
}

TEST(a_noop_flag_leaves_everything) {
  Array x({32, 32}, kNVTEFloat32), noop({1}, kNVTEFloat32);
  Fp8Matrix y({32, 32}, kNVTEFloat8E4M3, Parts::Both, 2);
  x.normal();
  y.scale_inv.fill(9);
  noop.fill(1);
  nvte_quantize_noop(x, y, noop, nullptr);
  nvte_quantize_v2(x, y, Config().noop(noop), nullptr);
  nvte_cast_transpose_with_noop(x, noop, y, nullptr);
  EXPECT_EQUAL(y.scale_inv.get(0), 9.0);
  EXPECT_EQUAL(y.amax.get(0), 0.0);
  EXPECT_EQUAL(check::largest_of(y.data.values()), 0.0);
  EXPECT_EQUAL(check::largest_of(y.transposed.values()), 0.0);
  noop.fill(0.5);
  nvte_cast_transpose_with_noop(x, noop, y, nullptr);
  EXPECT_QUANTIZED(y, x.values());
}

TEST(cast_transpose_and_lists) {
  Array a({33, 20}, kNVTEBFloat16), b({64, 96}, kNVTEBFloat16);
  a.normal();
  b.normal(10);
  Fp8Matrix ya({33, 20}, kNVTEFloat8E4M3, Parts::Both, 50), yb({64, 96}, kNVTEFloat8E4M3, Parts::Both, 5);
  nvte_cast_transpose(a, ya, nullptr);
  EXPECT_QUANTIZED(ya, a.values());
  EXPECT_TRANSPOSED(ya);
  ya.data.fill(0);
  NVTETensor inputs[] = {a, b}, outputs[] = {ya, yb};
  nvte_multi_cast_transpose(2, inputs, outputs, nullptr);
  EXPECT_QUANTIZED(ya, a.values());
  EXPECT_QUANTIZED(yb, b.values());
  EXPECT_TRANSPOSED(yb);
  nvte_multi_tensor_quantize(inputs, outputs, nullptr, 2, nullptr);
  EXPECT_QUANTIZED(yb, b.values());
  nvte_multi_cast_transpose(0, nullptr, nullptr, nullptr);
}

TEST(plain_outputs_have_transposes_too) {
  Array x({3, 5}, kNVTEFloat32), y({3, 5}, kNVTEBFloat16), t({5, 3}, kNVTEBFloat16);
  x.normal();
  y.record(kNVTEColumnwiseData, t.data(), kNVTEBFloat16, {5, 3});
  nvte_quantize(x, y, nullptr);
  for (size_t i = 0; i < 3; ++i) {
    for (size_t j = 0; j < 5; ++j) EXPECT_EQUAL(t.get(j * 3 + i), y.get(i * 5 + j));
  }
}

TEST(dequantizes) {
  for (const NVTEDType from : kFp8) {
    for (const NVTEDType to : kInputs) {
      Fp8Matrix x({2, 128}, from, Parts::Rowwise, 3);
      Array y({2, 128}, to);
      for (int i = 0; i < 256; ++i) x.data.as<uint8_t>()[i] = static_cast<uint8_t>(i);
      nvte_dequantize(x, y, nullptr);
      std::vector<double> expected = x.data.values();
      for (double &value : expected) value *= x.scale_inv.get(0);
      EXPECT_CLOSE(y.values(), expected, check::rounding(to) + 0x1p-24, 1e-7);
    }
  }
  Fp8Matrix none({0, 4}, kNVTEFloat8E4M3, Parts::Rowwise);
  Array empty({0, 4}, kNVTEFloat32);
  nvte_dequantize(none, empty, nullptr);
}

TEST(raw_fp8_transposes) {
  Array x({40, 33}, kNVTEFloat8E5M2), y({33, 40}, kNVTEFloat8E5M2);
  x.normal();
  nvte_transpose(x, y, nullptr);
  for (size_t i = 0; i < 40; ++i) {
    for (size_t j = 0; j < 33; ++j) EXPECT_EQUAL(y.get(j * 40 + i), x.get(i * 33 + j));
  }
}

TEST(refusals) {
  Array x({4, 8}, kNVTEFloat32), other({8, 4}, kNVTEFloat32), t({8, 4}, kNVTEFloat8E4M3), two({2}, kNVTEFloat32),
      bytes({4, 8}, kNVTEFloat8E4M3);
  EXPECT_THROWS(nvte_quantize(x, bytes, nullptr), "nvte_quantize", "\"output\"", "rowwise scale_inv");
  Fp8Matrix y({4, 8}, kNVTEFloat8E4M3);
  EXPECT_THROWS(nvte_quantize(other, y, nullptr), "\"output\"", "(8, 4)", "(4, 8)");
  EXPECT_THROWS(nvte_quantize(y, y, nullptr), "\"input\"", "Float8E4M3", "does not compute");
  y.data.record(kNVTEColumnwiseScaleInv, two.data(), kNVTEFloat32, {1});
  EXPECT_THROWS(nvte_cast_transpose(x, y, nullptr), "nvte_cast_transpose", "share one scale_inv");
  y.data.record(kNVTEColumnwiseScaleInv, nullptr, kNVTEFloat32, {0});
  EXPECT_THROWS(nvte_quantize(x, y, nullptr), "columnwise scale_inv");
  y.add_columnwise();
  y.data.record(kNVTEColumnwiseData, t.data(), kNVTEFloat8E5M2, {8, 4});
  EXPECT_THROWS(nvte_quantize(x, y, nullptr), "columnwise data", "Float8E4M3", "Float8E5M2");
  y.add_columnwise();
  y.data.record(kNVTEScale, two.data(), kNVTEFloat32, {2});
  EXPECT_THROWS(nvte_quantize(x, y, nullptr), "scale of one Float32", "(2)");
  y.data.record(kNVTEScale, y.scale.data(), kNVTEFloat32, {1});
  y.data.record(kNVTEAmax, two.data(), kNVTEFloat32, {2});
  EXPECT_THROWS(nvte_quantize(x, y, nullptr), "amax of one Float32", "(2)");
  Unset columnwise_only;
  const NVTEBasicTensor record{t.data(), kNVTEFloat8E4M3, make_shape({8, 4})};
  nvte_set_tensor_param_v2(columnwise_only, kNVTEColumnwiseData, &record, sizeof(record));
  EXPECT_THROWS(nvte_quantize(x, columnwise_only, nullptr), "only the columnwise direction");
  Unset nothing;
  EXPECT_THROWS(nvte_quantize(x, nothing, nullptr), "\"output\"", "no data");
  Fp8Matrix rowwise({4, 8}, kNVTEFloat8E4M3, Parts::Rowwise);
  EXPECT_THROWS(nvte_cast_transpose(x, rowwise, nullptr), "rowwise data alone");
  NVTETensor in[] = {x, t}, out[] = {rowwise, rowwise};
  EXPECT_THROWS(nvte_multi_cast_transpose(2, in, out, nullptr), "\"input\"", "Float8E4M3");
  EXPECT_THROWS(nvte_multi_cast_transpose(2, nullptr, out, nullptr), "nvte_multi_cast_transpose", "NULL");
  NVTETensor mx = nvte_create_tensor(NVTE_MXFP8_1D_SCALING);
  EXPECT_THROWS(nvte_quantize(x, mx, nullptr), "scaling mode 1", "10.0");
  EXPECT_THROWS(nvte_dequantize(mx, x, nullptr), "\"input\"", "scaling mode 0", "got 1");
  nvte_destroy_tensor(mx);
  EXPECT_THROWS(nvte_dequantize(x, x, nullptr), "\"input\"", "Float32");
  EXPECT_THROWS(nvte_dequantize(bytes, x, nullptr), "\"input\"", "scale_inv");
  EXPECT_THROWS(nvte_dequantize(rowwise, y, nullptr), "\"output\"", "Float8E4M3");
}

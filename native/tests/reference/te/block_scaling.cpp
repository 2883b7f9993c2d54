/* Quantization with a scale a block, against loops over the blocks. */
#include "fp8_matrix.h"

using namespace chagres::reference;
using check::Array;
using Config = check::QuantizationConfig;

namespace {

size_t blocks(size_t count) { return (count + 127) / 128; }
size_t padded(size_t count) { return (count + 3) / 4 * 4; }

struct Matrix {
  Matrix(size_t rows, size_t columns, bool square, NVTEDType dtype, bool rowwise, bool columnwise)
      : rows(rows), columns(columns), square(square), data({rows, columns}, dtype), transposed({columns, rows}, dtype),
        scales(square ? std::vector<size_t>{blocks(rows), padded(blocks(columns))} : std::vector<size_t>{blocks(columns), padded(rows)}, kNVTEFloat32),
        transposed_scales(square ? std::vector<size_t>{blocks(columns), padded(blocks(rows))} : std::vector<size_t>{blocks(rows), padded(columns)}, kNVTEFloat32),
        handle(nvte_create_tensor(square ? NVTE_BLOCK_SCALING_2D : NVTE_BLOCK_SCALING_1D)) {
    scales.fill(-7);
    transposed_scales.fill(-7);
    if (rowwise) {
      record(kNVTERowwiseData, data);
      record(kNVTERowwiseScaleInv, scales);
    }
    if (columnwise) {
      record(kNVTEColumnwiseData, transposed);
      record(kNVTEColumnwiseScaleInv, transposed_scales);
    }
  }
  ~Matrix() { nvte_destroy_tensor(handle); }
  void record(NVTETensorParam parameter, Array &array) {
    const NVTEBasicTensor record{array.data(), array.dtype(), nvte_tensor_shape(array)};
    nvte_set_tensor_param_v2(handle, parameter, &record, sizeof(record));
  }
  operator NVTETensor() const { return handle; }

  size_t rows, columns;
  bool square;
  Array data, transposed, scales, transposed_scales;
  NVTETensor handle;
};

/* The scale for the elements of a block of `x`; the steps in float, as the GPU takes them. */
float scale_for(const Array &x, size_t columns, size_t row, size_t last_row, size_t column, size_t last_column, NVTEDType dtype, bool power_of_2,
                float epsilon) {
  float amax = 0;
  for (size_t i = row; i < last_row; ++i) {
    for (size_t j = column; j < last_column; ++j) amax = std::fmax(amax, std::fabs(static_cast<float>(x.get(i * columns + j))));
  }
  if (amax < epsilon) amax = epsilon;
  if (amax == 0 || std::isinf(amax)) return 1;
  float scale = fp8_max(dtype) / amax;
  if (std::isinf(scale)) scale = x.dtype() == kNVTEFloat32 ? std::numeric_limits<float>::max() : x.dtype() == kNVTEFloat16 ? 65504.0f : 0x1.fep127f;
  return power_of_2 ? std::ldexp(1.0f, std::ilogb(scale)) : scale;
}

int code_of(double value, float scale, NVTEDType dtype) {
  uint8_t code;
  store(&code, 0, dtype, static_cast<float>(value) * scale);
  return code;
}

/* Looks at every element and every scale of both copies. */
void expect_blocks(const Array &x, const Matrix &y, bool rowwise, bool columnwise, bool power_of_2, float epsilon) {
  const NVTEDType dtype = y.data.dtype();
  const size_t stride = nvte_tensor_shape(y.scales).data[1], transposed_stride = nvte_tensor_shape(y.transposed_scales).data[1];
  for (size_t row = 0; row < y.rows; row += y.square ? 128 : 1) {
    for (size_t column = 0; rowwise && column < y.columns; column += 128) {
      const size_t last_row = std::min(y.rows, row + (y.square ? 128 : 1)), last_column = std::min(y.columns, column + 128);
      const float scale = scale_for(x, y.columns, row, last_row, column, last_column, dtype, power_of_2, epsilon);
      EXPECT_EQUAL(y.scales.get(y.square ? row / 128 * stride + column / 128 : column / 128 * stride + row), static_cast<double>(1 / scale));
      for (size_t i = row; i < last_row; ++i) {
        for (size_t j = column; j < last_column; ++j)
          EXPECT_EQUAL(static_cast<int>(y.data.as<uint8_t>()[i * y.columns + j]), code_of(x.get(i * y.columns + j), scale, dtype));
      }
    }
  }
  for (size_t column = 0; columnwise && column < y.columns; column += y.square ? 128 : 1) {
    for (size_t row = 0; row < y.rows; row += 128) {
      const size_t last_row = std::min(y.rows, row + 128), last_column = std::min(y.columns, column + (y.square ? 128 : 1));
      const float scale = scale_for(x, y.columns, row, last_row, column, last_column, dtype, power_of_2, epsilon);
      EXPECT_EQUAL(y.transposed_scales.get(y.square ? column / 128 * transposed_stride + row / 128 : row / 128 * transposed_stride + column),
                   static_cast<double>(1 / scale));
      for (size_t i = row; i < last_row; ++i) {
        for (size_t j = column; j < last_column; ++j)
          EXPECT_EQUAL(static_cast<int>(y.transposed.as<uint8_t>()[j * y.rows + i]), code_of(x.get(i * y.columns + j), scale, dtype));
      }
    }
  }
}

}  // namespace

TEST(every_block_has_its_scale) {
  for (const bool square : {false, true}) {
    for (const NVTEDType from : {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16}) {
      for (const auto &[rows, columns] : std::vector<std::pair<size_t, size_t>>{{1, 1}, {128, 128}, {5, 130}, {129, 127}, {256, 144}}) {
        for (int variant = 0; variant < 6; ++variant) {
          const bool rowwise = variant % 3 != 1, columnwise = variant % 3 != 0, power_of_2 = variant < 3;
          Array x({rows, columns}, from);
          x.normal(variant == 0 ? 1e-3 : 10);
          Matrix y(rows, columns, square, variant % 2 ? kNVTEFloat8E5M2 : kNVTEFloat8E4M3, rowwise, columnwise);
          const float epsilon = variant == 4 ? 20.0f : 0.0f;
          nvte_quantize_v2(x, y, Config(power_of_2, epsilon), nullptr);
          expect_blocks(x, y, rowwise, columnwise, power_of_2, epsilon);
        }
      }
    }
  }
}

TEST(amaxes_at_their_edges) {
  for (const bool square : {false, true}) {
    for (const double value : {0.0, 1e-45, 1e-38, 3e38, static_cast<double>(INFINITY)}) {
      for (const NVTEDType from : {kNVTEFloat32, kNVTEBFloat16}) {
        Array x({128, 128}, from);
        x.fill(value);
        Matrix y(128, 128, square, kNVTEFloat8E4M3, true, true);
        nvte_quantize_v2(x, y, Config(false), nullptr);
        expect_blocks(x, y, true, true, false, 0);
        nvte_quantize_v2(x, y, Config(true), nullptr);
        expect_blocks(x, y, true, true, true, 0);
      }
    }
  }
}

TEST(padding_of_scales_and_noop) {
  Array x({5, 130}, kNVTEBFloat16), noop({1}, kNVTEFloat32);
  x.normal();
  noop.fill(1);
  Matrix y(5, 130, false, kNVTEFloat8E4M3, true, true);
  nvte_quantize_v2(x, y, Config().noop(noop), nullptr);
  EXPECT_EQUAL(y.scales.get(0), -7.0);
  nvte_quantize(x, y, nullptr);
  EXPECT(y.scales.get(0) > 0);
  EXPECT_EQUAL(y.scales.get(5), -7.0); /* beyond the rows */
}

TEST(refusals) {
  Array x({4, 8}, kNVTEFloat32), other({8, 4}, kNVTEFloat32), floats({1, 4}, kNVTEBFloat16), e5m2({8, 4}, kNVTEFloat8E5M2), small({1, 3}, kNVTEFloat32);
  Matrix y(4, 8, false, kNVTEFloat8E4M3, true, true), nothing(4, 8, true, kNVTEFloat8E4M3, false, false);
  EXPECT_THROWS(nvte_quantize(other, y, nullptr), "nvte_quantize", "\"output\"", "(8, 4)", "(4, 8)");
  EXPECT_THROWS(nvte_quantize(x, nothing, nullptr), "no data", "rowwise or columnwise");
  EXPECT_THROWS(nvte_quantize(y, y, nullptr), "\"input\"", "Float8E4M3");
  y.record(kNVTERowwiseScaleInv, floats);
  EXPECT_THROWS(nvte_quantize(x, y, nullptr), "rowwise scale_inv", "(1, 4)", "BFloat16");
  y.record(kNVTERowwiseScaleInv, small);
  EXPECT_THROWS(nvte_quantize(x, y, nullptr), "rowwise scale_inv", "(1, 4)", "(1, 3)");
  y.record(kNVTERowwiseScaleInv, y.scales);
  y.record(kNVTEColumnwiseData, e5m2);
  EXPECT_THROWS(nvte_quantize(x, y, nullptr), "one dtype", "Float8E4M3", "Float8E5M2");
  y.record(kNVTEColumnwiseData, y.data);
  EXPECT_THROWS(nvte_quantize(x, y, nullptr), "columnwise data", "(8, 4)", "(4, 8)");
  y.record(kNVTERowwiseData, x);
  EXPECT_THROWS(nvte_quantize(x, y, nullptr), "rowwise data", "Float32");
  EXPECT_THROWS(nvte_dequantize(y, x, nullptr), "\"input\"", "scaling mode 0", "got 2");
  EXPECT_THROWS(nvte_gelu(x, y, nullptr), "\"output\"", "scaling mode 0", "got 2");
}

/* FP8 tensors of scaling mode 0 with their scales, and what quantizing to them gives, in double precision. */
#ifndef CHAGRES_FP8_MATRIX_H
#define CHAGRES_FP8_MATRIX_H

#include "check.h"
#include "runtime/fp8.h"

namespace check {

using chagres::reference::fp8_max;

enum class Parts { Rowwise, Both };

/* Rowwise data, its transpose where wanted, scale, scale_inv and amax, all on one handle. */
class Fp8Matrix {
 public:
  Fp8Matrix(std::vector<size_t> dimensions, NVTEDType dtype, Parts parts = Parts::Both, float scale_value = 1)
      : data(dimensions, dtype),
        transposed({dimensions.back(), data.count() / std::max<size_t>(dimensions.back(), 1)}, dtype),
        scale({1}, kNVTEFloat32),
        scale_inv({1}, kNVTEFloat32),
        amax({1}, kNVTEFloat32) {
    scale.fill(scale_value);
    scale_inv.fill(1 / scale_value);
    data.record(kNVTEScale, scale.data(), kNVTEFloat32, {1});
    data.record(kNVTEAmax, amax.data(), kNVTEFloat32, {1});
    data.record(kNVTERowwiseScaleInv, scale_inv.data(), kNVTEFloat32, {1});
    if (parts == Parts::Both) add_columnwise();
  }

  void add_columnwise() {
    const NVTEShape shape = nvte_tensor_shape(transposed);
    data.record(kNVTEColumnwiseData, transposed.data(), data.dtype(), {shape.data[0], shape.data[1]});
    data.record(kNVTEColumnwiseScaleInv, scale_inv.data(), kNVTEFloat32, {1});
  }

  operator NVTETensor() const { return data; }

  Array data, transposed, scale, scale_inv, amax;
};

/* A quantization configuration, destroyed with it. */
class QuantizationConfig {
 public:
  explicit QuantizationConfig(bool power_of_2 = false, float epsilon = 0) : handle_(nvte_create_quantization_config()) {
    const uint8_t byte = power_of_2;
    nvte_set_quantization_config_attribute(handle_, kNVTEQuantizationConfigForcePow2Scales, &byte, 1);
    nvte_set_quantization_config_attribute(handle_, kNVTEQuantizationConfigAmaxEpsilon, &epsilon, sizeof(epsilon));
  }
  ~QuantizationConfig() { nvte_destroy_quantization_config(handle_); }
  QuantizationConfig &noop(NVTETensor value) {
    nvte_set_quantization_config_attribute(handle_, kNVTEQuantizationConfigNoopTensor, &value, sizeof(value));
    return *this;
  }
  operator NVTEQuantizationConfig() const { return handle_; }

 private:
  NVTEQuantizationConfig handle_;
};

/* Half a unit in the last place of an FP8 dtype, and half its least number. */
inline double fp8_rounding(NVTEDType dtype) { return dtype == kNVTEFloat8E4M3 ? 0x1p-4 : 0x1p-3; }
inline double fp8_least(NVTEDType dtype) { return dtype == kNVTEFloat8E4M3 ? 0x1p-10 : 0x1p-17; }

/* values * scale, cut at the largest. */
inline std::vector<double> scaled(std::vector<double> values, double scale, NVTEDType dtype) {
  for (double &value : values) {
    const double largest = fp8_max(dtype);
    if (!std::isnan(value)) value = std::fmin(std::fmax(value * scale, -largest), largest);
  }
  return values;
}

inline double largest_of(const std::vector<double> &values) {
  double largest = 0;
  for (const double value : values) largest = std::fmax(largest, std::fabs(value));
  return largest;
}

/* What the matrix holds after quantizing `values`, known to within `relative` themselves. */
inline void expect_quantized(const char *file, int line, const Fp8Matrix &matrix, const std::vector<double> &values,
                             double relative = 0) {
  const NVTEDType dtype = matrix.data.dtype();
  const double scale = matrix.scale.get(0);
  expect_close(file, line, "quantized", matrix.data.values(), scaled(values, scale, dtype), fp8_rounding(dtype) + relative,
               fp8_least(dtype) + scale * relative);
  if (!close(matrix.scale_inv.get(0), 1 / scale, 1e-7, 0)) report(file, line, "scale_inv is ", matrix.scale_inv.get(0));
  if (!close(matrix.amax.get(0), largest_of(values), 1e-7 + relative, relative)) {
    report(file, line, "amax is ", matrix.amax.get(0), ", expected ", largest_of(values));
  }
}

/* The columnwise data is the rowwise data's transpose, byte for byte. */
inline void expect_transposed(const char *file, int line, const Fp8Matrix &matrix) {
  const NVTEShape shape = nvte_tensor_shape(matrix.transposed);
  const size_t rows = shape.data[1], columns = shape.data[0];
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) {
      if (matrix.transposed.as<uint8_t>()[j * rows + i] == matrix.data.as<uint8_t>()[i * columns + j]) continue;
      report(file, line, "transpose differs at row ", i, ", column ", j);
      return;
    }
  }
}

#define EXPECT_QUANTIZED(...) check::expect_quantized(__FILE__, __LINE__, __VA_ARGS__)
#define EXPECT_TRANSPOSED(matrix) check::expect_transposed(__FILE__, __LINE__, matrix)

}  // namespace check

#endif /* CHAGRES_FP8_MATRIX_H */

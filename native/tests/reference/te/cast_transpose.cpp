/* Casts to FP8 with the transpose, and what is fused with them: bias gradients, activations and their gradients. */
#include "fp8_matrix.h"

using namespace chagres::reference;
using check::Array;
using check::Fp8Matrix;
using check::Parts;
using check::Unset;

namespace {

using Call = void (*)(NVTETensor, NVTETensor, cudaStream_t);
using Gradient = void (*)(NVTETensor, NVTETensor, NVTETensor, cudaStream_t);
using Fused = void (*)(NVTETensor, NVTETensor, NVTETensor, NVTETensor, NVTETensor, cudaStream_t);

struct Named {
  double (*value)(double);
  Call forward, gated_forward;
  Gradient backward, gated_backward, gated_cast_transpose;
  Fused quantize, cast_transpose;
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

const Named kActivations[] = {
    {[](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }, nvte_gelu, nvte_geglu,
     nvte_dgelu, nvte_dgeglu, nvte_dgeglu_cast_transpose, nvte_quantize_dbias_dgelu, nvte_cast_transpose_dbias_dgelu},
    {[](double x) { return x * sigmoid(x); }, nvte_silu, nvte_swiglu, nvte_dsilu, nvte_dswiglu, nvte_dswiglu_cast_transpose,
     nvte_quantize_dbias_dsilu, nvte_cast_transpose_dbias_dsilu},
    {[](double x) { return x > 0 ? x : 0; }, nvte_relu, nvte_reglu, nvte_drelu, nvte_dreglu, nvte_dreglu_cast_transpose,
     nvte_quantize_dbias_drelu, nvte_cast_transpose_dbias_drelu},
    {[](double x) { return x * sigmoid(1.702 * x); }, nvte_qgelu, nvte_qgeglu, nvte_dqgelu, nvte_dqgeglu,
     nvte_dqgeglu_cast_transpose, nvte_quantize_dbias_dqgelu, nvte_cast_transpose_dbias_dqgelu},
    {[](double x) { return x > 0 ? x * x : 0; }, nvte_srelu, nvte_sreglu, nvte_dsrelu, nvte_dsreglu, nvte_dsreglu_cast_transpose,
     nvte_quantize_dbias_dsrelu, nvte_cast_transpose_dbias_dsrelu},
};

double slope(const Named &activation, double x) {
  if (activation.forward == nvte_relu) return x > 0;
  return (activation.value(x + 1e-6) - activation.value(x - 1e-6)) / 2e-6;
}

std::vector<double> column_sums(const std::vector<double> &values, size_t columns) {
  std::vector<double> sums(columns);
  for (size_t i = 0; i < values.size(); ++i) sums[i % columns] += values[i];
  return sums;
}

/* Sums of a few hundred values of order 1. */
double sum_error(NVTEDType dtype) { return dtype == kNVTEFloat32 ? 1e-4 : 2e-3; }

const std::vector<std::pair<size_t, size_t>> kShapes = {{32, 32}, {8, 4}, {24, 36}, {264, 100}, {512, 64}};

}  // namespace

TEST(bias_gradients) {
  for (const NVTEDType from : {kNVTEFloat32, kNVTEBFloat16}) {
    for (const NVTEDType to : {kNVTEFloat8E4M3, kNVTEFloat8E5M2}) {
      for (const auto &[rows, columns] : kShapes) {
        Array x({rows, columns}, from), dbias({columns}, from);
        x.normal();
        for (const auto call : {nvte_quantize_dbias, nvte_cast_transpose_dbias}) {
          Fp8Matrix y({rows, columns}, to, Parts::Both, 20);
          check::with_workspace([&](NVTETensor workspace) { call(x, y, dbias, workspace, nullptr); });
          EXPECT_QUANTIZED(y, x.values());
          EXPECT_TRANSPOSED(y);
          EXPECT_CLOSE(dbias.values(), column_sums(x.values(), columns), check::rounding(from), sum_error(from));
        }
      }
    }
  }
}

TEST(activation_gradients_with_bias_gradients) {
  for (const Named &activation : kActivations) {
    for (const NVTEDType from : {kNVTEFloat32, kNVTEBFloat16}) {
      for (const auto &[rows, columns] : kShapes) {
        Array dy({rows, columns}, from), x({rows, columns}, from), dbias({columns}, from);
        dy.normal();
        x.normal(2);
        std::vector<double> expected = dy.values();
        for (size_t i = 0; i < expected.size(); ++i) expected[i] *= slope(activation, x.get(i));
        for (const Fused call : {activation.quantize, activation.cast_transpose}) {
          Fp8Matrix dx({rows, columns}, kNVTEFloat8E5M2, Parts::Both, 100);
          check::with_workspace([&](NVTETensor workspace) { call(dy, x, dx, dbias, workspace, nullptr); });
          EXPECT_QUANTIZED(dx, expected, 1e-5);
          EXPECT_TRANSPOSED(dx);
          EXPECT_CLOSE(dbias.values(), column_sums(expected, columns), check::rounding(from), 2 * sum_error(from));
        }
      }
    }
  }
}

TEST(activations_to_fp8) {
  for (const Named &activation : kActivations) {
    for (const Parts parts : {Parts::Rowwise, Parts::Both}) {
      Array x({40, 68}, kNVTEBFloat16), dy({40, 68}, kNVTEBFloat16);
      x.normal(2);
      dy.normal();
      std::vector<double> values = x.values(), gradients = dy.values();
      for (size_t i = 0; i < values.size(); ++i) {
        gradients[i] *= slope(activation, values[i]);
        values[i] = activation.value(values[i]);
      }
      Fp8Matrix y({40, 68}, kNVTEFloat8E4M3, parts, 12), dx({40, 68}, kNVTEFloat8E5M2, parts, 500);
      activation.forward(x, y, nullptr);
      EXPECT_QUANTIZED(y, values, 1e-5);
      activation.backward(dy, x, dx, nullptr);
      EXPECT_QUANTIZED(dx, gradients, 1e-5);
      if (parts == Parts::Rowwise) continue;
      EXPECT_TRANSPOSED(y);
      EXPECT_TRANSPOSED(dx);
    }
  }
}

TEST(gated_activations_to_fp8) {
  const size_t rows = 12, columns = 34;
  for (const Named &activation : kActivations) {
    Array x({rows, 2 * columns}, kNVTEBFloat16), dy({rows, columns}, kNVTEBFloat16);
    x.normal(2);
    dy.normal();
    std::vector<double> values(rows * columns), gradients(2 * rows * columns);
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < columns; ++j) {
        const double a = x.get(2 * i * columns + j), b = x.get((2 * i + 1) * columns + j), d = dy.get(i * columns + j);
        values[i * columns + j] = activation.value(a) * b;
        gradients[2 * i * columns + j] = d * slope(activation, a) * b;
        gradients[(2 * i + 1) * columns + j] = d * activation.value(a);
      }
    }
    Fp8Matrix y({rows, columns}, kNVTEFloat8E4M3, Parts::Both, 5);
    activation.gated_forward(x, y, nullptr);
    EXPECT_QUANTIZED(y, values, 2e-5);
    EXPECT_TRANSPOSED(y);
    for (const Gradient call : {activation.gated_backward, activation.gated_cast_transpose}) {
      Fp8Matrix dx({rows, 2 * columns}, kNVTEFloat8E5M2, Parts::Both, 9);
      call(dy, x, dx, nullptr);
      EXPECT_QUANTIZED(dx, gradients, 2e-5);
      EXPECT_TRANSPOSED(dx);
    }
  }
}

TEST(raw_fp8_transposes_with_bias_gradients) {
  const size_t rows = 264, columns = 24;
  Fp8Matrix x({rows, columns}, kNVTEFloat8E5M2, Parts::Rowwise), y({columns, rows}, kNVTEFloat8E5M2, Parts::Rowwise);
  Array dbias({columns}, kNVTEBFloat16);
  x.data.normal();
  y.scale_inv.fill(0.25);
  check::with_workspace([&](NVTETensor workspace) { nvte_fp8_transpose_dbias(x, y, dbias, workspace, nullptr); });
  std::vector<double> expected = column_sums(x.data.values(), columns);
  for (double &sum : expected) sum *= 0.25;
  EXPECT_CLOSE(dbias.values(), expected, check::rounding(kNVTEBFloat16), 1e-4);
  for (size_t i = 0; i < rows; ++i) {
    for (size_t j = 0; j < columns; ++j) EXPECT_EQUAL(y.data.get(j * rows + i), x.data.get(i * columns + j));
  }
}

TEST(refusals) {
  Array x({8, 4}, kNVTEBFloat16), dbias({4}, kNVTEBFloat16), wrong({8}, kNVTEBFloat16), floats({4}, kNVTEFloat32), odd({6, 4}, kNVTEBFloat16),
      small({1, 1}, kNVTEFloat32), other({4, 8}, kNVTEBFloat16), gated({8, 8}, kNVTEBFloat16), cube({2, 4, 8}, kNVTEBFloat16);
  Fp8Matrix y({8, 4}, kNVTEFloat8E4M3), rowwise({8, 4}, kNVTEFloat8E4M3, Parts::Rowwise), odd_y({6, 4}, kNVTEFloat8E4M3),
      gated_y({8, 8}, kNVTEFloat8E4M3), gated_rowwise({8, 8}, kNVTEFloat8E4M3, Parts::Rowwise);
  Unset query;
  EXPECT_THROWS(nvte_quantize_dbias(x, rowwise, dbias, query, nullptr), "nvte_quantize_dbias", "columnwise", "below 10.0");
  EXPECT_THROWS(nvte_quantize_dbias(other, y, dbias, query, nullptr), "\"output\"", "(4, 8)", "(8, 4)");
  EXPECT_THROWS(nvte_quantize_dbias(x, y, wrong, query, nullptr), "\"dbias\"", "(4)", "(8)");
  EXPECT_THROWS(nvte_quantize_dbias(x, y, floats, query, nullptr), "\"dbias\"", "BFloat16", "Float32");
  EXPECT_THROWS(nvte_quantize_dbias(odd, odd_y, dbias, query, nullptr), "Unsupported shape", "multiple of 8", "6 x 4");
  EXPECT_THROWS(nvte_quantize_dbias(x, y, dbias, small, nullptr), "\"workspace\"", "(1, 4)", "(1, 1)");
  EXPECT_THROWS(nvte_quantize_dbias_dgelu(x, other, y, dbias, query, nullptr), "nvte_quantize_dbias_dgelu", "\"act_input\"", "(8, 4)");
  EXPECT_THROWS(nvte_cast_transpose_dbias_drelu(x, floats, y, dbias, query, nullptr), "\"act_input\"", "BFloat16", "Float32");
  EXPECT_THROWS(nvte_quantize_dbias(x, y, dbias, nullptr, nullptr), "Invalid tensor.", "\"workspace\"");
  EXPECT_THROWS(nvte_dgeglu_cast_transpose(x, gated, gated_rowwise, nullptr), "nvte_dgeglu_cast_transpose", "rowwise data alone");
  EXPECT_THROWS(nvte_dgeglu_cast_transpose(x, cube, gated_y, nullptr), "\"gated_act_input\"", "two dimensions", "(2, 4, 8)");
  EXPECT_THROWS(nvte_dswiglu_cast_transpose(odd, gated, gated_y, nullptr), "Unsupported shape", "6 x 4");
  EXPECT_THROWS(nvte_fp8_transpose_dbias(y, y, dbias, query, nullptr), "\"transposed_output\"", "(4, 8)", "(8, 4)");
  EXPECT_THROWS(nvte_fp8_transpose_dbias(x, y, dbias, query, nullptr), "\"input\"", "BFloat16");
  Array t({4, 8}, kNVTEBFloat16), plain({8, 4}, kNVTEBFloat16);
  plain.record(kNVTEColumnwiseData, t.data(), kNVTEBFloat16, {4, 8});
  EXPECT_THROWS(nvte_geglu(gated, plain, nullptr), "\"output\"", "for FP8 alone", "BFloat16");
}

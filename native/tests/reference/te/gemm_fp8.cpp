/* FP8 products, with one scale a matrix and block scaled, against double loops; what cuBLAS has none of. */
#include <array>

#include "fp8_matrix.h"

using namespace chagres::reference;
using check::Array;
using check::Fp8Matrix;
using check::Parts;

namespace {

class Config {
 public:
  Config() : handle_(nvte_create_matmul_config()) { flag(kNVTEMatmulConfigUseSplitAccumulator, true); }
  ~Config() { nvte_destroy_matmul_config(handle_); }
  Config &tensor(NVTEMatmulConfigAttribute attribute, NVTETensor value) {
    nvte_set_matmul_config_attribute(handle_, attribute, &value, sizeof(value));
    return *this;
  }
  Config &flag(NVTEMatmulConfigAttribute attribute, bool value) {
    const uint8_t byte = value;
    nvte_set_matmul_config_attribute(handle_, attribute, &byte, 1);
    return *this;
  }
  operator NVTEMatmulConfig() const { return handle_; }

 private:
  NVTEMatmulConfig handle_;
};

/* A factor: [outer, inner] as the product reads it, from rowwise or columnwise data. */
struct Factor {
  Factor(size_t outer, size_t inner, bool rows_outer, NVTEDType dtype, float scale)
      : outer(outer), inner(inner), rows_outer(rows_outer),
        matrix(rows_outer ? std::vector<size_t>{outer, inner} : std::vector<size_t>{inner, outer}, dtype, Parts::Both, scale) {
    matrix.data.normal();
    matrix.transposed.normal(); /* another matrix: only the one that is read may matter */
  }
  double at(size_t i, size_t k) const {
    return (rows_outer ? matrix.data : matrix.transposed).get(i * inner + k) * matrix.scale_inv.get(0);
  }
  size_t outer, inner;
  bool rows_outer;
  Fp8Matrix matrix;
};

/* FP8 data of scaling mode 2 or 3, one copy only. */
struct Blocks {
  Blocks(size_t outer, size_t inner, bool rows_outer, bool square, NVTEDType dtype)
      : inner(inner), square(square), data({outer, inner}, dtype),
        scales(square ? std::vector<size_t>{(outer + 127) / 128, padded((inner + 127) / 128)}
                      : std::vector<size_t>{(inner + 127) / 128, padded(outer)}, kNVTEFloat32) {
    data.normal();
    for (size_t i = 0; i < scales.count(); ++i) scales.set(i, std::ldexp(1.3, static_cast<int>(i % 5) - 2));
    handle = nvte_create_tensor(square ? NVTE_BLOCK_SCALING_2D : NVTE_BLOCK_SCALING_1D);
    record(rows_outer ? kNVTERowwiseData : kNVTEColumnwiseData, data);
    record(rows_outer ? kNVTERowwiseScaleInv : kNVTEColumnwiseScaleInv, scales);
  }
  ~Blocks() { nvte_destroy_tensor(handle); }
  void record(NVTETensorParam parameter, Array &array) {
    const NVTEBasicTensor record{array.data(), array.dtype(), nvte_tensor_shape(array)};
    nvte_set_tensor_param_v2(handle, parameter, &record, sizeof(record));
  }
  static size_t padded(size_t count) { return (count + 3) / 4 * 4; }
  double at(size_t i, size_t k) const {
    const size_t stride = nvte_tensor_shape(scales).data[1];
    return data.get(i * inner + k) * scales.get(square ? i / 128 * stride + k / 128 : k / 128 * stride + i);
  }
  size_t inner;
  bool square;
  Array data, scales;
  NVTETensor handle;
};

template <class F>
std::vector<double> exact(const F &a, const F &b, size_t m, size_t n, size_t k) {
  std::vector<double> result(n * m), left(m * k), right(n * k);
  for (size_t i = 0; i < m * k; ++i) left[i] = a.at(i / k, i % k);
  for (size_t j = 0; j < n * k; ++j) right[j] = b.at(j / k, j % k);
  for (size_t j = 0; j < n; ++j) {
    for (size_t i = 0; i < m; ++i) {
      for (size_t l = 0; l < k; ++l) result[j * m + i] += left[i * k + l] * right[j * k + l];
    }
  }
  return result;
}

void multiply(bool transa, bool transb, NVTETensor a, NVTETensor b, NVTETensor d, float beta = 0, NVTEMatmulConfig config = nullptr) {
  const float one = 1;
  nvte_cublas_gemm_v2(transa, transb, &one, a, b, &beta, d, d, nullptr, config, nullptr);
}

const std::vector<std::array<size_t, 3>> kSizes = {{16, 16, 16}, {32, 8, 48}, {520, 70, 32}, {40, 520, 160}};

}  // namespace

TEST(products_of_all_directions) {
  for (const auto &[a_dtype, b_dtype] : std::vector<std::pair<NVTEDType, NVTEDType>>{
           {kNVTEFloat8E4M3, kNVTEFloat8E4M3}, {kNVTEFloat8E5M2, kNVTEFloat8E4M3}, {kNVTEFloat8E4M3, kNVTEFloat8E5M2}}) {
    for (const NVTEDType output : {kNVTEFloat32, kNVTEBFloat16, kNVTEFloat16}) {
      for (const auto &[m, n, k] : kSizes) {
        for (int transposes = 0; transposes < 4; ++transposes) {
          const bool transa = transposes & 1, transb = transposes & 2;
          const Factor a(m, k, transa, a_dtype, 4), b(n, k, !transb, b_dtype, 0.5f);
          Array d({n, m}, output);
          const std::vector<double> expected = exact(a, b, m, n, k);
          d.fill(NAN);
          const double absolute = 1e-6 * std::sqrt(static_cast<double>(k));
          multiply(transa, transb, a.matrix, b.matrix, d);
          EXPECT_CLOSE(d.values(), expected, check::rounding(output), absolute);
          d.fill(2);
          multiply(transa, transb, a.matrix, b.matrix, d, 1);
          std::vector<double> accumulated = expected;
          for (double &value : accumulated) value += 2;
          EXPECT_CLOSE(d.values(), accumulated, check::rounding(output), absolute);
        }
      }
    }
  }
}

TEST(bias_and_gelu) {
  for (const NVTEDType output : {kNVTEFloat32, kNVTEBFloat16, kNVTEFloat16}) {
    const size_t m = 32, n = 10, k = 64;
    const Factor a(m, k, true, kNVTEFloat8E4M3, 1), b(n, k, true, kNVTEFloat8E4M3, 1);
    const NVTEDType small = output == kNVTEFloat16 ? kNVTEFloat16 : kNVTEBFloat16;
    Array d({n, m}, output), bias({m}, small), aux({n, m}, output);
    bias.normal();
    std::vector<double> expected = exact(a, b, m, n, k);
    multiply(true, false, a.matrix, b.matrix, d, 0, Config().flag(kNVTEMatmulConfigWithGELUEpilogue, true).tensor(kNVTEMatmulConfigEpilogueAuxTensor, aux));
    EXPECT_CLOSE(aux.values(), expected, check::rounding(output), 1e-5);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias.get(i % m);
    multiply(true, false, a.matrix, b.matrix, d, 0, Config().tensor(kNVTEMatmulConfigBiasTensor, bias));
    EXPECT_CLOSE(d.values(), expected, check::rounding(output), 1e-5);
  }
}

TEST(outputs_of_fp8) {
  const size_t m = 48, n = 24, k = 32;
  const Factor a(m, k, true, kNVTEFloat8E4M3, 2), b(n, k, true, kNVTEFloat8E5M2, 1);
  const std::vector<double> expected = exact(a, b, m, n, k);
  for (const NVTEDType dtype : {kNVTEFloat8E4M3, kNVTEFloat8E5M2}) {
    Fp8Matrix d({n, m}, dtype, Parts::Rowwise, 30);
    d.scale_inv.fill(0);
    d.amax.fill(1e9); /* overwritten, not merged */
    multiply(true, false, a.matrix, b.matrix, d);
    EXPECT_QUANTIZED(d, expected, 1e-5);
  }
  Array bias({m}, kNVTEFloat16);
  bias.normal();
  std::vector<double> biased = expected;
  for (size_t i = 0; i < biased.size(); ++i) biased[i] += bias.get(i % m);
  Fp8Matrix d({n, m}, kNVTEFloat8E4M3, Parts::Rowwise, 3);
  multiply(true, false, a.matrix, b.matrix, d, 0, Config().tensor(kNVTEMatmulConfigBiasTensor, bias));
  EXPECT_QUANTIZED(d, biased, 1e-5);
}

/* cuBLASLt multiplies sums by the product of both inverse scales, rounded to FP32: seen on an H200 with CUDA 13.0, in bits, for all of
 * these. Where that product overflows, a sum that is 0 becomes NaN. */
TEST(products_of_inverse_scales) {
  struct Row {
    float a, b, a_scale_inv, b_scale_inv, wanted;
  };
  const Row rows[] = {{0, 0, 1e30f, 1e30f, NAN},
                      {0x1p-9f, 0x1p-9f, 1e25f, 1e15f, INFINITY},
                      {0x1p-9f, 0x1p-9f, 1e15f, 1e25f, INFINITY},
                      {256, 256, 1e37f, 1e-5f, 6.553599583632018e+36f},
                      {256, 256, 1e-5f, 1e37f, 6.553599583632018e+36f},
                      {256, 256, 1e-20f, 1e-22f, 6.557054425680573e-38f},
                      {256, 256, 1e-25f, 1e-20f, 9.183549615799121e-41f}};
  for (const Row &row : rows) {
    Fp8Matrix a({16, 16}, kNVTEFloat8E4M3, Parts::Rowwise, 1), b({16, 16}, kNVTEFloat8E4M3, Parts::Rowwise, 1);
    a.data.fill(0), b.data.fill(0);
    for (size_t i = 0; i < 16; ++i) a.data.set(16 * i, row.a), b.data.set(16 * i, row.b);
    a.scale_inv.set(0, row.a_scale_inv), b.scale_inv.set(0, row.b_scale_inv);
    Array d({16, 16}, kNVTEFloat32);
    multiply(true, false, a, b, d);
    for (size_t i = 0; i < d.count(); ++i) {
      EXPECT(std::isnan(row.wanted) ? std::isnan(d.get(i)) : d.get(i) == static_cast<double>(row.wanted));
    }
  }
}

TEST(block_scaled_products) {
  for (const auto &[a_square, b_square] : std::vector<std::pair<bool, bool>>{{false, false}, {true, false}, {false, true}}) {
    for (const auto &[m, n, k] : std::vector<std::array<size_t, 3>>{{8, 8, 16}, {136, 264, 144}, {520, 72, 272}}) {
      for (int transposes = 0; transposes < 4; ++transposes) {
        const bool transa = transposes & 1, transb = transposes & 2;
        const Blocks a(m, k, transa, a_square, kNVTEFloat8E4M3), b(n, k, !transb, b_square, transa ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2);
        Array d({n, m}, kNVTEBFloat16), bias({m}, kNVTEBFloat16);
        bias.normal();
        std::vector<double> expected = exact(a, b, m, n, k);
        for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias.get(i % m);
        multiply(transa, transb, a.handle, b.handle, d, 0, Config().tensor(kNVTEMatmulConfigBiasTensor, bias));
        EXPECT_CLOSE(d.values(), expected, check::rounding(kNVTEBFloat16), 1e-4);
      }
    }
  }
}

TEST(missing_directions) {
  Fp8Matrix a({32, 16}, kNVTEFloat8E4M3, Parts::Rowwise), b({16, 32}, kNVTEFloat8E4M3, Parts::Rowwise);
  Array d({16, 16}, kNVTEBFloat16);
  EXPECT_THROWS(multiply(false, false, a, b, d), "nvte_cublas_gemm_v2", "Input A is missing column-wise usage");
  Fp8Matrix both({32, 16}, kNVTEFloat8E4M3);
  EXPECT_THROWS(multiply(false, true, both, a, d), "Input B is missing column-wise usage");
  const Blocks rows(16, 32, true, false, kNVTEFloat8E4M3), columns(16, 32, false, false, kNVTEFloat8E4M3);
  EXPECT_THROWS(multiply(true, false, columns.handle, rows.handle, d, 0, Config()), "Input A is missing row-wise usage");
  EXPECT_THROWS(multiply(true, true, rows.handle, rows.handle, d, 0, Config()), "Input B is missing column-wise usage");
  both.data.record(kNVTERowwiseData, nullptr, kNVTEFloat32, {0});
  EXPECT_THROWS(multiply(true, false, both, b, d), "Input A is missing row-wise usage");
}

TEST(refusals) {
  Fp8Matrix a({16, 32}, kNVTEFloat8E4M3), e5m2({16, 32}, kNVTEFloat8E5M2), odd({16, 24}, kNVTEFloat8E4M3), out({16, 16}, kNVTEFloat8E4M3),
      e5m2_out({16, 16}, kNVTEFloat8E5M2, Parts::Rowwise), row_out({16, 16}, kNVTEFloat8E4M3, Parts::Rowwise);
  Array d({16, 16}, kNVTEBFloat16), floats({16, 16}, kNVTEFloat32), bf16({16, 32}, kNVTEBFloat16), bias({16}, kNVTEBFloat16),
      float_bias({16}, kNVTEFloat32), half_aux({16, 16}, kNVTEFloat16), aux({16, 16}, kNVTEBFloat16);
  Fp8Matrix narrow({12, 32}, kNVTEFloat8E4M3);
  Array narrow_d({16, 12}, kNVTEBFloat16);
  EXPECT_THROWS(multiply(true, false, narrow, a, narrow_d), "16 bytes", "m = 12 of BFloat16", "24 bytes");
  EXPECT_THROWS(multiply(true, false, e5m2, e5m2, d), "both Float8E5M2");
  EXPECT_THROWS(multiply(true, false, odd, odd, d), "multiple of 16", "got 24", "pad");
  EXPECT_THROWS(multiply(true, false, a, bf16, d), "both be FP8", "BFloat16");
  EXPECT_THROWS(multiply(true, false, a, odd, d), "16 x 32", "16 x 24", "32 and 24");
  EXPECT_THROWS(multiply(true, false, a, a, out), "\"D\"", "rowwise data alone");
  EXPECT_THROWS(multiply(true, false, a, a, row_out, 1), "beta must be 0", "got 1");
  EXPECT_THROWS(multiply(true, false, a, a, e5m2_out), "\"D\" must be Float8E4M3");
  EXPECT_THROWS(multiply(true, false, a, a, d, 0, Config().tensor(kNVTEMatmulConfigBiasTensor, float_bias)), "\"bias\"", "BFloat16", "Float32");
  EXPECT_THROWS(multiply(true, false, a, a, row_out, 0, Config().tensor(kNVTEMatmulConfigBiasTensor, float_bias)), "\"bias\"", "Float16", "Float32");
  EXPECT_THROWS(multiply(true, false, a, a, d, 0, Config().tensor(kNVTEMatmulConfigDBiasTensor, bias)), "bias gradient", "nvte_quantize_dbias");
  Config gelu;
  gelu.flag(kNVTEMatmulConfigWithGELUEpilogue, true).tensor(kNVTEMatmulConfigEpilogueAuxTensor, half_aux);
  EXPECT_THROWS(multiply(true, false, a, a, d, 0, gelu), "\"epilogue_aux\"", "BFloat16", "Float16");
  gelu.tensor(kNVTEMatmulConfigBiasTensor, bias).tensor(kNVTEMatmulConfigEpilogueAuxTensor, floats);
  EXPECT_THROWS(multiply(true, false, a, a, floats, 0, gelu), "bias, GELU and a Float32");
  Config dgelu;
  dgelu.flag(kNVTEMatmulConfigWithDGELUEpilogue, true).tensor(kNVTEMatmulConfigEpilogueAuxTensor, aux);
  EXPECT_THROWS(multiply(true, false, a, a, row_out, 0, dgelu), "dGELU");
  a.data.record(kNVTERowwiseScaleInv, nullptr, kNVTEFloat32, {0});
  EXPECT_THROWS(multiply(true, false, a, e5m2, d), "\"A\"", "row-wise scale_inv", "without data");
}

TEST(block_scaling_refusals) {
  const Blocks a(16, 32, true, false, kNVTEFloat8E4M3), square(16, 32, true, true, kNVTEFloat8E4M3), odd(12, 32, true, false, kNVTEFloat8E4M3);
  Blocks wrong(16, 32, true, false, kNVTEFloat8E4M3);
  Array d({16, 16}, kNVTEBFloat16), small({16, 12}, kNVTEBFloat16), tall({12, 16}, kNVTEBFloat16);
  Fp8Matrix tensor_scaled({16, 32}, kNVTEFloat8E4M3), fp8_d({16, 16}, kNVTEFloat8E4M3, Parts::Rowwise);
  EXPECT_THROWS(multiply(true, false, a.handle, a.handle, d), "UseSplitAccumulator");
  EXPECT_THROWS(multiply(true, false, square.handle, square.handle, d, 0, Config()), "2D by 2D");
  EXPECT_THROWS(multiply(true, false, odd.handle, a.handle, small, 0, Config()), "multiples of 8", "12 and 16");
  EXPECT_THROWS(multiply(true, false, a.handle, odd.handle, tall, 0, Config()), "multiples of 8", "16 and 12");
  EXPECT_THROWS(multiply(true, false, a.handle, tensor_scaled, d, 0, Config()), "compatible scaling modes", "2", "0");
  EXPECT_THROWS(multiply(true, false, a.handle, square.handle, fp8_d, 0, Config()), "\"D\"", "got FP8");
  wrong.record(kNVTERowwiseScaleInv, d);
  EXPECT_THROWS(multiply(true, false, wrong.handle, a.handle, d, 0, Config()), "\"A\"", "(1, 16)", "BFloat16");
  Config gelu;
  gelu.flag(kNVTEMatmulConfigWithGELUEpilogue, true).tensor(kNVTEMatmulConfigEpilogueAuxTensor, d);
  EXPECT_THROWS(multiply(true, false, a.handle, a.handle, d, 0, gelu), "block scaled GEMM");
  NVTETensor mx = nvte_create_tensor(NVTE_MXFP8_1D_SCALING);
  EXPECT_THROWS(multiply(true, false, mx, a.handle, d, 0, Config()), "scaling mode 1", "10.0");
  nvte_destroy_tensor(mx);
}

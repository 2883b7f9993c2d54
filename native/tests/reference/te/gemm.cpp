/* Matrix products and their epilogues against double loops. */
#include <array>

#include "check.h"

using namespace chagres::reference;
using check::Array;
using check::Unset;

namespace {

double gelu_exact(double x) { return 0.5 * x * (1 + std::tanh(0.79788456080286535588 * (x + 0.044715 * x * x * x))); }
double gelu_slope(double x) { return (gelu_exact(x + 1e-6) - gelu_exact(x - 1e-6)) / 2e-6; }

class Config {
 public:
  Config() : handle_(nvte_create_matmul_config()) {}
  ~Config() { nvte_destroy_matmul_config(handle_); }
  Config &tensor(NVTEMatmulConfigAttribute attribute, NVTETensor value) {
    nvte_set_matmul_config_attribute(handle_, attribute, &value, sizeof(value));
    return *this;
  }
  Config &flag(NVTEMatmulConfigAttribute attribute) {
    const uint8_t yes = 1;
    nvte_set_matmul_config_attribute(handle_, attribute, &yes, 1);
    return *this;
  }
  operator NVTEMatmulConfig() const { return handle_; }

 private:
  NVTEMatmulConfig handle_;
};

struct Case {
  size_t m, n, k;
  int transa, transb;
  NVTEDType input, output;
};

struct Operands {
  explicit Operands(const Case &c)
      : a(c.transa ? std::vector<size_t>{c.m, c.k} : std::vector<size_t>{c.k, c.m}, c.input),
        b(c.transb ? std::vector<size_t>{c.k, c.n} : std::vector<size_t>{c.n, c.k}, c.input),
        d({c.n, c.m}, c.output) {
    a.normal();
    b.normal();
    d.normal();
  }
  Array a, b, d;
};

double b_at(const Case &c, const Operands &o, size_t j, size_t l) { return o.b.get(c.transb ? l * c.n + j : j * c.k + l); }

std::vector<double> exact(const Case &c, const Operands &o, double alpha, double beta) {
  std::vector<double> result(c.n * c.m);
  for (size_t j = 0; j < c.n; ++j) {
    for (size_t i = 0; i < c.m; ++i) {
      double sum = 0;
      for (size_t l = 0; l < c.k; ++l) sum += o.a.get(c.transa ? i * c.k + l : l * c.m + i) * b_at(c, o, j, l);
      result[j * c.m + i] = alpha * sum + (beta == 0 ? 0 : beta * o.d.get(j * c.m + i));
    }
  }
  return result;
}

void multiply(const Case &c, Operands &o, float alpha, float beta, NVTEMatmulConfig config) {
  nvte_cublas_gemm_v2(c.transa, c.transb, &alpha, o.a, o.b, &beta, o.d, o.d, nullptr, config, nullptr);
}

/* Sums of k products of order 1, then one rounding. */
double absolute(const Case &c) { return 2e-6 * std::sqrt(static_cast<double>(c.k)) + 1e-6; }

std::vector<Case> cases() {
  std::vector<Case> all;
  const std::vector<std::pair<NVTEDType, NVTEDType>> dtypes = {{kNVTEFloat32, kNVTEFloat32}, {kNVTEBFloat16, kNVTEBFloat16},
                                                               {kNVTEFloat16, kNVTEFloat16}, {kNVTEBFloat16, kNVTEFloat32},
                                                               {kNVTEFloat16, kNVTEFloat32}};
  for (const auto &[input, output] : dtypes) {
    for (int transposes = 0; transposes < 4; ++transposes) {
      for (const auto &[m, n, k] : std::vector<std::array<size_t, 3>>{{1, 1, 1}, {3, 5, 7}, {33, 65, 17}, {513, 66, 31}, {17, 515, 9}}) {
        all.push_back({m, n, k, transposes & 1, transposes >> 1, input, output});
      }
    }
  }
  return all;
}

}  // namespace

TEST(products) {
  for (const Case &c : cases()) {
    Operands o(c);
    const double relative = check::rounding(c.output);
    const std::vector<double> fresh = exact(c, o, 1, 0), accumulated = exact(c, o, 0.5, 1);
    Operands again(c);
    std::memcpy(again.a.data(), o.a.data(), o.a.count() * element_size(c.input));
    std::memcpy(again.b.data(), o.b.data(), o.b.count() * element_size(c.input));
    again.d.fill(NAN); /* beta 0 must not read D */
    multiply(c, again, 1, 0, nullptr);
    EXPECT_CLOSE(again.d.values(), fresh, relative, absolute(c));
    multiply(c, o, 0.5f, 1, nullptr);
    EXPECT_CLOSE(o.d.values(), accumulated, relative, absolute(c));
  }
}

TEST(bias_and_gelu) {
  for (const Case &c : cases()) {
    Operands o(c);
    Array bias({c.m}, c.output), aux({c.n, c.m}, c.output);
    bias.normal();
    const double relative = 2 * check::rounding(c.output);
    std::vector<double> expected = exact(c, o, 1, 0);
    for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias.get(i % c.m);
    multiply(c, o, 1, 0, Config().tensor(kNVTEMatmulConfigBiasTensor, bias));
    EXPECT_CLOSE(o.d.values(), expected, relative, absolute(c));
    Config with_gelu;
    with_gelu.tensor(kNVTEMatmulConfigBiasTensor, bias).flag(kNVTEMatmulConfigWithGELUEpilogue)
        .tensor(kNVTEMatmulConfigEpilogueAuxTensor, aux);
    multiply(c, o, 1, 0, with_gelu);
    EXPECT_CLOSE(aux.values(), expected, relative, absolute(c));
    for (double &value : expected) value = gelu_exact(value);
    EXPECT_CLOSE(o.d.values(), expected, relative, 2 * absolute(c));
  }
}

TEST(gelu_backward) {
  for (const Case &c : cases()) {
    Operands o(c);
    Array aux({c.n, c.m}, c.output), dbias({c.m}, c.output);
    aux.normal();
    std::vector<double> expected = exact(c, o, 1, 0), sums(c.m), magnitudes(c.m);
    for (size_t i = 0; i < expected.size(); ++i) {
      expected[i] *= gelu_slope(aux.get(i));
      sums[i % c.m] += expected[i];
    }
    Config config;
    config.flag(kNVTEMatmulConfigWithDGELUEpilogue).tensor(kNVTEMatmulConfigEpilogueAuxTensor, aux);
    multiply(c, o, 1, 0, config);
    EXPECT_CLOSE(o.d.values(), expected, 2 * check::rounding(c.output), 2 * absolute(c));
    o.d.fill(0);
    multiply(c, o, 1, 0, config.tensor(kNVTEMatmulConfigDBiasTensor, dbias));
    EXPECT_CLOSE(o.d.values(), expected, 2 * check::rounding(c.output), 2 * absolute(c));
    EXPECT_CLOSE(dbias.values(), sums, 2 * check::rounding(c.output), 3 * absolute(c) * std::sqrt(c.n));
  }
}

TEST(bias_gradient_of_a_weight_gradient) {
  for (const Case &c : cases()) {
    Operands o(c);
    Array dbias({c.n}, c.output);
    std::vector<double> sums(c.n);
    for (size_t j = 0; j < c.n; ++j) {
      for (size_t l = 0; l < c.k; ++l) sums[j] += b_at(c, o, j, l);
    }
    const std::vector<double> expected = exact(c, o, 1, 1);
    multiply(c, o, 1, 1, Config().tensor(kNVTEMatmulConfigDBiasTensor, dbias));
    EXPECT_CLOSE(o.d.values(), expected, check::rounding(c.output), absolute(c));
    EXPECT_CLOSE(dbias.values(), sums, check::rounding(c.output), absolute(c));
  }
}

TEST(leading_dimensions_are_flattened) {
  Array a({4, 6}, kNVTEFloat32), x({2, 3, 6}, kNVTEFloat32), y({2, 3, 4}, kNVTEFloat32);
  a.normal();
  x.normal();
  const float one = 1, zero = 0;
  nvte_cublas_gemm_v2(1, 0, &one, a, x, &zero, y, y, nullptr, nullptr, nullptr);
  for (size_t t = 0; t < 6; ++t) {
    for (size_t i = 0; i < 4; ++i) {
      double sum = 0;
      for (size_t l = 0; l < 6; ++l) sum += a.get(i * 6 + l) * x.get(t * 6 + l);
      EXPECT(check::close(y.get(t * 4 + i), sum, 1e-6, 1e-6));
    }
  }
}

TEST(older_functions) {
  const Case c{9, 7, 5, 1, 0, kNVTEBFloat16, kNVTEBFloat16};
  Operands o(c);
  Array bias({9}, kNVTEBFloat16), aux({7, 9}, kNVTEBFloat16);
  Unset workspace, none;
  bias.normal();
  std::vector<double> expected = exact(c, o, 1, 1);
  nvte_cublas_gemm(o.a, o.b, o.d, none, none, true, false, false, workspace, true, false, 0, nullptr);
  EXPECT_CLOSE(o.d.values(), expected, check::rounding(c.output), absolute(c));
  expected = exact(c, o, 2, 0);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] = gelu_exact(expected[i] + bias.get(i % 9));
  nvte_cublas_gemm_scaled(o.a, o.b, o.d, bias, aux, true, false, false, workspace, 2, 0, false, 0, nullptr);
  EXPECT_CLOSE(o.d.values(), expected, 2 * check::rounding(c.output), 2 * absolute(c));
  NVTETensor as[] = {o.a, o.a}, bs[] = {o.b, o.b}, ds[] = {o.d, aux}, nones[] = {none, none}, workspaces[] = {workspace, workspace};
  expected = exact(c, o, 1, 0);
  nvte_multi_tensor_gemm(as, bs, ds, nones, nones, 2, true, false, false, workspaces, false, false, 0, nullptr);
  EXPECT_CLOSE(o.d.values(), expected, check::rounding(c.output), absolute(c));
  EXPECT_CLOSE(aux.values(), expected, check::rounding(c.output), absolute(c));
  /* 0 means none, and without products nothing is looked at. */
  NVTETensor nothing[] = {nullptr, nullptr};
  o.d.fill(0), aux.fill(0);
  nvte_multi_tensor_gemm(as, bs, ds, nothing, nothing, 2, true, false, false, workspaces, false, false, 0, nullptr);
  EXPECT_CLOSE(o.d.values(), expected, check::rounding(c.output), absolute(c));
  EXPECT_CLOSE(aux.values(), expected, check::rounding(c.output), absolute(c));
  NVTETensor second_bias[] = {nullptr, bias}, both[] = {o.d, o.d};
  nvte_multi_tensor_gemm(as, bs, both, second_bias, nothing, 2, true, false, false, workspaces, false, false, 0, nullptr);
  for (size_t i = 0; i < expected.size(); ++i) expected[i] += bias.get(i % 9);
  EXPECT_CLOSE(o.d.values(), expected, check::rounding(c.output), absolute(c));
  for (const int none_at_all : {0, -1}) {
    nvte_multi_tensor_gemm(nullptr, nullptr, nullptr, nullptr, nullptr, none_at_all, true, false, false, nullptr, false, false,
                           0, nullptr);
  }
  EXPECT_THROWS(nvte_cublas_gemm(o.a, o.b, o.d, nullptr, none, true, false, false, workspace, false, false, 0, nullptr),
                "nvte_cublas_gemm", "\"bias\"", "Invalid tensor.");
  EXPECT_THROWS(nvte_multi_tensor_gemm(nullptr, bs, ds, nones, nones, 2, true, false, false, workspaces, false, false, 0, nullptr), "NULL");
}

TEST(empty_products) {
  const float one = 1, zero = 0;
  Array a({4, 6}, kNVTEFloat32), no_rows({0, 6}, kNVTEFloat32), y({0, 4}, kNVTEFloat32), no_k({4, 0}, kNVTEFloat32),
      d({4, 4}, kNVTEFloat32);
  nvte_cublas_gemm_v2(1, 0, &one, a, no_rows, &zero, y, y, nullptr, nullptr, nullptr);
  EXPECT_THROWS(nvte_cublas_gemm_v2(1, 0, &one, no_k, no_k, &zero, d, d, nullptr, nullptr, nullptr), "inner dimension", "0");
}

TEST(refusals) {
  const float one = 1, zero = 0;
  const Case c{4, 3, 5, 1, 0, kNVTEBFloat16, kNVTEBFloat16};
  Operands o(c);
  Array other({3, 4}, kNVTEBFloat16), wrong({3, 6}, kNVTEBFloat16), floats({3, 5}, kNVTEFloat32), half({3, 4}, kNVTEFloat16),
      fp8({4, 5}, kNVTEByte), vector({4}, kNVTEFloat32), small({2}, kNVTEBFloat16), bias({4}, kNVTEBFloat16);
  Unset unset;
  EXPECT_THROWS(nvte_cublas_gemm_v2(1, 0, &one, o.a, o.b, &zero, other, o.d, nullptr, nullptr, nullptr), "nvte_cublas_gemm_v2", "same handle");
  EXPECT_THROWS(nvte_cublas_gemm_v2(1, 0, nullptr, o.a, o.b, &zero, o.d, o.d, nullptr, nullptr, nullptr), "\"alpha\"", "NULL");
  EXPECT_THROWS(nvte_cublas_gemm_v2(1, 0, &one, nullptr, o.b, &zero, o.d, o.d, nullptr, nullptr, nullptr), "Invalid tensor.", "\"A\"");
  EXPECT_THROWS(nvte_cublas_gemm_v2(1, 0, &one, o.a, unset, &zero, o.d, o.d, nullptr, nullptr, nullptr), "\"B\"", "no data");
  EXPECT_THROWS(nvte_cublas_gemm_v2(1, 0, &one, o.a, wrong, &zero, o.d, o.d, nullptr, nullptr, nullptr), "4 x 5", "3 x 6", "5 and 6");
  EXPECT_THROWS(nvte_cublas_gemm_v2(1, 0, &one, o.a, floats, &zero, o.d, o.d, nullptr, nullptr, nullptr), "same dtype", "BFloat16", "Float32");
  EXPECT_THROWS(nvte_cublas_gemm_v2(1, 0, &one, o.a, o.b, &zero, half, half, nullptr, nullptr, nullptr), "\"D\"", "Float16");
  EXPECT_THROWS(nvte_cublas_gemm_v2(1, 0, &one, o.a, o.b, &zero, small, small, nullptr, nullptr, nullptr), "\"D\"", "12 elements", "got 2");
  fp8.record(kNVTERowwiseData, fp8.data(), kNVTEFloat8E4M3, {4, 5});
  EXPECT_THROWS(nvte_cublas_gemm_v2(1, 0, &one, fp8, o.b, &zero, o.d, o.d, nullptr, nullptr, nullptr), "\"A\"", "FP8", "scale_inv", "without data");
  EXPECT_THROWS(multiply(c, o, 1, 0, Config().tensor(kNVTEMatmulConfigBiasTensor, vector)), "\"bias\"", "BFloat16", "Float32");
  EXPECT_THROWS(multiply(c, o, 1, 0, Config().tensor(kNVTEMatmulConfigBiasTensor, small)), "\"bias\"", "4 elements", "got 2");
  EXPECT_THROWS(multiply(c, o, 1, 0, Config().tensor(kNVTEMatmulConfigDBiasTensor, bias)), "\"dbias\"", "3 elements", "got 4");
  EXPECT_THROWS(multiply(c, o, 1, 0, Config().flag(kNVTEMatmulConfigWithGELUEpilogue)), "EpilogueAuxTensor", "not set");
  EXPECT_THROWS(multiply(c, o, 1, 0, Config().tensor(kNVTEMatmulConfigBiasTensor, bias).tensor(kNVTEMatmulConfigDBiasTensor, bias)),
                "Invalid epilogue", "cannot be mixed");
  EXPECT_THROWS(multiply(c, o, 1, 0, static_cast<NVTEMatmulConfig>(&unset)), "Invalid NVTEMatmulConfig");
  NVTETensor scaled = nvte_create_tensor(NVTE_MXFP8_1D_SCALING);
  EXPECT_THROWS(nvte_cublas_gemm_v2(1, 0, &one, scaled, o.b, &zero, o.d, o.d, nullptr, nullptr, nullptr), "scaling mode 1");
  nvte_destroy_tensor(scaled);
}

/* Activations of rows with a factor each, against double precision and finite differences. */
#include <functional>

#include "check.h"

using namespace chagres::reference;
using check::Array;

namespace {

using Forward = std::function<void(NVTETensor, NVTETensor, NVTETensor, int64_t)>;
using Backward = std::function<void(NVTETensor, NVTETensor, NVTETensor, NVTETensor, NVTETensor, int64_t)>;

struct Named {
  std::function<double(double, double)> value;
  Forward forward;
  Backward backward;
  bool gated;
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

std::vector<Named> activations() {
  return {
      {[](double a, double b) { return a * sigmoid(a) * b; },
       [](NVTETensor x, NVTETensor s, NVTETensor y, int64_t g) { nvte_scaled_swiglu(x, s, y, g, nullptr); },
       [](NVTETensor dy, NVTETensor x, NVTETensor s, NVTETensor dx, NVTETensor ds, int64_t g) { nvte_scaled_dswiglu(dy, x, s, dx, ds, g, nullptr); }, true},
      {[](double a, double b) {
         const double gate = std::min(a, 2.03);
         return gate * sigmoid(1.7 * gate) * (std::min(std::max(b, -2.03), 2.03) + 1);
       },
       [](NVTETensor x, NVTETensor s, NVTETensor y, int64_t g) { nvte_scaled_clamped_swiglu(x, s, y, 2.03f, 1.7f, 1, g, nullptr); },
       [](NVTETensor dy, NVTETensor x, NVTETensor s, NVTETensor dx, NVTETensor ds, int64_t g) { nvte_scaled_clamped_dswiglu(dy, x, s, dx, ds, 2.03f, 1.7f, 1, g, nullptr); }, true},
      {[](double a, double b) { return 3 * std::tanh(a / 3) * sigmoid(a) * 2 * std::tanh(b / 2); },
       [](NVTETensor x, NVTETensor s, NVTETensor y, int64_t g) { nvte_scaled_situglu(x, s, y, 3, 2, g, nullptr); },
       [](NVTETensor dy, NVTETensor x, NVTETensor s, NVTETensor dx, NVTETensor ds, int64_t g) { nvte_scaled_dsituglu(dy, x, s, dx, ds, 3, 2, g, nullptr); }, true},
      {[](double a, double) { return a > 0 ? a * a : 0; },
       [](NVTETensor x, NVTETensor s, NVTETensor y, int64_t) { nvte_scaled_srelu(x, s, y, nullptr); },
       [](NVTETensor dy, NVTETensor x, NVTETensor s, NVTETensor dx, NVTETensor ds, int64_t) { nvte_scaled_dsrelu(dy, x, s, dx, ds, nullptr); }, false},
  };
}

struct Case {
  size_t rows, hidden;
  int64_t interleave;
  NVTEDType dtype;
};

const std::vector<Case> kCases = {{3, 1, 0, kNVTEFloat32}, {37, 17, 0, kNVTEBFloat16}, {5, 96, 32, kNVTEFloat32}, {2, 128, 64, kNVTEFloat16}, {4, 1031, 0, kNVTEFloat32}};

size_t index_of_a(const Named &named, const Case &c, size_t row, size_t i) {
  const size_t width = named.gated ? 2 : 1, segment = c.interleave > 0 ? static_cast<size_t>(c.interleave) : c.hidden;
  return (row * c.hidden + i / segment * segment) * width + i % segment;
}

size_t gate_distance(const Case &c) { return c.interleave > 0 ? static_cast<size_t>(c.interleave) : c.hidden; }

}  // namespace

TEST(values_and_gradients) {
  for (const Named &named : activations()) {
    for (const Case &c : kCases) {
      const size_t width = named.gated ? 2 : 1;
      Array x({c.rows, c.hidden * width}, c.dtype), y({c.rows, c.hidden}, c.dtype), dy({c.rows, c.hidden}, c.dtype), scales({c.rows}, kNVTEFloat32),
          dx({c.rows, c.hidden * width}, kNVTEFloat32), dscales({c.rows}, kNVTEFloat32);
      x.normal(2);
      dy.normal();
      scales.normal();
      named.forward(x, scales, y, c.interleave);
      named.backward(dy, x, scales, dx, dscales, c.interleave);
      std::vector<double> values(y.count()), gradients(dx.count()), sums(c.rows);
      const double step = 1e-6;
      for (size_t row = 0; row < c.rows; ++row) {
        for (size_t i = 0; i < c.hidden; ++i) {
          const size_t at = index_of_a(named, c, row, i);
          const double a = x.get(at), b = named.gated ? x.get(at + gate_distance(c)) : 0, s = scales.get(row), d = dy.get(row * c.hidden + i);
          values[row * c.hidden + i] = named.value(a, b) * s;
          gradients[at] = d * s * (named.value(a + step, b) - named.value(a - step, b)) / (2 * step);
          if (named.gated) gradients[at + gate_distance(c)] = d * s * (named.value(a, b + step) - named.value(a, b - step)) / (2 * step);
          sums[row] += d * named.value(a, b);
        }
      }
      EXPECT_CLOSE(y.values(), values, 2 * check::rounding(c.dtype), 1e-5);
      EXPECT_CLOSE(dx.values(), gradients, 1e-5, 2e-5);
      EXPECT_CLOSE(dscales.values(), sums, 1e-5, 1e-3);
      dx.fill(0);
      named.backward(dy, x, scales, dx, nullptr, c.interleave);
      EXPECT_CLOSE(dx.values(), gradients, 1e-5, 2e-5);
    }
  }
}

TEST(refusals) {
  Array x({4, 64}, kNVTEFloat32), y({4, 32}, kNVTEFloat32), scales({4}, kNVTEFloat32), few({3}, kNVTEFloat32), wide({4, 66}, kNVTEFloat32);
  EXPECT_THROWS(nvte_scaled_swiglu(wide, scales, y, 0, nullptr), "nvte_scaled_swiglu", "\"input\"", "4 x 64", "4 x 66");
  EXPECT_THROWS(nvte_scaled_swiglu(x, few, y, 0, nullptr), "\"act_scales\"", "4 elements", "got 3");
  EXPECT_THROWS(nvte_scaled_swiglu(x, scales, y, 16, nullptr), "\"glu_interleave_size\"", "multiple of 32", "got 16");
  EXPECT_THROWS(nvte_scaled_swiglu(x, scales, y, 64, nullptr), "divides the last dimension 32", "got 64");
  EXPECT_THROWS(nvte_scaled_dswiglu(y, x, scales, wide, nullptr, 0, nullptr), "nvte_scaled_dswiglu", "\"grad_input\"", "4 x 66");
  EXPECT_THROWS(nvte_scaled_dswiglu(y, x, scales, x, few, 0, nullptr), "\"grad_act_scales\"", "got 3");
  EXPECT_THROWS(nvte_scaled_situglu(x, scales, y, 0, 1, 0, nullptr), "nvte_scaled_situglu", "\"beta1\"", "0 and 1");
  EXPECT_THROWS(nvte_scaled_dsituglu(y, x, scales, x, nullptr, 1, INFINITY, 0, nullptr), "\"beta2\"", "1 and inf");
  EXPECT_THROWS(nvte_scaled_srelu(x, scales, y, nullptr), "nvte_scaled_srelu", "\"input\"", "4 x 32", "4 x 64");
}

/* Activations against double precision, their gradients against finite differences. */
#include <functional>

#include "check.h"

using namespace chagres::reference;
using check::Array;

namespace {

using Call = void (*)(NVTETensor, NVTETensor, cudaStream_t);
using Gradient = void (*)(NVTETensor, NVTETensor, NVTETensor, cudaStream_t);

struct Named {
  const char *name;
  double (*value)(double);
  Call forward;
  Gradient backward;
  Call gated_forward;
  Gradient gated_backward;
};

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

const Named kActivations[] = {
    {"gelu", [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); }, nvte_gelu, nvte_dgelu, nvte_geglu, nvte_dgeglu},
    {"silu", [](double x) { return x * sigmoid(x); }, nvte_silu, nvte_dsilu, nvte_swiglu, nvte_dswiglu},
    {"relu", [](double x) { return x > 0 ? x : 0; }, nvte_relu, nvte_drelu, nvte_reglu, nvte_dreglu},
    {"qgelu", [](double x) { return x * sigmoid(1.702 * x); }, nvte_qgelu, nvte_dqgelu, nvte_qgeglu, nvte_dqgeglu},
    {"srelu", [](double x) { return x > 0 ? x * x : 0; }, nvte_srelu, nvte_dsrelu, nvte_sreglu, nvte_dsreglu},
    {"sigmoid", sigmoid, nullptr, nullptr, nvte_glu, nvte_dglu},
};

double slope(const Named &activation, double x) {
  const double step = 1e-6;
  if (std::string(activation.name) == "relu") return x > 0;
  return (activation.value(x + step) - activation.value(x - step)) / (2 * step);
}

constexpr NVTEDType kDtypes[] = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16};

}  // namespace

TEST(values_and_gradients) {
  for (const Named &activation : kActivations) {
    if (activation.forward == nullptr) continue;
    for (const NVTEDType dtype : kDtypes) {
      for (const size_t columns : {1, 31, 8192, 8195}) {
        Array x({2, columns}, dtype), y({2, columns}, dtype), dy({2, columns}, dtype), dx({2, columns}, dtype);
        x.normal(3);
        dy.normal();
        float amax = 0;
        const check::Known known_amax(amax);
        y.record(kNVTEAmax, &amax, kNVTEFloat32, {1});
        activation.forward(x, y, nullptr);
        activation.backward(dy, x, dx, nullptr);
        std::vector<double> expected_y(x.count()), expected_dx(x.count());
        double largest = 0;
        for (size_t i = 0; i < x.count(); ++i) {
          expected_y[i] = activation.value(x.get(i));
          expected_dx[i] = dy.get(i) * slope(activation, x.get(i));
          largest = std::max(largest, std::fabs(expected_y[i]));
        }
        EXPECT_CLOSE(y.values(), expected_y, 2 * check::rounding(dtype), 2e-6);
        EXPECT_CLOSE(dx.values(), expected_dx, 2 * check::rounding(dtype), 1e-5);
        EXPECT(check::close(amax, largest, 1e-5, 1e-6));
      }
    }
  }
}

TEST(gated_values_and_gradients) {
  for (const Named &activation : kActivations) {
    for (const NVTEDType dtype : kDtypes) {
      for (const size_t columns : {1, 17, 300}) {
        const size_t rows = 37;
        Array x({rows, 2 * columns}, dtype), y({rows, columns}, dtype), dy({rows, columns}, dtype), dx({rows, 2 * columns}, dtype);
        x.normal(2);
        dy.normal();
        float amax = 0;
        const check::Known known_amax(amax);
        y.record(kNVTEAmax, &amax, kNVTEFloat32, {1});
        activation.gated_forward(x, y, nullptr);
        activation.gated_backward(dy, x, dx, nullptr);
        std::vector<double> expected_y(y.count()), expected_dx(x.count());
        double largest = 0;
        for (size_t i = 0; i < y.count(); ++i) {
          const size_t at = i / columns * 2 * columns + i % columns;
          const double a = x.get(at), b = x.get(at + columns);
          expected_y[i] = activation.value(a) * b;
          expected_dx[at] = dy.get(i) * slope(activation, a) * b;
          expected_dx[at + columns] = dy.get(i) * activation.value(a);
          largest = std::max(largest, std::fabs(expected_y[i]));
        }
        EXPECT_CLOSE(y.values(), expected_y, 2 * check::rounding(dtype), 4e-6);
        EXPECT_CLOSE(dx.values(), expected_dx, 2 * check::rounding(dtype), 2e-5);
        EXPECT(check::close(amax, largest, 1e-5, 1e-6));
      }
    }
  }
}

namespace {

/* Clamped SwiGLU as its authors write it: both halves bounded, the second moved. */
struct Clamped {
  float limit, alpha, offset;

  double gate(double a) const { return std::min(a, double{limit}); }
  double linear(double b) const { return std::clamp(b, -double{limit}, double{limit}) + double{offset}; }
  double swish(double c) const { return c * sigmoid(double{alpha} * c); }
  double value(double a, double b) const { return swish(gate(a)) * linear(b); }
  double slope_of_a(double a, double b) const {
    const double s = sigmoid(double{alpha} * a);
    return a > double{limit} ? 0 : (s + double{alpha} * a * s * (1 - s)) * linear(b);
  }
  double slope_of_b(double a, double b) const { return std::fabs(b) > double{limit} ? 0 : swish(gate(a)); }
};

void check_clamped(const Clamped &exact, NVTEDType dtype, size_t columns) {
  const size_t rows = 37;
  Array x({rows, 2 * columns}, dtype), y({rows, columns}, dtype), dy({rows, columns}, dtype),
      dx({rows, 2 * columns}, dtype);
  x.normal(2);
  x.set(0, double{exact.limit}); /* on the bounds the gradient passes */
  x.set(columns, -double{exact.limit});
  dy.normal();
  float amax = 0;
  const check::Known known_amax(amax);
  y.record(kNVTEAmax, &amax, kNVTEFloat32, {1});
  nvte_clamped_swiglu_v2(x, y, exact.limit, exact.alpha, exact.offset, nullptr);
  nvte_clamped_dswiglu_v2(dy, x, dx, exact.limit, exact.alpha, exact.offset, nullptr);
  std::vector<double> expected_y(y.count()), expected_dx(x.count());
  double largest = 0;
  size_t bounded = 0;
  for (size_t i = 0; i < y.count(); ++i) {
    const size_t at = i / columns * 2 * columns + i % columns;
    const double a = x.get(at), b = x.get(at + columns);
    bounded += a > double{exact.limit} || std::fabs(b) > double{exact.limit};
    expected_y[i] = exact.value(a, b);
    expected_dx[at] = dy.get(i) * exact.slope_of_a(a, b);
    expected_dx[at + columns] = dy.get(i) * exact.slope_of_b(a, b);
    largest = std::max(largest, std::fabs(expected_y[i]));
  }
  EXPECT(exact.limit > 3 || bounded > 0);
  EXPECT_CLOSE(y.values(), expected_y, 2 * check::rounding(dtype), 4e-6);
  EXPECT_CLOSE(dx.values(), expected_dx, 2 * check::rounding(dtype), 2e-5);
  EXPECT(check::close(amax, largest, 1e-5, 1e-6));
}

}  // namespace

TEST(clamped_swiglu_values_and_gradients) {
  for (const Clamped &exact : {Clamped{7, 1.702f, 1}, {1.5f, 1.702f, 1}, {2, 1, 0}, {0.5f, 3, -0.25f}})
    for (const NVTEDType dtype : kDtypes)
      for (const size_t columns : {1, 17, 300}) check_clamped(exact, dtype, columns);
}

TEST(clamped_swiglu_without_an_offset_has_one_of_1) {
  Array x({5, 34}, kNVTEFloat32), dy({5, 17}, kNVTEFloat32), y({5, 17}, kNVTEFloat32), y2({5, 17}, kNVTEFloat32),
      dx({5, 34}, kNVTEFloat32), dx2({5, 34}, kNVTEFloat32);
  x.normal(2);
  dy.normal();
  nvte_clamped_swiglu(x, y, 1.5f, 1.702f, nullptr);
  nvte_clamped_swiglu_v2(x, y2, 1.5f, 1.702f, 1, nullptr);
  EXPECT(y.values() == y2.values());
  nvte_clamped_dswiglu(dy, x, dx, 1.5f, 1.702f, nullptr);
  nvte_clamped_dswiglu_v2(dy, x, dx2, 1.5f, 1.702f, 1, nullptr);
  EXPECT(dx.values() == dx2.values());
}

namespace {

/* SiTU-GLU: both factors bounded by a tangent. */
struct Situ {
  double beta1, beta2;

  double gate(double a) const { return beta1 * std::tanh(a / beta1) * sigmoid(a); }
  double linear(double b) const { return beta2 * std::tanh(b / beta2); }
};

void check_situ(const Situ &exact, NVTEDType dtype, size_t columns) {
  const size_t rows = 37;
  const auto beta1 = static_cast<float>(exact.beta1), beta2 = static_cast<float>(exact.beta2);
  Array x({rows, 2 * columns}, dtype), y({rows, columns}, dtype), dy({rows, columns}, dtype), dx({rows, 2 * columns}, dtype);
  x.normal(3);
  dy.normal();
  float amax = 0;
  const check::Known known_amax(amax);
  y.record(kNVTEAmax, &amax, kNVTEFloat32, {1});
  nvte_situglu(x, y, beta1, beta2, nullptr);
  nvte_dsituglu(dy, x, dx, beta1, beta2, nullptr);
  std::vector<double> expected_y(y.count()), expected_dx(x.count());
  double largest = 0;
  const double step = 1e-6;
  for (size_t i = 0; i < y.count(); ++i) {
    const size_t at = i / columns * 2 * columns + i % columns;
    const double a = x.get(at), b = x.get(at + columns), gate = exact.gate(a), linear = exact.linear(b);
    expected_y[i] = gate * linear;
    expected_dx[at] = dy.get(i) * (exact.gate(a + step) - exact.gate(a - step)) / (2 * step) * linear;
    expected_dx[at + columns] = dy.get(i) * gate * (exact.linear(b + step) - exact.linear(b - step)) / (2 * step);
    largest = std::max(largest, std::fabs(expected_y[i]));
  }
  EXPECT_CLOSE(y.values(), expected_y, 2 * check::rounding(dtype), 4e-6);
  EXPECT_CLOSE(dx.values(), expected_dx, 2 * check::rounding(dtype), 2e-5);
  EXPECT(check::close(amax, largest, 1e-5, 1e-6));
}

}  // namespace

TEST(situ_glu_values_and_gradients) {
  for (const Situ &exact : {Situ{4, 25}, {0.5, 2}, {64, 0.75}})
    for (const NVTEDType dtype : kDtypes)
      for (const size_t columns : {1, 17, 300}) check_situ(exact, dtype, columns);
}

/* A NaN becomes the bound that the GPU's fmin and fmax make of it; its gradient is 0. */
TEST(clamped_swiglu_of_nan) {
  Array x({1, 4}, kNVTEFloat32), y({1, 2}, kNVTEFloat32), dy({1, 2}, kNVTEFloat32), dx({1, 4}, kNVTEFloat32);
  const Clamped exact = {2, 1, 1};
  const double values[] = {NAN, 0.5, 0.25, NAN};
  for (size_t i = 0; i < 4; ++i) x.set(i, values[i]);
  dy.fill(1);
  nvte_clamped_swiglu_v2(x, y, exact.limit, exact.alpha, exact.offset, nullptr);
  EXPECT_CLOSE(y.values(), (std::vector<double>{exact.value(2, 0.25), exact.value(0.5, -2)}), 1e-6, 1e-6);
  nvte_clamped_dswiglu_v2(dy, x, dx, exact.limit, exact.alpha, exact.offset, nullptr);
  EXPECT_CLOSE(dx.values(), (std::vector<double>{0, exact.slope_of_a(0.5, -2), exact.slope_of_b(2, 0.25), 0}), 1e-6,
               1e-6);
}

/* Transformer Engine's formulas, in its order of FP32 operations. */
struct Formula {
  const char *name;
  float (*value)(float), (*slope)(float);
};

float float_sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }
float float_sigmoid_slope(float x) { return float_sigmoid(x) * (1.0f - float_sigmoid(x)); }

const Formula kFormulas[] = {
    {"gelu", [](float x) { return x * (0.5f + 0.5f * std::tanh(x * (0.79788456f + 0.03567741f * x * x))); },
     [](float x) {
       const float t = std::tanh(0.79788456f * x * (1.0f + 0.044715f * x * x));
       return 0.5f * x * ((1.0f - t * t) * (0.79788456f + 0.1070322243f * x * x)) + 0.5f * (1.0f + t);
     }},
    {"silu", [](float x) { return x * float_sigmoid(x); },
     [](float x) { return x * float_sigmoid_slope(x) + float_sigmoid(x); }},
    {"relu", [](float x) { return std::fmax(x, 0.0f); }, [](float x) { return x > 0 ? 1.0f : 0.0f; }},
    {"qgelu", [](float x) { return x * float_sigmoid(1.702f * x); },
     [](float x) { return 1.702f * x * float_sigmoid_slope(1.702f * x) + float_sigmoid(1.702f * x); }},
    {"srelu", [](float x) { return x > 0 ? x * x : 0.0f; }, [](float x) { return std::fmax(2.0f * x, 0.0f); }},
    {"sigmoid", float_sigmoid, float_sigmoid_slope},
};

/* The same infinity, NaN where it is NaN, else close; exp is 0 where it is subnormal. */
bool as_wanted(double got, float wanted) {
  if (std::isnan(wanted)) return std::isnan(got);
  return std::isinf(wanted) ? got == wanted : check::close(got, wanted, 2e-6, 2e-36);
}

/* Overflows where Transformer Engine's formulas do, such as GELU's slope from about 5.6e19 on, and nowhere else. */
TEST(extreme_numbers) {
  std::vector<float> numbers;
  for (const float x : {1e-45f, 1e-40f, 1.2e-38f, 1e-19f, 50.0f, 87.5f, 88.5f, 89.0f, 104.0f, 1e10f, 1e19f, 1e20f, 1.9e38f, 3e38f, 3.4e38f}) {
    numbers.push_back(x);
    numbers.push_back(-x);
  }
  for (const Formula &formula : kFormulas) {
    const Named *named = nullptr;
    for (const Named &one : kActivations) named = std::string(one.name) == formula.name ? &one : named;
    for (const float number : numbers) {
      const double other = 0.75;
      Array x({1, 2}, kNVTEFloat32), y({1, 1}, kNVTEFloat32), dy({1, 1}, kNVTEFloat32), dx({1, 2}, kNVTEFloat32);
      x.set(0, number);
      x.set(1, other);
      dy.fill(1);
      named->gated_forward(x, y, nullptr);
      named->gated_backward(dy, x, dx, nullptr);
      const float value = formula.value(number), slope = formula.slope(number);
      EXPECT(as_wanted(y.get(0), value * 0.75f));
      EXPECT(as_wanted(dx.get(0), slope * 0.75f));
      EXPECT(as_wanted(dx.get(1), value));
      if (named->forward == nullptr) continue;
      Array one({1, 1}, kNVTEFloat32), result({1, 1}, kNVTEFloat32);
      one.set(0, number);
      named->forward(one, result, nullptr);
      EXPECT(as_wanted(result.get(0), value));
      named->backward(dy, one, result, nullptr);
      EXPECT(as_wanted(result.get(0), slope));
    }
  }
}

TEST(not_a_number) {
  Array x({4}, kNVTEFloat32), y({4}, kNVTEFloat32);
  for (const Named &activation : kActivations) {
    if (activation.forward == nullptr) continue;
    x.fill(NAN);
    activation.forward(x, y, nullptr);
    const bool flushed = std::string(activation.name) == "relu" || std::string(activation.name) == "srelu";
    EXPECT(flushed ? y.get(0) == 0 : std::isnan(y.get(0))); /* the GPU's fmax(NaN, 0) is 0 */
  }
}

TEST(other_output_dtype_and_no_elements) {
  Array x({3, 5}, kNVTEFloat32), y({3, 5}, kNVTEBFloat16), none({0, 5}, kNVTEFloat32), none_out({0, 5}, kNVTEFloat32);
  x.normal();
  nvte_relu(x, y, nullptr);
  for (size_t i = 0; i < 15; ++i) EXPECT(check::close(y.get(i), std::max(0.0, x.get(i)), 0x1p-8, 0));
  nvte_gelu(none, none_out, nullptr);
  nvte_dgelu(none, none, none_out, nullptr);
}

TEST(refusals) {
  Array x({4, 6}, kNVTEBFloat16), y({4, 6}, kNVTEBFloat16), other({6, 4}, kNVTEBFloat16), floats({4, 6}, kNVTEFloat32),
      odd({4, 5}, kNVTEBFloat16), half({4, 3}, kNVTEBFloat16);
  check::Unset unset;
  EXPECT_THROWS(nvte_gelu(x, other, nullptr), "nvte_gelu", "\"output\"", "(4, 6)", "(6, 4)");
  EXPECT_THROWS(nvte_gelu(unset, y, nullptr), "\"input\"", "no data");
  EXPECT_THROWS(nvte_gelu(nullptr, y, nullptr), "\"input\"", "Invalid tensor.");
  EXPECT_THROWS(nvte_dgelu(floats, x, y, nullptr), "nvte_dgelu", "\"grad\"", "BFloat16", "Float32");
  EXPECT_THROWS(nvte_dgelu(other, x, y, nullptr), "\"grad\"", "(6, 4)");
  EXPECT_THROWS(nvte_geglu(odd, half, nullptr), "nvte_geglu", "\"input\"", "even", "(4, 5)");
  EXPECT_THROWS(nvte_geglu(x, y, nullptr), "\"output\"", "4 x 3", "4 x 6");
  EXPECT_THROWS(nvte_dswiglu(x, x, y, nullptr), "nvte_dswiglu", "\"grad\"", "4 x 3");
  EXPECT_THROWS(nvte_dswiglu(half, x, half, nullptr), "\"output\"", "4 x 6");
  EXPECT_THROWS(nvte_situglu(x, half, 0, 1, nullptr), "nvte_situglu", "\"beta1\"", "0 and 1");
  EXPECT_THROWS(nvte_dsituglu(half, x, x, 1, INFINITY, nullptr), "nvte_dsituglu", "\"beta2\"", "1 and inf");
  EXPECT_THROWS(nvte_situglu(odd, half, 4, 25, nullptr), "nvte_situglu", "\"input\"", "even", "(4, 5)");
  EXPECT_THROWS(nvte_clamped_swiglu(odd, half, 7, 1, nullptr), "nvte_clamped_swiglu", "\"input\"", "even", "(4, 5)");
  EXPECT_THROWS(nvte_clamped_swiglu_v2(x, y, 7, 1, 1, nullptr), "nvte_clamped_swiglu_v2", "\"output\"", "4 x 3");
  EXPECT_THROWS(nvte_clamped_dswiglu(x, x, y, 7, 1, nullptr), "nvte_clamped_dswiglu", "\"grad\"", "4 x 3");
  EXPECT_THROWS(nvte_clamped_dswiglu_v2(half, x, half, 7, 1, 1, nullptr), "nvte_clamped_dswiglu_v2", "\"output\"");
  y.record(kNVTEScale, nullptr, kNVTEFloat32, {1});
  EXPECT_THROWS(nvte_gelu(x, y, nullptr), "\"output\"", "not FP8", "scale", "shape (0)");
  y.record(kNVTEScale, nullptr, kNVTEFloat32, {0});
  nvte_gelu(x, y, nullptr);
  y.record(kNVTEColumnwiseData, other.data(), kNVTEBFloat16, {6, 4});
  EXPECT_THROWS(nvte_gelu(x, y, nullptr), "Unsupported shape", "multiple of 4", "4 x 6");
}

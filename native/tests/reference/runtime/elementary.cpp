/* exp, tanh, sigmoid and GELU against double precision. */
#include "runtime/elementary.h"

#include "check.h"

using namespace chagres::reference;

TEST(exp_against_double) {
  for (double x = -87; x < 88.7; x += 0.00137) {
    const auto value = static_cast<float>(x);
    EXPECT(check::close(fast_exp(value), std::exp(static_cast<double>(value)), 3e-7, 1e-37));
  }
  EXPECT_EQUAL(fast_exp(0.0f), 1.0f);
  EXPECT_EQUAL(fast_exp(-0.0f), 1.0f);
  EXPECT_EQUAL(fast_exp(-200.0f), 0.0f);
  EXPECT_EQUAL(fast_exp(-INFINITY), 0.0f);
  EXPECT(std::isinf(fast_exp(89.0f)) && std::isinf(fast_exp(INFINITY)));
  EXPECT(std::isfinite(fast_exp(88.72f)) && std::isnan(fast_exp(NAN)));
}

/* Every float where the largest finite result is, and where the smallest normal one is. */
TEST(exp_at_its_ends) {
  for (float x = 88.7f; x < 88.75f; x = std::nextafter(x, 100.0f)) {
    const double exact = std::exp(static_cast<double>(x));
    const float value = fast_exp(x);
    EXPECT(exact > std::numeric_limits<float>::max() ? std::isinf(value) : check::close(value, exact, 3e-7, 0));
  }
  for (float x = -87.3f; x > -87.4f; x = std::nextafter(x, -100.0f)) {
    const float value = fast_exp(x);
    EXPECT(value == 0 ? x < -87.3365f : check::close(value, std::exp(static_cast<double>(x)), 3e-7, 0));
  }
}

/* Every float where GELU, tanh and sigmoid ask for the largest exp. */
TEST(no_nan_of_finite_numbers) {
  for (const float first : {10.0f, 44.3f, 88.7f})
    for (float x = first; x < first + 0.1f; x = std::nextafter(x, 100.0f))
      for (const float value : {x, -x}) {
        EXPECT(!std::isnan(fast_tanh(value)) && !std::isnan(fast_sigmoid(value)));
        EXPECT(!std::isnan(gelu(value)) && !std::isnan(gelu_derivative(value)));
      }
}

TEST(tanh_and_sigmoid_against_double) {
  for (double x = -30; x < 30; x += 0.00071) {
    const auto value = static_cast<float>(x);
    EXPECT(check::close(fast_tanh(value), std::tanh(static_cast<double>(value)), 3e-7, 0));
    EXPECT(check::close(fast_sigmoid(value), 1 / (1 + std::exp(-static_cast<double>(value))), 4e-7, 0));
  }
  EXPECT_EQUAL(fast_tanh(INFINITY), 1.0f);
  EXPECT_EQUAL(fast_tanh(-INFINITY), -1.0f);
  EXPECT(std::isnan(fast_tanh(NAN)) && std::isnan(fast_sigmoid(NAN)));
  EXPECT_EQUAL(fast_sigmoid(-INFINITY), 0.0f);
}

TEST(gelu_against_double) {
  const auto exact = [](double x) { return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x))); };
  for (double x = -12; x < 12; x += 0.0013) {
    const auto value = static_cast<float>(x);
    const double at = value, step = 1e-5;
    EXPECT(check::close(gelu(value), exact(at), 1e-6, 1e-6));
    EXPECT(check::close(gelu_derivative(value), (exact(at + step) - exact(at - step)) / (2 * step), 1e-6, 2e-6));
  }
  EXPECT(std::isnan(gelu(NAN)));
}

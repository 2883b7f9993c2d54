/* The softmax family against double: masks, lengths at the kernels' powers of two, dtypes, and what is refused. */
#include "check.h"

using check::Array;

namespace {

struct Case {
  const char *kind; /* "none", "given", "triangular", "aligned" */
  size_t b, h, sq, sk;
  NVTEDType dtype;
  size_t mask_batches;

  bool is(const char *name) const { return std::string(kind) == name; }
  std::vector<size_t> shape() const {
    return is("triangular") ? std::vector<size_t>{b * h, sq, sk} : std::vector<size_t>{b, h, sq, sk};
  }
};

/* Probabilities of one row in double; a score that is masked but present is -10000, one that is absent is NaN. */
std::vector<double> probabilities(const std::vector<double> &scores) {
  double largest = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const double score : scores) largest = std::isnan(score) ? largest : std::max(largest, score);
  std::vector<double> row;
  for (const double score : scores) {
    row.push_back(std::isnan(score) ? 0 : std::exp(score - largest));
    sum += row.back();
  }
  for (double &value : row) value /= sum;
  return row;
}

std::vector<double> expected_row(const Case &c, const Array &x, const Array &mask, size_t row, double scale) {
  const size_t i = row % c.sq, batch = row / (c.h * c.sq);
  std::vector<double> scores;
  bool any = false;
  for (size_t j = 0; j < c.sk; ++j) {
    const bool seen = c.is("triangular") ? j <= i : !c.is("aligned") || j + c.sq <= i + c.sk;
    const size_t at = ((c.mask_batches == 1 ? 0 : batch) * c.sq + i) * c.sk + j;
    const bool hidden = c.is("given") && mask.get(at) == 1;
    scores.push_back(!seen ? std::nan("") : hidden ? -10000 : scale * x.get(row * c.sk + j));
    any = any || (seen && !hidden);
  }
  return any ? probabilities(scores) : std::vector<double>(c.sk);
}

void forward(const Case &c, NVTETensor x, NVTETensor mask, NVTETensor y, float scale) {
  if (c.is("given")) return nvte_scaled_masked_softmax_forward(x, mask, y, scale, nullptr);
  const auto call = c.is("triangular") ? nvte_scaled_upper_triang_masked_softmax_forward
                    : c.is("aligned")  ? nvte_scaled_aligned_causal_masked_softmax_forward
                                       : nvte_scaled_softmax_forward;
  call(x, y, scale, nullptr);
}

void backward(const Case &c, NVTETensor dy, NVTETensor y, NVTETensor dx, float scale) {
  const auto call = c.is("triangular") ? nvte_scaled_upper_triang_masked_softmax_backward
                    : c.is("aligned")  ? nvte_scaled_aligned_causal_masked_softmax_backward
                    : c.is("given")    ? nvte_scaled_masked_softmax_backward
                                       : nvte_scaled_softmax_backward;
  call(dy, y, dx, scale, nullptr);
}

void check_case(const Case &c) {
  const float scale = 0.3f;
  Array x(c.shape(), c.dtype), y(c.shape(), c.dtype), dy(c.shape(), c.dtype), dx(c.shape(), c.dtype);
  Array mask({c.mask_batches, 1, c.sq, c.sk}, kNVTEByte), rounded({1}, c.dtype);
  rounded.set(0, scale);
  x.normal(4);
  dy.normal();
  for (size_t i = 0; i < mask.count(); ++i) mask.set(i, check::random()() % 3 == 0 || i < c.sk);
  forward(c, x, mask, y, scale);
  backward(c, dy, y, dx, scale);

  std::vector<double> y_expected, dx_expected;
  for (size_t row = 0; row < x.count() / c.sk; ++row) {
    const std::vector<double> values = expected_row(c, x, mask, row, rounded.get(0));
    y_expected.insert(y_expected.end(), values.begin(), values.end());
    double sum = 0;
    for (size_t j = 0; j < c.sk; ++j) sum += y.get(row * c.sk + j) * dy.get(row * c.sk + j);
    for (size_t j = 0; j < c.sk; ++j)
      dx_expected.push_back(double{scale} * y.get(row * c.sk + j) * (dy.get(row * c.sk + j) - sum));
  }
  /* Two roundings to storage, and FP32's own: an exponential within 3e-7, of scores up to 20 rounded by 1e-6. */
  const double relative = 2 * check::rounding(c.dtype) + 4e-6;
  EXPECT_CLOSE(y.values(), y_expected, relative, 1e-7);
  EXPECT_CLOSE(dx.values(), dx_expected, relative, 1e-6);
  backward(c, dy, y, dy, scale); /* in place */
  EXPECT(dy.values() == dx.values());
}

}  // namespace

TEST(lengths_and_dtypes) {
  for (const NVTEDType dtype : {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16})
    for (const auto &[sk, block] : {std::pair<size_t, size_t>{1, 256},
                                    {2, 128},
                                    {5, 32},
                                    {16, 16},
                                    {31, 8},
                                    {33, 8},
                                    {64, 8},
                                    {127, 8},
                                    {128, 8},
                                    {129, 4},
                                    {300, 4}}) {
      check_case({"none", 1, 2, block, sk, dtype, 1});
      check_case({"given", 3, 2, block, sk, dtype, 1});
      check_case({"given", 3, 2, block, sk, dtype, 3});
    }
}

TEST(causal_masks) {
  for (const NVTEDType dtype : {kNVTEFloat32, kNVTEBFloat16}) {
    for (const auto &[s, block] : {std::pair<size_t, size_t>{1, 256}, {3, 64}, {33, 8}, {129, 4}})
      check_case({"triangular", block, 1, s, s, dtype, 1});
    for (const auto &[sq, sk] : {std::pair<size_t, size_t>{1, 1}, {5, 5}, {3, 40}, {40, 3}, {129, 130}})
      check_case({"aligned", 2, 3, sq, sk, dtype, 1});
  }
}

/* No visible score reaches -10000: what TE's kernel counts in hidden places takes all the weight. */
TEST(aligned_scores_below_the_masked_value) {
  Array x({1, 1, 2, 2}, kNVTEFloat32), y({1, 1, 2, 2}, kNVTEFloat32);
  x.fill(-20000);
  nvte_scaled_aligned_causal_masked_softmax_forward(x, y, 1, nullptr);
  EXPECT_CLOSE(y.values(), (std::vector<double>{0, 0, 0.5, 0.5}), 1e-6, 0);
}

TEST(empty_rows) {
  Array x({2, 2, 8, 0}, kNVTEBFloat16), y({2, 2, 8, 0}, kNVTEBFloat16);
  nvte_scaled_softmax_forward(x, y, 1, nullptr);
  nvte_scaled_softmax_backward(x, y, x, 1, nullptr);
}

TEST(a_nan_stays_in_its_row) {
  Array x({1, 1, 8, 20}, kNVTEFloat32), y({1, 1, 8, 20}, kNVTEFloat32);
  x.normal();
  x.set(25, std::nan(""));
  nvte_scaled_softmax_forward(x, y, 1, nullptr);
  for (size_t i = 0; i < y.count(); ++i) EXPECT_EQUAL(std::isnan(y.get(i)), i / 20 == 1);
}

TEST(refused_arguments) {
  Array x({1, 2, 8, 20}, kNVTEBFloat16), y({1, 2, 8, 20}, kNVTEBFloat16), other({1, 2, 8, 21}, kNVTEBFloat16);
  Array half({1, 2, 8, 20}, kNVTEFloat16), odd({1, 2, 7, 20}, kNVTEBFloat16), flat({16, 20}, kNVTEBFloat16);
  Array mask({2, 1, 8, 20}, kNVTEByte), words({1, 1, 8, 20}, kNVTEInt32), wide({1, 1, 4, 16385}, kNVTEBFloat16);
  Array integers({1, 2, 8, 20}, kNVTEInt32), square({4, 20, 20}, kNVTEBFloat16);
  EXPECT_THROWS(nvte_scaled_softmax_forward(nullptr, y, 1, nullptr), "nvte_scaled_softmax_forward", "Invalid tensor");
  EXPECT_THROWS(nvte_scaled_softmax_forward(x, other, 1, nullptr), "\"softmax_results\"", "shape of \"input\"");
  EXPECT_THROWS(nvte_scaled_softmax_forward(x, half, 1, nullptr), "\"softmax_results\"", "BFloat16, got Float16");
  EXPECT_THROWS(nvte_scaled_softmax_forward(integers, integers, 1, nullptr), "\"input\"", "got Int32");
  EXPECT_THROWS(nvte_scaled_softmax_forward(flat, flat, 1, nullptr), "[b, h, sq, sk], got (16, 20)");
  EXPECT_THROWS(nvte_scaled_softmax_forward(odd, odd, 1, nullptr), "Unsupported shape", "multiple of 8, got 7");
  EXPECT_THROWS(nvte_scaled_softmax_forward(wide, wide, 1, nullptr), "Unsupported shape", "16384 keys, got 16385");
  EXPECT_THROWS(nvte_scaled_softmax_backward(wide, wide, wide, 1, nullptr), "nvte_scaled_softmax_backward", "16385");
  EXPECT_THROWS(nvte_scaled_masked_softmax_forward(x, mask, y, 1, nullptr), "(1 or 1, 1, 8, 20), got (2, 1, 8, 20)");
  EXPECT_THROWS(nvte_scaled_masked_softmax_forward(x, words, y, 1, nullptr),
                "\"mask\" must have dtype Byte, got Int32");
  EXPECT_THROWS(nvte_scaled_upper_triang_masked_softmax_forward(x, y, 1, nullptr), "[b h, s, s], got (1, 2, 8, 20)");
  EXPECT_THROWS(nvte_scaled_upper_triang_masked_softmax_forward(square, square, 1, nullptr), "b h", "8, got 4");
  EXPECT_THROWS(nvte_scaled_masked_softmax_backward(other, y, x, 1, nullptr), "\"incoming_grads\"", "(1, 2, 8, 21)");
  EXPECT_THROWS(nvte_scaled_aligned_causal_masked_softmax_backward(x, half, x, 1, nullptr), "\"softmax_results\"",
                "BFloat16, got Float16");
  EXPECT_THROWS(nvte_scaled_aligned_causal_masked_softmax_forward(flat, flat, 1, nullptr), "[b, h, sq, sk]");
  EXPECT_THROWS(nvte_scaled_upper_triang_masked_softmax_backward(x, x, x, 1, nullptr), "[b h, s, s]");
}

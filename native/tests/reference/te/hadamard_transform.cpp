/* Random Hadamard transforms of transposes: against sums in double precision, error texts. */
#include "check.h"

using namespace chagres::reference;
using check::Array;

namespace {

constexpr size_t kSize = 16;

bool is_odd(size_t bits) { return __builtin_popcountll(bits) % 2 != 0; }

/* Sum n of the 16 numbers that begin at row `first` of column `column`. */
double sum_of(const Array &x, size_t columns, size_t first, size_t column, size_t n, size_t mask) {
  double sum = 0;
  for (size_t k = 0; k < kSize; ++k) {
    const double value = x.get((first + k) * columns + column);
    sum += is_odd(n & k) != is_odd(mask >> k & 1u) ? -value : value;
  }
  return sum / 4;
}

void expect_transformed(const std::vector<size_t> &dimensions, int mask) {
  Array x(dimensions, kNVTEBFloat16);
  x.normal();
  const size_t columns = dimensions.back(), rows = x.count() / columns;
  Array y({columns, rows}, kNVTEBFloat16);
  nvte_hadamard_transform(x, y, 0, mask, nullptr);
  std::vector<double> expected(y.count());
  for (size_t c = 0; c < columns; ++c) {
    for (size_t r = 0; r < rows; ++r) {
      expected[c * rows + r] = sum_of(x, columns, r / kSize * kSize, c, r % kSize, static_cast<size_t>(mask));
    }
  }
  EXPECT_CLOSE(y.values(), expected, check::rounding(kNVTEBFloat16), 1e-6);
}

}  // namespace

TEST(sums_of_sixteen_rows) {
  for (const int mask : {0, 1, 0x8000, 0xffff, 0x5a3c}) {
    expect_transformed({16, 16}, mask);
    expect_transformed({48, 32}, mask);
    expect_transformed({2, 8, 80}, mask);
  }
  expect_transformed({272, 1040}, 0x1234);
}

/* One number of a column alone: 16 quarters of it, whose signs are a column of the matrix. */
TEST(one_number_becomes_sixteen) {
  for (size_t k = 0; k < kSize; ++k) {
    Array x({16, 16}, kNVTEBFloat16), y({16, 16}, kNVTEBFloat16);
    x.set(k * 16 + 3, 8);
    nvte_hadamard_transform(x, y, 0xffff, 1 << 5, nullptr);
    for (size_t i = 0; i < y.count(); ++i) {
      EXPECT_EQUAL(y.get(i), i / 16 != 3 ? 0.0 : is_odd(i % 16 & k) != (k == 5) ? -2.0 : 2.0);
    }
  }
}

TEST(what_is_not_finite_stays_in_its_sixteen) {
  Array x({32, 16}, kNVTEBFloat16), y({16, 32}, kNVTEBFloat16);
  x.fill(1);
  x.set(2 * 16 + 7, NAN);
  x.set(17 * 16 + 7, INFINITY);
  nvte_hadamard_transform(x, y, 0, 0, nullptr);
  for (size_t i = 0; i < y.count(); ++i) {
    const double value = y.get(i);
    if (i / 32 != 7) EXPECT_EQUAL(value, i % 16 == 0 ? 4.0 : 0.0);
    else if (i % 32 < 16) EXPECT(std::isnan(value));
    else EXPECT_EQUAL(value, i % 2 == 0 ? INFINITY : -INFINITY);
  }
}

TEST(refusals) {
  Array x({32, 48}, kNVTEBFloat16), y({48, 32}, kNVTEBFloat16), narrow({32, 48}, kNVTEBFloat16), half({48, 32}, kNVTEFloat16),
      odd({24, 48}, kNVTEBFloat16), thin({32, 40}, kNVTEBFloat16), row({256}, kNVTEBFloat16), none({0, 16}, kNVTEBFloat16);
  const auto transform = [](NVTETensor input, NVTETensor output) { nvte_hadamard_transform(input, output, 0, 0, nullptr); };
  EXPECT_THROWS(transform(half, y), "nvte_hadamard_transform", "\"input\"", "BFloat16", "Float16");
  EXPECT_THROWS(transform(x, half), "\"output\"", "BFloat16", "Float16");
  EXPECT_THROWS(transform(odd, y), "\"input\"", "16 rows and columns", "(24, 48)");
  EXPECT_THROWS(transform(thin, y), "\"input\"", "(32, 40)");
  EXPECT_THROWS(transform(row, y), "\"input\"", "two dimensions", "(256)");
  EXPECT_THROWS(transform(none, y), "\"input\"", "(0, 16)");
  EXPECT_THROWS(transform(x, narrow), "\"output\"", "48", "32");
}

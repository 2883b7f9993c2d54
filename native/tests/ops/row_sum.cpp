/* row_sum. */
#include <limits>

#include "harness/report.h"
#include "harness/wanted_sum.h"

namespace chagres::tests {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void row_sum_case(Session &session, int dtype, int64_t rows, int64_t columns, float beta, int64_t offset) {
  Case test(session, "row_sum", dtype,
            shape_text({{"rows", rows}, {"columns", columns}, {"offset", offset}}) + " beta=" + std::to_string(beta));
  const Doubles x = session.random.normal(format_of(dtype), rows * columns);
  const Doubles old = session.random.normal(kFormats[0], columns);
  WantedSum wanted(old, beta);
  for (int64_t i = 0; i < rows * columns; ++i) wanted.add(i % columns, x[static_cast<size_t>(i)]);
  Buffer in = session.floats(dtype, x, offset);
  Buffer sum = session.floats(4, beta == 0 ? Doubles(old.size(), kNan) : old, offset);
  if (test.run({&sum}, [&] {
        return session.ops.row_sum(in.data(), sum.data<float>(), beta, rows, columns, dtype, session.memory.stream());
      }))
    test.close(4, test.output(0, 4), wanted.value, wanted.scale, kSumSlack, "sum");
}

}  // namespace

void row_sum_cases(Session &session) {
  const int64_t sums[][2] = {{0, 9},      {3, 0},     {1, 1},       {1, 300},   {127, 8},    {128, 64},
                             {129, 33},   {257, 320}, {600, 24},    {70, 1026}, {1000, 640}, {4097, 65},
                             {300, 4104}, {40000, 1}, {16384, 320}, {3, 70001}, {2500, 5120}, {2, 4},
                             {4, 1028},   {7, 516},   {8, 70000},   {16, 36},    {17, 36}};
  for (const auto &[rows, columns] : sums) {
    if (rows * columns > 100000 && !session.large) continue;
    for (const Format &format : kFormats)
      for (int64_t offset : {0, 1}) {
        row_sum_case(session, format.dtype, rows, columns, 0, offset);
        row_sum_case(session, format.dtype, rows, columns, 0.5f, offset);
      }
  }
}

}  // namespace chagres::tests

/* quantization_statistics against plain double precision. */
#include <cmath>
#include <limits>

#include "harness/fp8.h"
#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

constexpr int64_t kSizes[][2] = {{0, 16}, {3, 0}, {1, 1}, {1, 8}, {5, 300}, {8, 257}, {130, 264}};

/* How many elements x, and how many bytes q, begin behind an address that suits packs. */
struct Offsets {
  int64_t x, q;
};

void statistics_case(Session &session, int dtype, int64_t rows, int64_t columns, int scaling, int fp8, Offsets offsets) {
  Case test(session, "quantization_statistics", dtype,
            shape_text({{"rows", rows},
                        {"columns", columns},
                        {"scaling", scaling},
                        {"fp8", fp8},
                        {"offset of x", offsets.x},
                        {"of q", offsets.q}}));
  Doubles x = session.random.normal(format_of(dtype), rows * columns);
  std::vector<uint8_t> q(x.size());
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<uint8_t>(i * 37 % 251);
  if (x.size() > 8) {
    x[1] = 0;
    x[3] = std::numeric_limits<double>::quiet_NaN();
    x[5] = -kInfinity;
    x.back() = kInfinity;
    q[2] = 0;
    q[4] = 0x80;
  }
  const int64_t across = (columns + 127) / 128, stride = scaling == 2 ? rows + 3 : across + 1;
  const int64_t scales = scaling == 0 ? 1 : scaling == 2 ? across * stride : (rows + 127) / 128 * stride;
  Doubles inverse(static_cast<size_t>(std::max<int64_t>(scales, 1)));
  for (size_t i = 0; i < inverse.size(); ++i) inverse[i] = std::ldexp(1 + static_cast<double>(i % 3) / 4, -9);
  const double largest_q = fp8 == 7 ? 448 : 57344, count = static_cast<double>(rows * columns);
  Doubles wanted(6, 0);
  if (count > 0) wanted[4] = kInfinity;
  for (int64_t i = 0; i < rows * columns; ++i) {
    const int64_t r = i / columns, c = i % columns;
    const double s = inverse[static_cast<size_t>(
        scaling == 0 ? 0 : scaling == 2 ? c / 128 * stride + r : r / 128 * stride + c / 128)];
    const double value = x[static_cast<size_t>(i)];
    wanted[4] = std::min(wanted[4], 1 / s);
    wanted[5] = std::max(wanted[5], 1 / s);
    if (std::isnan(value)) continue;
    wanted[2] += std::fabs(value) > 1.001 * largest_q * s ? 1 / count : 0;
    if (std::isinf(value)) continue;
    const double stored = fp8_value(q[static_cast<size_t>(i)], fp8 == 7 ? 3 : 2);
    wanted[0] = std::max(wanted[0], std::fabs(value));
    wanted[1] += value != 0 && stored == 0 ? 1 / count : 0;
    const double error = value - stored * s;
    if (std::isfinite(error)) wanted[3] += error * error / count;
  }
  Buffer in = session.floats(dtype, x, offsets.x), bytes(session.memory, q, static_cast<size_t>(offsets.q));
  Buffer scale = session.floats(4, inverse);
  Buffer out = session.floats(4, Doubles(6, -1));
  if (test.run({&out}, [&] {
        return session.ops.quantization_statistics(in.data(), bytes.data(), scale.data<float>(), out.data<float>(), rows,
                                                   columns, stride, scaling, dtype, fp8, session.memory.stream());
      })) {
    Doubles size(6);
    for (size_t i = 0; i < 6; ++i) size[i] = std::fabs(wanted[i]);
    test.close(4, test.output(0, 4), wanted, size, 64, "statistics");
  }
}

}  // namespace

void quantization_statistics_cases(Session &session) {
  for (const Format &format : kFormats)
    for (int scaling : {0, 2, 3})
      for (int fp8 : {7, 8})
        for (const auto &[rows, columns] : kSizes)
          statistics_case(session, format.dtype, rows, columns, scaling, fp8, {0, 0});
  for (const Format &format : kFormats)
    for (int scaling : {0, 2, 3})
      for (const Offsets offsets : {Offsets{1, 0}, Offsets{0, 1}, Offsets{0, 8}, Offsets{1, 3}})
        statistics_case(session, format.dtype, 9, 144, scaling, 7, offsets);
  /* More than the blocks of threads take at once. */
  statistics_case(session, 6, 1201, 1040, 2, 7, {0, 0});
  statistics_case(session, 6, 1201, 1041, 3, 8, {0, 0});
  if (!session.large) return;
  for (int scaling : {0, 2, 3}) statistics_case(session, 6, 4097, 1280, scaling, 7, {0, 0});
  statistics_case(session, 6, 4097, 1281, 0, 8, {0, 0});
}

}  // namespace chagres::tests

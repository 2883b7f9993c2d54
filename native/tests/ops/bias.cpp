/* bias_add: with and without a residual, in place and not, aligned and not. */
#include <limits>

#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

enum class Place { kApart, kX, kResidual }; /* of y */

struct Shape {
  int dtype;
  int64_t rows, columns, offset;
  bool with_residual;
  Place place;
};

void bias_case(Session &session, const Shape &shape) {
  Case test(session, "bias_add", shape.dtype,
            shape_text({{"rows", shape.rows},
                        {"columns", shape.columns},
                        {"offset", shape.offset},
                        {"residual", shape.with_residual},
                        {"y is", static_cast<int64_t>(shape.place)}}));
  const Format &format = format_of(shape.dtype);
  const int64_t count = shape.rows * shape.columns;
  const Doubles x = session.random.normal(format, count), residual = session.random.normal(format, count);
  const Doubles bias = session.random.normal(format, shape.columns);
  Doubles wanted, scale;
  for (size_t i = 0; i < x.size(); ++i) {
    const double summand = bias[i % bias.size()], base = shape.with_residual ? residual[i] : 0;
    wanted.push_back(x[i] + summand + base);
    scale.push_back(std::fabs(x[i]) + std::fabs(summand) + std::fabs(base));
  }
  Buffer in = session.floats(shape.dtype, x, shape.offset), other = session.floats(shape.dtype, residual, shape.offset);
  Buffer summand = session.floats(shape.dtype, bias, shape.offset);
  Buffer apart = session.floats(shape.dtype, Doubles(x.size(), kNan), shape.offset);
  Buffer &y = shape.place == Place::kX ? in : shape.place == Place::kResidual ? other : apart;
  if (test.run({&y}, [&] {
        return session.ops.bias_add(in.data(), summand.data(), shape.with_residual ? other.data() : nullptr, y.data(),
                                    shape.rows, shape.columns, shape.dtype, session.memory.stream());
      }))
    test.close(shape.dtype, test.output(0, shape.dtype), wanted, scale, 2, "y");
}

}  // namespace

void bias_cases(Session &session) {
  const int64_t shapes[][2] = {{0, 8}, {3, 0}, {1, 1}, {5, 7}, {3, 8}, {17, 24}, {9, 320}, {70, 1280}};
  for (const auto &[rows, columns] : shapes)
    for (const Format &format : kFormats)
      for (int64_t offset : {0, 1}) {
        bias_case(session, {format.dtype, rows, columns, offset, false, Place::kApart});
        bias_case(session, {format.dtype, rows, columns, offset, false, Place::kX});
        for (Place place : {Place::kApart, Place::kX, Place::kResidual})
          bias_case(session, {format.dtype, rows, columns, offset, true, place});
      }
  if (session.large) { /* so many that grids stride */
    bias_case(session, {6, 16411, 1288, 0, true, Place::kX});
    bias_case(session, {4, 4099, 333, 0, true, Place::kApart});
  }
}

}  // namespace chagres::tests

/* gated_gradient: every gate against double precision, in rounding, cast, transpose and largest magnitude. */
#include <cmath>
#include <limits>

#include "harness/fp8.h"
#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN(), kInfinity = std::numeric_limits<double>::infinity();
constexpr float kLimit = 1.5f, kAlpha = 1.25f, kOffset = 0.5f;
constexpr float kScale = 96;
constexpr double kOldAmax = 0.25;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

/* f(a), f'(a), and the size of what f' sums. */
struct Derivative {
  double value, slope, size;
};

Derivative swish(double a, double alpha) {
  const double s = sigmoid(alpha * a);
  return {a * s, alpha * a * s * (1 - s) + s, std::fabs(alpha * a * s * (1 - s)) + s};
}

Derivative derivative(int gate, double a) {
  const double s = sigmoid(a), inner = std::sqrt(2 / std::acos(-1.0)) * (a + 0.044715 * a * a * a), t = std::tanh(inner);
  const double inner_slope = std::sqrt(2 / std::acos(-1.0)) * (1 + 3 * 0.044715 * a * a);
  switch (gate) {
    case OPS_GEGLU:
      return {a / 2 * (1 + t), (1 + t) / 2 + a / 2 * (1 - t * t) * inner_slope,
              1 + std::fabs(a) * inner_slope};
    case OPS_GLU: return {s, s * (1 - s), s};
    case OPS_QGEGLU: return swish(a, 1.702);
    case OPS_REGLU: return {a > 0 ? a : 0, a > 0 ? 1.0 : 0.0, 1};
    case OPS_SREGLU: return {a > 0 ? a * a : 0, a > 0 ? 2 * a : 0, 2 * std::fabs(a)};
    default: return swish(a, 1);
  }
}

/* One number of dx, and how large the terms are whose roundings it has. */
struct Gradient {
  double value, size;
};

struct Gradients {
  Gradient a, b;
};

Gradients gradients(int gate, double dy, double a, double b) {
  if (gate != OPS_CLAMPED_SWIGLU) {
    const Derivative f = derivative(gate, a);
    return {{dy * f.slope * b, std::fabs(dy * b) * f.size}, {dy * f.value, std::fabs(dy) * (std::fabs(f.value) + std::fabs(a))}};
  }
  const double limit = kLimit, gated = a < limit ? a : limit, linear = std::fmin(b > -limit ? b : -limit, limit) + kOffset;
  const Derivative f = swish(gated, kAlpha);
  const double slope = a <= limit ? f.slope : 0, inside = b <= limit && b >= -limit ? 1 : 0;
  return {{slope * dy * linear, std::fabs(dy * linear) * f.size}, {dy * f.value * inside, std::fabs(dy * f.value)}};
}

struct Shape {
  int dtype;
  int64_t rows, columns;
  int gate, fp8;
  std::string text() const { return shape_text({{"rows", rows}, {"columns", columns}, {"gate", gate}, {"fp8", fp8}}); }
};

void gated_gradient_case(Session &session, const Shape &shape) {
  Case test(session, "gated_gradient", shape.dtype, shape.text());
  const Format &format = format_of(shape.dtype);
  const auto rows = static_cast<size_t>(shape.rows), columns = static_cast<size_t>(shape.columns), count = rows * columns;
  Doubles dy = session.random.normal(format, static_cast<int64_t>(count));
  Doubles x = session.random.normal(format, static_cast<int64_t>(2 * count));
  if (count > 0) {
    dy[1] = kNan;
    dy[2] = 9984; /* beyond the largest E4M3 number, and beyond that of E5M2 */
    dy[3] = dy[4] = dy[5] = std::ldexp(1.0, -10); /* subnormal numbers */
    x[6] = -80;
    x[7] = 80;
    x[columns + 8] = kNan;
    x[9] = -kInfinity;
    x[10] = kLimit;
  }
  const int mantissa = shape.fp8 == 7 ? 3 : 2;
  Buffer slope = session.floats(shape.dtype, dy), in = session.floats(shape.dtype, x);
  Buffer q = session.raw(Bytes(2 * count, 0x55)), transposed = session.raw(Bytes(2 * count, 0x55));
  Buffer scale = session.floats(4, {kScale}), amax = session.floats(4, {kOldAmax}), inverse = session.floats(4, {0});
  if (!test.run({&q, &transposed, &amax, &inverse}, [&] {
        return session.ops.gated_gradient(slope.data(), in.data(), q.data(), transposed.data(), scale.data<float>(),
                                          amax.data<float>(), inverse.data<float>(), shape.rows, shape.columns, shape.gate,
                                          kLimit, kAlpha, kOffset, shape.dtype, shape.fp8, session.memory.stream());
      }))
    return;
  if (count == 0) return test.equal(test.output(2, 4), {kOldAmax}, "amax");
  const Bytes bytes = test.output(0), turned = test.output(1);
  double least = kOldAmax, most = kOldAmax;
  for (size_t i = 0; i < 2 * count; ++i) {
    const size_t row = i / (2 * columns), column = i % (2 * columns), first = row * 2 * columns;
    const size_t at = column % columns;
    const Gradients of = gradients(shape.gate, dy[row * columns + at], x[first + at], x[first + columns + at]);
    const Gradient &wanted = column < columns ? of.a : of.b;
    const double slack = std::isfinite(wanted.size) ? 16 * kFormats[0].roundoff() * wanted.size : 0; /* a of -infinity */
    const double low = round_to(format, wanted.value - slack), high = round_to(format, wanted.value + slack);
    const double got = fp8_value(bytes[i], mantissa);
    const std::string name = "[" + std::to_string(row) + ", " + std::to_string(column) + "]";
    if (turned[column * rows + row] != bytes[i]) return test.fail("q_transposed differs from q at " + name);
    if (std::isnan(wanted.value)) {
      if (!std::isnan(got)) return test.fail("q" + name + " is " + std::to_string(got) + "; expected NaN");
      continue;
    }
    if (!(got >= fp8_nearest(low * kScale, mantissa) && got <= fp8_nearest(high * kScale, mantissa)))
      return test.fail("q" + name + " is " + std::to_string(got) + "; expected that of " + std::to_string(wanted.value * kScale));
    least = std::fmax(least, std::fmin(std::fabs(low), std::fabs(high)));
    most = std::fmax(most, std::fmax(std::fabs(low), std::fabs(high)));
  }
  const double largest = test.output(2, 4)[0];
  if (!(largest >= least && largest <= most))
    test.fail("amax is " + std::to_string(largest) + "; expected " + std::to_string(most));
  test.close(4, test.output(3, 4), {1 / kScale}, {1 / kScale}, 1, "scale_inverse");
}

}  // namespace

void gated_gradient_cases(Session &session) {
  for (const Format &format : kFormats)
    for (int gate = OPS_GEGLU; gate <= OPS_CLAMPED_SWIGLU; ++gate)
      for (int fp8 : {7, 8}) gated_gradient_case(session, {format.dtype, 80, 48, gate, fp8});
  for (const auto &[rows, columns] : {std::pair<int64_t, int64_t>{0, 16}, {16, 0}, {16, 16}, {64, 64}, {16, 144}, {144, 16}, {128, 192}})
    gated_gradient_case(session, {6, rows, columns, OPS_SWIGLU, 8});
  if (session.large) gated_gradient_case(session, {6, 4112, 1296, OPS_SWIGLU, 8});
}

}  // namespace chagres::tests

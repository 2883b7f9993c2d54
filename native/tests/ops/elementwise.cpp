/* add, cast, accumulate: every result is known to the bit. */
#include <limits>

#include "harness/report.h"

namespace chagres::tests {

namespace {

const std::vector<int64_t> kCounts = {0, 1, 3, 4, 7, 8, 9, 31, 255, 256, 257, 2049};
const std::vector<int64_t> kLargeCounts = {2047, 2048, 70001};
constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/* Normal numbers with the special ones among them. */
Doubles inputs(Session &session, const Format &format, int64_t count) {
  Doubles values = session.random.normal(format, count);
  const double largest = round_to(format, std::ldexp(2 - std::ldexp(1.0, 1 - format.precision), format.most_exponent));
  const double special[] = {kNan, kInfinity, -kInfinity, 0.0, -0.0, largest, -largest, format.smallest()};
  for (size_t i = 0; count > 200 && i < 8; ++i) values[17 * i + 5] = special[i];
  return values;
}

float sum_of(double a, double b) { return static_cast<float>(a) + static_cast<float>(b); }

void add_case(Session &session, int dtype, int64_t count, int64_t offset, int target) {
  const Format &format = format_of(dtype);
  Case test(session, "add", dtype, shape_text({{"count", count}, {"offset", offset}, {"y is", target}}));
  const Doubles x = inputs(session, format, count), residual = session.random.normal(format, count);
  Doubles wanted;
  for (size_t i = 0; i < x.size(); ++i) wanted.push_back(round_to(format, sum_of(x[i], residual[i])));
  Buffer a = session.floats(dtype, x, offset), b = session.floats(dtype, residual, offset);
  Buffer c = session.floats(dtype, Doubles(x.size(), kNan), offset);
  Buffer *y = target == 0 ? &c : target == 1 ? &a : &b;
  if (test.run({y},
               [&] { return session.ops.add(a.data(), b.data(), y->data(), count, dtype, session.memory.stream()); }))
    test.equal(test.output(0, dtype), wanted, "y");
}

void cast_case(Session &session, int from, int to, int64_t count, int64_t offset) {
  Case test(session, "cast", from, shape_text({{"to", to}, {"count", count}, {"offset", offset}}));
  Doubles x = inputs(session, format_of(from), count);
  /* Halfway between two numbers of the narrower type, where ties go to even, and its smallest numbers. */
  const Format &narrow = format_of(to);
  for (size_t i = 200; i < x.size(); i += 5)
    x[i] = round_to(format_of(from), round_to(narrow, x[i]) * (1 + narrow.roundoff() * static_cast<double>(i % 4)));
  for (size_t i = 202; i < x.size(); i += 7)
    x[i] = round_to(format_of(from), narrow.smallest() * 0.25 * static_cast<double>(i % 64));
  Doubles wanted;
  for (double value : x) wanted.push_back(round_to(narrow, value));
  Buffer in = session.floats(from, x, offset), out = session.floats(to, Doubles(x.size(), 7), offset);
  if (test.run({&out},
               [&] { return session.ops.cast(in.data(), from, out.data(), to, count, session.memory.stream()); }))
    test.equal(test.output(0, to), wanted, "y");
}

void accumulate_case(Session &session, int dtype, float beta, int64_t count, int64_t offset) {
  Case test(session, "accumulate", dtype,
            shape_text({{"count", count}, {"offset", offset}}) + " beta=" + std::to_string(beta));
  const Doubles x = session.random.normal(format_of(dtype), count), y = session.random.normal(kFormats[0], count);
  Doubles wanted, scale;
  for (size_t i = 0; i < x.size(); ++i) {
    wanted.push_back(beta == 0 ? x[i] : beta * y[i] + x[i]);
    scale.push_back(std::fabs(beta * y[i]) + std::fabs(x[i]));
  }
  Buffer in = session.floats(dtype, x, offset);
  Buffer out = session.floats(4, beta == 0 ? Doubles(x.size(), kNan) : y, offset);
  if (test.run({&out}, [&] {
        return session.ops.accumulate(in.data(), out.data<float>(), beta, count, dtype, session.memory.stream());
      }))
    test.close(4, test.output(0, 4), wanted, scale, 1, "y");
}

}  // namespace

void elementwise_cases(Session &session) {
  std::vector<int64_t> counts = kCounts;
  if (session.large) counts.insert(counts.end(), kLargeCounts.begin(), kLargeCounts.end());
  for (int64_t count : counts)
    for (const Format &format : kFormats)
      for (int64_t offset : {0, 1}) {
        for (int target : {0, 1, 2}) add_case(session, format.dtype, count, offset, target);
        for (const Format &to : kFormats) cast_case(session, format.dtype, to.dtype, count, offset);
        for (float beta : {0.0f, 1.0f, 0.5f}) accumulate_case(session, format.dtype, beta, count, offset);
      }
  if (session.large) { /* so many that grids stride */
    add_case(session, 6, 9000001, 0, 1);
    add_case(session, 6, 1200001, 1, 0);
    cast_case(session, 4, 6, 5000001, 0);
    accumulate_case(session, 6, 1, 5000001, 0);
  }
}

}  // namespace chagres::tests

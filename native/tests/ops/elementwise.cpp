/* Element-wise operations against their formula, a row of elementwise.h each; cast and accumulate. */
#include "elementwise.h"

#include <cstring>
#include <deque>
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

Doubles results(double (*formula)(const double *x), const std::vector<Doubles> &inputs) {
  Doubles wanted;
  for (size_t i = 0; i < inputs[0].size(); ++i) {
    double x[3];
    for (size_t k = 0; k < inputs.size(); ++k) x[k] = inputs[k][i];
    wanted.push_back(formula(x));
  }
  return wanted;
}

/* target: 0 for a y of its own, k for input k - 1. */
void operation_case(Session &session, const Elementwise &operation, int dtype, int64_t count, int64_t offset,
                    size_t target) {
  const Format &format = format_of(dtype);
  Case test(session, operation.function + strlen("ops_"), dtype,
            shape_text({{"count", count}, {"offset", offset}, {"y is", static_cast<int64_t>(target)}}));
  std::vector<Doubles> x = {inputs(session, format, count)};
  while (x.size() < operation.inputs.size()) x.push_back(session.random.normal(format, count));
  Doubles wanted = results(operation.formula, x);
  Doubles scale = results(operation.magnitude == nullptr ? operation.formula : operation.magnitude, x);
  for (double &size : scale) size = std::fabs(size);
  for (double &result : wanted) /* to one that is known, or beyond the type's largest to infinity */
    if (operation.slack == 0 || std::isinf(round_to(format, result))) result = round_to(format, result);
  std::deque<Buffer> buffers;
  std::vector<const void *> pointers;
  for (const Doubles &values : x) {
    buffers.emplace_back(session.memory, to_bytes(format, values), static_cast<size_t>(offset * format.size));
    pointers.push_back(buffers.back().data());
  }
  Buffer own = session.floats(dtype, Doubles(wanted.size(), kNan), offset);
  Buffer *y = target == 0 ? &own : &buffers[target - 1];
  void *const function = find_symbol(session.library, operation.function);
  if (!test.run({y}, [&] {
        return call_elementwise(function, pointers, y->data(), count, dtype, session.memory.stream());
      }))
    return;
  if (operation.slack == 0) test.equal(test.output(0, dtype), wanted, "y");
  else test.close(dtype, test.output(0, dtype), wanted, scale, operation.slack, "y");
}

/* The same bits as without amax, and their largest magnitude. */
void amax_case(Session &session, const Elementwise &operation, int dtype, int64_t count, int64_t offset, double before) {
  const Format &format = format_of(dtype);
  Case test(session, operation.amax + strlen("ops_"), dtype,
            shape_text({{"count", count}, {"offset", offset}}) + " before=" + std::to_string(before));
  std::deque<Buffer> buffers;
  std::vector<const void *> pointers;
  while (buffers.size() < operation.inputs.size()) {
    const Doubles x = buffers.empty() ? inputs(session, format, count) : session.random.normal(format, count);
    buffers.emplace_back(session.memory, to_bytes(format, x), static_cast<size_t>(offset * format.size));
    pointers.push_back(buffers.back().data());
  }
  const Doubles unset(static_cast<size_t>(count), kNan);
  Buffer plain = session.floats(dtype, unset, offset), y = session.floats(dtype, unset, offset);
  Buffer amax = session.floats(4, {before});
  void *const without = find_symbol(session.library, operation.function);
  void *const with = find_symbol(session.library, operation.amax);
  OpsStream stream = session.memory.stream();
  if (!test.run({&plain, &y, &amax}, [&] {
        const int status = call_elementwise(without, pointers, plain.data(), count, dtype, stream);
        if (status != OPS_SUCCESS) return status;
        return call_elementwise_amax(with, pointers, y.data(), amax.data<float>(), count, dtype, stream);
      }))
    return;
  const Doubles wanted = test.output(0, dtype);
  test.equal(test.output(1, dtype), wanted, "y");
  double largest = before;
  for (double value : wanted) largest = std::fmax(largest, std::fabs(value));
  test.equal(test.output(2, 4), {largest}, "amax");
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
        for (const Elementwise &operation : elementwise_operations())
          for (size_t target = 0; target <= operation.inputs.size(); ++target)
            operation_case(session, operation, format.dtype, count, offset, target);
        for (const Elementwise &operation : elementwise_operations())
          if (operation.amax != nullptr)
            for (double before : {0.0, 9.0}) amax_case(session, operation, format.dtype, count, offset, before);
        for (const Format &to : kFormats) cast_case(session, format.dtype, to.dtype, count, offset);
        for (float beta : {0.0f, 1.0f, 0.5f}) accumulate_case(session, format.dtype, beta, count, offset);
      }
  if (session.large) { /* so many that grids stride */
    for (const Elementwise &operation : elementwise_operations()) {
      operation_case(session, operation, 6, 9000001, 0, 1);
      operation_case(session, operation, 6, 1200001, 1, 0);
      if (operation.amax != nullptr) amax_case(session, operation, 6, 9000001, 0, 0);
    }
    cast_case(session, 4, 6, 5000001, 0);
    accumulate_case(session, 6, 1, 5000001, 0);
  }
}

}  // namespace chagres::tests

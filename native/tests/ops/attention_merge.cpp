/* attention_merge: outputs over parts of the keys, merged one after another, are the output over all keys. */
#include <cmath>
#include <limits>

#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Merge {
  int dtype;
  int64_t rows, columns, offset;
};

/* Weights and their largest exponent, in double precision. */
struct Wanted {
  explicit Wanted(const Merge &shape)
      : sum(static_cast<size_t>(shape.rows)),
        value(static_cast<size_t>(shape.rows * shape.columns)),
        scale(value.size()) {}
  Doubles sum, value, scale; /* sums of exp(l), and of that times the outputs */
};

/* What one part of the keys gives: -infinity where a query sees none of them, and then no number as the output. */
struct Part {
  Part(Session &session, const Merge &shape, int number)
      : lse(session.random.normal(kFormats[0], shape.rows, 5)),
        output(session.random.normal(format_of(shape.dtype), shape.rows * shape.columns)) {
    for (int64_t r = 0; r < shape.rows; ++r) {
      if (r % 5 != 4 && (r + number) % 3 != 0) continue;
      lse[static_cast<size_t>(r)] = -kInfinity;
      for (int64_t c = 0; c < shape.columns; ++c) output[static_cast<size_t>(r * shape.columns + c)] = kNan;
    }
  }

  void add_to(Wanted &wanted, const Merge &shape) const {
    for (int64_t r = 0; r < shape.rows; ++r) {
      const double weight = std::exp(lse[static_cast<size_t>(r)]);
      if (weight == 0) continue;
      wanted.sum[static_cast<size_t>(r)] += weight;
      for (int64_t c = 0; c < shape.columns; ++c) {
        const auto i = static_cast<size_t>(r * shape.columns + c);
        wanted.value[i] += weight * output[i];
        wanted.scale[i] += weight * std::fabs(output[i]);
      }
    }
  }

  Doubles lse, output;
};

void merge_case(Session &session, const Merge &shape) {
  Case test(session, "attention_merge", shape.dtype,
            shape_text({{"rows", shape.rows}, {"columns", shape.columns}, {"offset", shape.offset}}));
  Wanted wanted(shape);
  Doubles merged(wanted.value.size(), kNan), merged_lse(wanted.sum.size(), kNan);
  constexpr int kParts = 4;
  for (int number = 0; number < kParts; ++number) {
    const Part part(session, shape, number);
    part.add_to(wanted, shape);
    Buffer partial = session.floats(shape.dtype, part.output, shape.offset), lse = session.floats(4, part.lse);
    Buffer out = session.floats(4, merged, shape.offset), out_lse = session.floats(4, merged_lse);
    if (!test.run({&out, &out_lse}, [&] {
          return session.ops.attention_merge(partial.data(), lse.data<float>(), out.data<float>(),
                                             out_lse.data<float>(), shape.rows, shape.columns, number == 0 ? 1 : 0,
                                             shape.dtype, session.memory.stream());
        }))
      return;
    merged = test.output(0, 4);
    merged_lse = test.output(1, 4);
  }
  Doubles lse, lse_scale;
  for (size_t i = 0; i < wanted.value.size(); ++i) {
    const double sum = wanted.sum[i / static_cast<size_t>(shape.columns)];
    if (sum == 0) continue;
    wanted.value[i] /= sum;
    wanted.scale[i] /= sum;
  }
  for (double sum : wanted.sum) {
    lse.push_back(sum == 0 ? -kInfinity : std::log(sum));
    lse_scale.push_back(20);
  }
  Doubles finite_got, finite_wanted, finite_scale;
  for (size_t r = 0; r < lse.size(); ++r) {
    if (std::isinf(lse[r]) != std::isinf(merged_lse[r])) test.fail("row " + std::to_string(r) + " of no key");
    if (std::isinf(lse[r])) continue;
    finite_got.push_back(merged_lse[r]);
    finite_wanted.push_back(lse[r]);
    finite_scale.push_back(lse_scale[r]);
  }
  test.close(4, merged, wanted.value, wanted.scale, 40, "merged");
  test.close(4, finite_got, finite_wanted, finite_scale, 4, "log-sum-exp");
}

/* A NaN reaches its row alone, and stays. */
void nan_case(Session &session) {
  Case test(session, "attention_merge", 4, "NaN");
  Buffer partial = session.floats(4, {1, 2, 3, 4}), lse = session.floats(4, {kNan, 0});
  Buffer out = session.floats(4, {1, 1, 1, 1}), out_lse = session.floats(4, {-kInfinity, -kInfinity});
  if (!test.run({&out, &out_lse}, [&] {
        return session.ops.attention_merge(partial.data(), lse.data<float>(), out.data<float>(), out_lse.data<float>(),
                                           2, 2, 0, 4, session.memory.stream());
      }))
    return;
  test.equal(test.output(0, 4), {kNan, kNan, 3, 4}, "merged");
  test.equal(test.output(1, 4), {kNan, 0}, "log-sum-exp");
}

}  // namespace

void attention_merge_cases(Session &session) {
  const int64_t sizes[][2] = {{0, 8}, {1, 1}, {1, 8}, {3, 16}, {31, 33}, {33, 64}, {70, 127}, {64, 128}, {129, 256}, {20000, 64}};
  for (const auto &[rows, columns] : sizes) {
    if (rows * columns > 100000 && !session.large) continue;
    for (const Format &format : kFormats)
      for (int64_t offset : {0, 1}) merge_case(session, {format.dtype, rows, columns, offset});
  }
  nan_case(session);
}

}  // namespace chagres::tests

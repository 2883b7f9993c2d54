/* row_sum and embedding_backward: sums over many rows. */
#include <limits>

#include "report.h"

namespace chagres::tests {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

/* FP32 roundings of the sum of absolute terms: partial sums are short, and their errors have either sign. */
constexpr double kSlack = 8;

/* beta * old + sum, and the size of its terms. */
struct Wanted {
  Doubles value, scale;

  Wanted(const Doubles &old, float beta) {
    for (double number : old) {
      value.push_back(beta == 0 ? 0 : beta * number);
      scale.push_back(std::fabs(value.back()));
    }
  }
  void add(int64_t index, double term) {
    value[static_cast<size_t>(index)] += term;
    scale[static_cast<size_t>(index)] += std::fabs(term);
  }
};

void row_sum_case(Session &session, int dtype, int64_t rows, int64_t columns, float beta, int64_t offset) {
  Case test(session, "row_sum", dtype,
            shape_text({{"rows", rows}, {"columns", columns}, {"offset", offset}}) + " beta=" + std::to_string(beta));
  const Doubles x = session.random.normal(format_of(dtype), rows * columns);
  const Doubles old = session.random.normal(kFormats[0], columns);
  Wanted wanted(old, beta);
  for (int64_t i = 0; i < rows * columns; ++i) wanted.add(i % columns, x[static_cast<size_t>(i)]);
  Buffer in = session.floats(dtype, x, offset);
  Buffer sum = session.floats(4, beta == 0 ? Doubles(old.size(), kNan) : old, offset);
  if (test.run({&sum}, [&] {
        return session.ops.row_sum(in.data(), sum.data<float>(), beta, rows, columns, dtype, session.memory.stream());
      }))
    test.close(4, test.output(0, 4), wanted.value, wanted.scale, kSlack, "sum");
}

struct Table {
  int dtype;
  int64_t tokens, vocabulary, hidden;
  int64_t offset;
};

void embedding_case(Session &session, const Table &table, float beta, bool skewed) {
  Case test(session, "embedding_backward", table.dtype,
            shape_text({{"tokens", table.tokens},
                        {"vocabulary", table.vocabulary},
                        {"hidden", table.hidden},
                        {"offset", table.offset},
                        {"skewed", skewed}}) +
                " beta=" + std::to_string(beta));
  const Doubles dy = session.random.normal(format_of(table.dtype), table.tokens * table.hidden);
  const Doubles old = session.random.normal(kFormats[0], table.vocabulary * table.hidden);
  std::vector<int32_t> ids(static_cast<size_t>(table.tokens));
  for (int32_t &id : ids) /* -1 and `vocabulary` among them; skewed: most tokens have one id */
    id = skewed && session.random.below(10) != 0 ? static_cast<int32_t>(table.vocabulary - 1)
                                                 : static_cast<int32_t>(session.random.below(table.vocabulary + 2) - 1);
  Wanted wanted(old, beta);
  for (int64_t t = 0; t < table.tokens; ++t) {
    const int64_t id = ids[static_cast<size_t>(t)];
    if (id < 0 || id >= table.vocabulary) continue;
    for (int64_t c = 0; c < table.hidden; ++c)
      wanted.add(id * table.hidden + c, dy[static_cast<size_t>(t * table.hidden + c)]);
  }
  Buffer in = session.floats(table.dtype, dy, table.offset), index = session.raw(ids);
  Buffer gradient = session.floats(4, beta == 0 ? Doubles(old.size(), kNan) : old, table.offset);
  if (test.run({&gradient}, [&] {
        return session.ops.embedding_backward(in.data(), index.data<int32_t>(), gradient.data<float>(), beta,
                                              table.tokens, table.vocabulary, table.hidden, table.dtype,
                                              session.memory.stream());
      }))
    test.close(4, test.output(0, 4), wanted.value, wanted.scale, kSlack, "gradient");
}

}  // namespace

void sum_cases(Session &session) {
  const int64_t sums[][2] = {{0, 9},      {3, 0},     {1, 1},       {1, 300},   {127, 8},    {128, 64},
                             {129, 33},   {257, 320}, {600, 24},    {70, 1026}, {1000, 640}, {4097, 65},
                             {300, 4104}, {40000, 1}, {16384, 320}, {3, 70001}, {2500, 5120}};
  for (const auto &[rows, columns] : sums) {
    if (rows * columns > 100000 && !session.large) continue;
    for (const Format &format : kFormats)
      for (int64_t offset : {0, 1}) {
        row_sum_case(session, format.dtype, rows, columns, 0, offset);
        row_sum_case(session, format.dtype, rows, columns, 0.5f, offset);
      }
  }
  const int64_t tables[][3] = {{0, 64, 64},      {1, 1, 1},         {31, 33, 7},     {33, 33, 64},    {191, 64, 66},
                               {193, 64, 62},    {257, 130, 34},    {700, 33, 20},   {1500, 65, 129}, {4099, 33, 20},
                               {16384, 64, 320}, {5000, 30000, 66}, {3000, 64, 2560}};
  for (const auto &[tokens, vocabulary, hidden] : tables) {
    if (tokens > 1000 && !session.large) continue;
    for (const Format &format : kFormats)
      for (int64_t offset : {0, 1}) {
        embedding_case(session, {format.dtype, tokens, vocabulary, hidden, offset}, 0, false);
        embedding_case(session, {format.dtype, tokens, vocabulary, hidden, offset}, 1, true);
      }
  }
}

}  // namespace chagres::tests

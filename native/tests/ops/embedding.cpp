/* embedding_forward, which moves bits, and embedding_backward, a sum over many rows. */
#include <limits>

#include "harness/report.h"
#include "harness/wanted_sum.h"
#include "rows.h"

namespace chagres::tests {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

struct Table {
  int dtype;
  int64_t tokens, vocabulary, hidden;
  int64_t offset;
};

/* `first`: of a vocabulary, number of the table's first row. */
void backward_case(Session &session, const Table &table, float beta, bool skewed, int32_t first = 0) {
  Case test(session, "embedding_backward", table.dtype,
            shape_text({{"tokens", table.tokens},
                        {"vocabulary", table.vocabulary},
                        {"hidden", table.hidden},
                        {"offset", table.offset},
                        {"skewed", skewed},
                        {"first", first}}) +
                " beta=" + std::to_string(beta));
  const Doubles dy = session.random.normal(format_of(table.dtype), table.tokens * table.hidden);
  const Doubles old = session.random.normal(kFormats[0], table.vocabulary * table.hidden);
  std::vector<int32_t> ids(static_cast<size_t>(table.tokens));
  for (int32_t &id : ids) /* -1 and `vocabulary` among them; skewed: most tokens have one id */
    id = skewed && session.random.below(10) != 0 ? static_cast<int32_t>(table.vocabulary - 1)
                                                 : static_cast<int32_t>(session.random.below(table.vocabulary + 2) - 1);
  WantedSum wanted(old, beta);
  for (int64_t t = 0; t < table.tokens; ++t) {
    const int64_t id = ids[static_cast<size_t>(t)];
    if (id < 0 || id >= table.vocabulary) continue;
    for (int64_t c = 0; c < table.hidden; ++c)
      wanted.add(id * table.hidden + c, dy[static_cast<size_t>(t * table.hidden + c)]);
  }
  for (int32_t &id : ids) id += first;
  Buffer in = session.floats(table.dtype, dy, table.offset), index = session.raw(ids);
  Buffer gradient = session.floats(4, beta == 0 ? Doubles(old.size(), kNan) : old, table.offset);
  if (test.run({&gradient}, [&] {
        return session.ops.embedding_backward(in.data(), index.data<int32_t>(), gradient.data<float>(), beta, first,
                                              table.tokens, table.vocabulary, table.hidden, table.dtype,
                                              session.memory.stream());
      }))
    test.close(4, test.output(0, 4), wanted.value, wanted.scale, kSumSlack, "gradient");
}

}  // namespace

void embedding_cases(Session &session) {
  for (const Rows &shape : row_shapes(session)) {
    if (shape.dtype == 2) continue;
    for (int32_t first : {0, 7})
      gather_case(session, "embedding_forward", shape, first, [&](const void *table, const int32_t *ids, void *y) {
        return session.ops.embedding_forward(table, ids, y, first, shape.rows, shape.indexed, shape.columns, shape.dtype,
                                             session.memory.stream());
      });
  }
  const int64_t tables[][3] = {{0, 64, 64},      {1, 1, 1},         {31, 33, 7},     {33, 33, 64},    {191, 64, 66},
                               {193, 64, 62},    {257, 130, 34},    {700, 33, 20},   {1500, 65, 129}, {4099, 33, 20},
                               {16384, 64, 320}, {5000, 30000, 66}, {3000, 64, 2560},
                               {0, 2048, 4},     {333, 2111, 132},  {5000, 2100, 1028}};
  for (const auto &[tokens, vocabulary, hidden] : tables) {
    if (tokens > 1000 && !session.large) continue;
    for (const Format &format : kFormats)
      for (int64_t offset : {0, 1}) {
        backward_case(session, {format.dtype, tokens, vocabulary, hidden, offset}, 0, false);
        backward_case(session, {format.dtype, tokens, vocabulary, hidden, offset}, 1, true, 1000);
      }
  }
}

}  // namespace chagres::tests

/* Token dropout: the factor of each token. */
#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr int32_t kMask = 32;
constexpr float kKept = 0.88f;

struct Batch {
  int layout;
  int64_t tokens;
  std::vector<int32_t> cu_seqlens;
  std::vector<int32_t> places; /* empty: without gaps */
  int64_t masked = 15;         /* of a hundred tokens */

  int64_t sequences() const { return static_cast<int64_t>(cu_seqlens.size()) - 1; }
};

/* The tokens of sequence b. */
std::vector<size_t> tokens_of(const Batch &batch, int64_t b) {
  const auto at = static_cast<size_t>(b);
  const std::vector<int32_t> &starts = batch.places.empty() ? batch.cu_seqlens : batch.places;
  std::vector<size_t> tokens;
  for (int64_t i = 0; i < batch.cu_seqlens[at + 1] - batch.cu_seqlens[at]; ++i) {
    const int64_t t = batch.layout == OPS_THD    ? starts[at] + i
                      : batch.layout == OPS_BSHD ? b * (batch.tokens / batch.sequences()) + i
                                                 : i * batch.sequences() + b;
    tokens.push_back(static_cast<size_t>(t));
  }
  return tokens;
}

void factors_case(Session &session, const Batch &batch) {
  Case test(session, "token_dropout_factors", 4,
            shape_text({{"layout", batch.layout},
                        {"tokens", batch.tokens},
                        {"sequences", batch.sequences()},
                        {"gaps", batch.places.empty() ? 0 : 1},
                        {"masked", batch.masked}}));
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < batch.tokens; ++t)
    ids.push_back(session.random.below(100) < static_cast<uint64_t>(batch.masked) ? kMask : static_cast<int32_t>(t % 32));
  Doubles wanted(ids.size(), 0);
  for (int64_t b = 0; b < batch.sequences(); ++b) {
    const std::vector<size_t> tokens = tokens_of(batch, b);
    double masked = 0;
    for (size_t t : tokens) masked += ids[t] == kMask ? 1 : 0;
    for (size_t t : tokens)
      wanted[t] = ids[t] == kMask ? 0 : double{kKept} / (1 - masked / static_cast<double>(tokens.size()));
  }
  Buffer in = session.raw(ids), cu_seqlens = session.raw(batch.cu_seqlens), places = session.raw(batch.places);
  Buffer factors = session.floats(4, Doubles(wanted.size(), std::nan("")));
  if (test.run({&factors}, [&] {
        return session.ops.token_dropout_factors(in.data<int32_t>(), cu_seqlens.data<int32_t>(),
                                                 batch.places.empty() ? nullptr : places.data<int32_t>(),
                                                 factors.data<float>(), kKept, kMask, batch.layout, batch.tokens,
                                                 batch.sequences(), session.memory.stream());
      }))
    test.close(4, test.output(0, 4), wanted, wanted, 2, "factors");
}

}  // namespace

void token_dropout_cases(Session &session) {
  for (int64_t masked : {0, 15, 50, 99, 100}) {
    factors_case(session, {OPS_THD, 1, {0, 1}, {}, masked});
    factors_case(session, {OPS_THD, 23, {0, 3, 3, 9, 10, 15, 20}, {}, masked}); /* an empty one, and tokens behind the last */
    factors_case(session, {OPS_THD, 12, {2, 5, 9}, {}, masked});                /* and before the first */
    factors_case(session, {OPS_THD, 30, {0, 3, 3, 9, 10}, {0, 8, 12, 20, 24}, masked});
    factors_case(session, {OPS_THD, 700, {0, 31, 63, 96, 353, 700}, {}, masked});
    for (int layout : {OPS_BSHD, OPS_SBHD}) {
      factors_case(session, {layout, 20, {0, 5, 10, 15, 20}, {}, masked});
      factors_case(session, {layout, 210, {0, 70, 71, 104}, {}, masked});
    }
  }
  factors_case(session, {OPS_THD, 0, {0, 0}, {}});
  if (session.large) { /* so many that grids stride */
    Batch batch = {OPS_SBHD, 300000, {0}, {}};
    for (int32_t b = 1; b <= 100000; ++b) batch.cu_seqlens.push_back(2 * b);
    factors_case(session, batch);
  }
}

}  // namespace chagres::tests

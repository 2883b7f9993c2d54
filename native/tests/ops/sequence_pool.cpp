/* Pooling by sequence: mean, first and largest, and their gradients. */
#include <cmath>

#include "harness/report.h"

namespace chagres::tests {

namespace {

struct Batch {
  int layout;
  int64_t tokens;
  std::vector<int32_t> cu_seqlens;
  std::vector<int32_t> places; /* empty: without gaps */

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

void pool_case(Session &session, const Batch &batch, int64_t columns, int pool, int dtype, bool with_nan = false) {
  const std::string text = shape_text({{"layout", batch.layout},
                                       {"tokens", batch.tokens},
                                       {"sequences", batch.sequences()},
                                       {"columns", columns},
                                       {"pool", pool},
                                       {"nan", with_nan ? 1 : 0}});
  const auto width = static_cast<size_t>(columns);
  const Format &format = format_of(dtype);
  Doubles x = session.random.normal(format, batch.tokens * columns);
  const Doubles dy = session.random.normal(format, batch.sequences() * columns);
  if (with_nan)
    for (size_t i = 0; i < x.size(); i += 7) x[i] = std::nan("");
  Doubles y(dy.size(), 0), scale(dy.size(), 0), dx(x.size(), 0), at(dy.size(), -1);
  for (int64_t b = 0; b < batch.sequences(); ++b) {
    std::vector<size_t> tokens = tokens_of(batch, b);
    if (pool == OPS_POOL_FIRST && tokens.size() > 1) tokens.resize(1);
    for (size_t c = 0; c < width; ++c) {
      const size_t to = static_cast<size_t>(b) * width + c;
      for (size_t t : tokens) {
        const double value = x[t * width + c], share = pool == OPS_POOL_MEAN ? static_cast<double>(tokens.size()) : 1;
        if (pool == OPS_POOL_MAX) {
          if (at[to] >= 0 && !(value > y[to]) && !(std::isnan(value) && !std::isnan(y[to]))) continue;
          y[to] = value;
          at[to] = static_cast<double>(t);
        } else {
          y[to] += value / share;
          scale[to] += std::fabs(value) / share;
          dx[t * width + c] = dy[to] / share;
        }
      }
      if (at[to] >= 0) dx[static_cast<size_t>(at[to]) * width + c] = dy[to];
    }
  }
  Buffer in = session.floats(dtype, x), cu_seqlens = session.raw(batch.cu_seqlens), places = session.raw(batch.places);
  const int32_t *const padded = batch.places.empty() ? nullptr : places.data<int32_t>();
  Buffer out = session.floats(dtype, Doubles(y.size(), std::nan(""))), gradient = session.floats(dtype, dy);
  Buffer into = session.floats(dtype, Doubles(x.size(), std::nan("")));
  Buffer argument = session.raw(std::vector<int32_t>(y.size(), -7));
  int32_t *const numbers = pool == OPS_POOL_MAX ? argument.data<int32_t>() : nullptr;
  Case forward(session, "sequence_pool_forward", dtype, text);
  if (!forward.run({&out, &argument}, [&] {
        return session.ops.sequence_pool_forward(in.data(), cu_seqlens.data<int32_t>(), padded, out.data(), numbers, pool,
                                                 batch.layout, batch.tokens, batch.sequences(), columns, dtype,
                                                 session.memory.stream());
      }))
    return;
  if (pool == OPS_POOL_MEAN) forward.close(dtype, forward.output(0, dtype), y, scale, 2 + batch.tokens, "y");
  else forward.equal(forward.output(0, dtype), y, "y");
  std::vector<int32_t> wanted(y.size(), -7);
  for (size_t i = 0; pool == OPS_POOL_MAX && i < wanted.size(); ++i) wanted[i] = static_cast<int32_t>(at[i]);
  forward.equal_bytes(forward.output(1), raw_bytes(wanted), "argument");
  Case backward(session, "sequence_pool_backward", dtype, text);
  if (backward.run({&into}, [&] {
        return session.ops.sequence_pool_backward(gradient.data(), cu_seqlens.data<int32_t>(), padded, numbers, into.data(),
                                                  pool, batch.layout, batch.tokens, batch.sequences(), columns, dtype,
                                                  session.memory.stream());
      }))
    backward.close(dtype, backward.output(0, dtype), dx, dx, 2, "dx");
}

}  // namespace

void sequence_pool_cases(Session &session) {
  for (int pool : {OPS_POOL_MEAN, OPS_POOL_FIRST, OPS_POOL_MAX}) {
    for (int dtype : {4, 5, 6}) {
      pool_case(session, {OPS_THD, 1, {0, 1}, {}}, 1, pool, dtype);
      pool_case(session, {OPS_THD, 23, {0, 3, 3, 9, 10, 15, 20}, {}}, 33, pool, dtype); /* an empty one, and tokens behind */
      pool_case(session, {OPS_THD, 30, {0, 3, 3, 9, 10}, {0, 8, 12, 20, 24}}, 8, pool, dtype);
      pool_case(session, {OPS_THD, 350, {0, 31, 63, 96, 350}, {}}, 32, pool, dtype);
      for (int layout : {OPS_BSHD, OPS_SBHD}) {
        pool_case(session, {layout, 20, {0, 5, 10, 15, 20}, {}}, 31, pool, dtype);
        pool_case(session, {layout, 210, {0, 70, 71, 104}, {}}, 40, pool, dtype);
      }
    }
    pool_case(session, {OPS_THD, 12, {2, 5, 9}, {}}, 3, pool, 4); /* tokens before the first */
    pool_case(session, {OPS_THD, 60, {0, 20, 60}, {}}, 5, pool, 4, true);
    pool_case(session, {OPS_THD, 0, {0, 0}, {}}, 4, pool, 4);
    if (session.large) { /* so many that grids stride */
      Batch batch = {OPS_SBHD, 200000, {0}, {}};
      for (int32_t b = 1; b <= 100000; ++b) batch.cu_seqlens.push_back(2 * b);
      pool_case(session, batch, 65, pool, 6);
    }
  }
}

}  // namespace chagres::tests

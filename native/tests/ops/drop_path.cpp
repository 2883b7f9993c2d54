/* Drop path: the factors of sequences, and rows scaled by their sequence's factor. */
#include <limits>

#include "harness/philox.h"
#include "harness/report.h"

namespace chagres::tests {

namespace {

void factors_case(Session &session, int64_t sequences, float probability, const std::vector<int64_t> &rng_state) {
  Case test(session, "drop_path_factors", 4,
            shape_text({{"sequences", sequences}, {"seed", rng_state[0]}, {"offset", rng_state[1]}}) +
                " p=" + std::to_string(probability));
  const auto seed = static_cast<uint64_t>(rng_state[0]);
  Doubles wanted;
  for (int64_t b = 0; b < sequences; ++b) {
    const uint64_t counter = static_cast<uint64_t>(rng_state[1]) + static_cast<uint64_t>(b / 4);
    const Words words = philox({static_cast<uint32_t>(counter), static_cast<uint32_t>(counter >> 32), 0, 0},
                               static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32));
    const bool kept = std::ldexp(words[static_cast<size_t>(b % 4)], -32) >= probability;
    wanted.push_back(kept ? 1.0f / (1.0f - probability) : 0);
  }
  Buffer state = session.raw(rng_state), factors = session.floats(4, Doubles(wanted.size(), 7));
  if (test.run({&factors}, [&] {
        return session.ops.drop_path_factors(state.data<int64_t>(), probability, factors.data<float>(), sequences,
                                             session.memory.stream());
      }))
    test.equal(test.output(0, 4), wanted, "factors");
}

enum class Place { kApart, kX, kResidual }; /* of y */

struct Scaled {
  int dtype;
  int layout;
  int64_t tokens, extent, columns;
  std::vector<int32_t> cu_seqlens;
  int64_t offset;
  bool with_residual;
  Place place;
  int64_t first = 0, past = 0; /* tokens of the whole before the rows, and behind them */

  int64_t whole() const { return first + tokens + past; }
};

std::string scaled_text(const Scaled &scaled) {
  const char *const layouts[] = {"thd", "bshd", "sbhd"}, *const places[] = {"apart", "x", "residual"};
  return std::string(layouts[scaled.layout]) + " " +
         shape_text({{"tokens", scaled.tokens},
                     {"extent", scaled.extent},
                     {"columns", scaled.columns},
                     {"first", scaled.first},
                     {"whole", scaled.whole()},
                     {"offset", scaled.offset}}) +
         (scaled.with_residual ? " residual" : "") + " y=" + places[static_cast<int>(scaled.place)];
}

int64_t sequence_of(const Scaled &scaled, int64_t t) {
  if (scaled.layout == OPS_BSHD) return t / scaled.extent;
  if (scaled.layout == OPS_SBHD) return t % scaled.extent;
  for (size_t b = 0; b + 1 < scaled.cu_seqlens.size(); ++b)
    if (t >= scaled.cu_seqlens[b] && t < scaled.cu_seqlens[b + 1]) return static_cast<int64_t>(b);
  return -1;
}

struct Rows {
  Doubles x, residual, wanted;
};

/* Rows whose factor is 0 are NaN where it must not be read. */
Rows make_rows(Session &session, const Scaled &scaled, const Doubles &factors) {
  const Format &format = format_of(scaled.dtype);
  const int64_t count = scaled.tokens * scaled.columns;
  Rows rows = {session.random.normal(format, count), session.random.normal(format, count), {}};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t sequence = sequence_of(scaled, scaled.first + i / scaled.columns);
    const auto at = static_cast<size_t>(i);
    const double kept = scaled.with_residual ? rows.residual[at] : 0;
    const double factor = sequence < 0 ? 0 : factors[static_cast<size_t>(sequence)];
    if (factor == 0) {
      if (i % 3 == 0) rows.x[at] = std::nan("");
      rows.wanted.push_back(kept);
      continue;
    }
    const float product = static_cast<float>(rows.x[at]) * static_cast<float>(factor); /* rounded before the sum */
    rows.wanted.push_back(
        round_to(format, scaled.with_residual ? product + static_cast<float>(kept) : product));
  }
  return rows;
}

void scale_case(Session &session, const Scaled &scaled) {
  Case test(session, "scale_sequences_add", scaled.dtype, scaled_text(scaled));
  const int64_t sequences = scaled.layout == OPS_BSHD ? scaled.whole() / scaled.extent : scaled.extent;
  Doubles factors;
  for (int64_t b = 0; b < sequences; ++b) factors.push_back(b % 3 == 1 ? 0 : 1.0f / (1.0f - 0.1f * (b % 7)));
  const Rows rows = make_rows(session, scaled, factors);
  Buffer x = session.floats(scaled.dtype, rows.x, scaled.offset);
  Buffer residual = session.floats(scaled.dtype, rows.residual, scaled.offset);
  Buffer apart = session.floats(scaled.dtype, Doubles(rows.x.size(), 7), scaled.offset);
  Buffer scale = session.floats(4, factors), seqlens = session.raw(scaled.cu_seqlens);
  Buffer &y = scaled.place == Place::kX ? x : scaled.place == Place::kResidual ? residual : apart;
  if (test.run({&y}, [&] {
        return session.ops.scale_sequences_add(
            x.data(), scaled.with_residual ? residual.data() : nullptr, y.data(), scale.data<float>(),
            scaled.layout == OPS_THD ? seqlens.data<int32_t>() : nullptr, scaled.layout, scaled.first, scaled.tokens,
            scaled.whole(), scaled.extent, scaled.columns, scaled.dtype, session.memory.stream());
      }))
    test.equal(test.output(0, scaled.dtype), rows.wanted, "y");
}

void scale_cases(Session &session, const Scaled &shape) {
  for (int64_t offset : {0, 1}) {
    Scaled scaled = shape;
    scaled.offset = offset;
    for (Place place : {Place::kApart, Place::kX, Place::kResidual}) {
      scaled.place = place;
      scaled.with_residual = true;
      scale_case(session, scaled);
      scaled.with_residual = false;
      if (place != Place::kResidual) scale_case(session, scaled);
    }
  }
}

}  // namespace

void drop_path_cases(Session &session) {
  const int64_t far = (int64_t{1} << 32) - 2; /* the counter's low word runs over */
  for (int64_t sequences : {0, 1, 2, 3, 4, 5, 63, 1025}) factors_case(session, sequences, 0.3f, {123456789012345, 42});
  for (float probability : {0.0f, 0.5f, 0.999f, 0.99999994f, 1e-9f})
    factors_case(session, 300, probability, {-5, far});
  for (const Format &format : kFormats) {
    for (int64_t columns : {0, 1, 8, 33, 320}) {
      scale_cases(session, {format.dtype, OPS_THD, 23, 6, columns, {0, 3, 3, 9, 10, 15, 20}, 0, true, Place::kApart});
      scale_cases(session, {format.dtype, OPS_BSHD, 20, 5, columns, {}, 0, true, Place::kApart});
      scale_cases(session, {format.dtype, OPS_SBHD, 20, 5, columns, {}, 0, true, Place::kApart});
      /* A stretch of the tokens. */
      scale_cases(session, {format.dtype, OPS_THD, 11, 6, columns, {0, 3, 3, 9, 10, 15, 20}, 0, true, Place::kApart, 7, 5});
      scale_cases(session, {format.dtype, OPS_BSHD, 11, 5, columns, {}, 0, true, Place::kApart, 3, 6});
      scale_cases(session, {format.dtype, OPS_SBHD, 11, 5, columns, {}, 0, true, Place::kApart, 3, 6});
    }
    scale_case(session, {format.dtype, OPS_THD, 0, 1, 8, {0, 0}, 0, true, Place::kApart});
    scale_case(session, {format.dtype, OPS_THD, 5, 1, 8, {2, 4}, 0, true, Place::kApart}); /* tokens of no sequence */
  }
  if (session.large) /* so many that grids stride */
    scale_case(session, {6, OPS_SBHD, 300000, 100, 72, {}, 0, true, Place::kApart});
}

}  // namespace chagres::tests

/* Attention of one Problem in double, by plain loops: forward, and backward from the formulas. */
#ifndef CHAGRES_ATTENTION_DOUBLE_H
#define CHAGRES_ATTENTION_DOUBLE_H

#include <map>

#include "attention_case.h"

namespace attention {

/* A dense table by (b, i, h, c) over the longest sequence. */
struct Table {
  int64_t length, heads, dim;
  std::vector<double> values;
  Table(size_t sequences, int64_t length, int64_t heads, int64_t dim)
      : length(length), heads(heads), dim(dim), values(sequences * static_cast<size_t>(length * heads * dim)) {}
  double &at(size_t b, int64_t i, int64_t h, int64_t c) {
    return values[static_cast<size_t>(((static_cast<int64_t>(b) * length + i) * heads + h) * dim + c)];
  }
};

class Double {
 public:
  /* Copies the inputs as they are stored, so that only arithmetic differs. */
  explicit Double(const Problem &problem)
      : p(problem),
        n(p.c.q_lengths.size()),
        q(copy(*p.in.q)),
        k(copy(*p.in.k)),
        v(copy(*p.in.v)),
        d_o(copy(*p.d_o)),
        o(n, p.q_side.longest, p.c.heads, p.c.dim_v),
        stats(n, p.q_side.longest, p.c.heads, 1),
        dq(n, p.q_side.longest, p.c.heads, p.c.dim_qk),
        dk(n, p.kv_side.longest, p.c.kv_heads, p.c.dim_qk),
        dv(n, p.kv_side.longest, p.c.kv_heads, p.c.dim_v),
        sink(static_cast<size_t>(p.c.heads)),
        dsink(static_cast<size_t>(p.c.heads)),
        bias(p.bias.values()),
        dbias(bias.size()) {
    for (size_t h = 0; h < sink.size(); ++h) sink[h] = p.sink.get(h);
  }

  void forward() { rows(&Double::forward_row); }
  void backward() { rows(&Double::backward_row); }

  /* sum of do o: what finite differences differentiate. */
  double loss() {
    forward();
    double sum = 0;
    p.o->each([&](size_t b, int i, int h, int c) { sum += d_o.at(b, i, h, c) * o.at(b, i, h, c); });
    return sum;
  }

  const Problem &p;
  size_t n;
  Table q, k, v, d_o, o, stats, dq, dk, dv;
  std::vector<double> sink, dsink, bias, dbias;
  double terms = 0; /* largest term of dq and dk, before what cancels */

 private:
  Table copy(const Piece &piece) const {
    Table table(n, piece.size().s, piece.size().h, piece.size().d);
    piece.each([&](size_t b, int i, int h, int c) { table.at(b, i, h, c) = piece.get(b, i, h, c); });
    return table;
  }

  void rows(void (Double::*row)(size_t, int, int)) {
    for (size_t b = 0; b < n; ++b)
      for (int h = 0; h < p.c.heads; ++h)
        for (int i = 0; i < p.c.q_lengths[b]; ++i) (this->*row)(b, h, i);
  }

  /* Slopes of heads: 2^-8 is reached by the last of a power of two, the rest lie between these. */
  double slope(int h) const {
    const double power = std::exp2(std::floor(std::log2(p.c.heads)));
    return h < power ? std::pow(2, -8 * (h + 1) / power) : std::pow(2, -4 * (2 * (h - power) + 1) / power);
  }

  int group(int h) const { return h / (p.c.heads / p.c.kv_heads); }
  bool with_sink() const { return p.c.softmax != NVTE_VANILLA_SOFTMAX; }

  std::vector<double> scores(size_t b, int h, int i) {
    std::vector<double> row(static_cast<size_t>(p.c.kv_lengths[b]), -std::numeric_limits<double>::infinity());
    for (int j = 0; j < p.c.kv_lengths[b]; ++j) {
      if (!p.c.sees(b, i, j)) continue;
      double sum = 0;
      for (int c = 0; c < p.c.dim_qk; ++c) sum += q.at(b, i, h, c) * k.at(b, j, group(h), c);
      double &score = row[static_cast<size_t>(j)] = sum * double{p.c.scale};
      if (p.c.biased()) score += bias[p.bias_at(b, h, i, j)];
      if (p.c.bias == NVTE_ALIBI) score -= slope(h) * std::abs(i - j);
    }
    return row;
  }

  void forward_row(size_t b, int h, int i) {
    const std::vector<double> row = scores(b, h, i);
    double largest = -std::numeric_limits<double>::infinity();
    for (const double score : row) largest = std::max(largest, score);
    if (with_sink()) largest = std::max(largest, sink[static_cast<size_t>(h)]);
    double sum = with_sink() ? std::exp(sink[static_cast<size_t>(h)] - largest) : 0;
    for (const double score : row) sum += std::isinf(score) ? 0 : std::exp(score - largest);
    stats.at(b, i, h, 0) = sum == 0 ? -std::numeric_limits<double>::infinity() : largest + std::log(sum);
    for (int c = 0; c < p.c.dim_v; ++c) o.at(b, i, h, c) = 0;
    for (size_t j = 0; j < row.size(); ++j) {
      if (std::isinf(row[j])) continue;
      const double weight = std::exp(row[j] - stats.at(b, i, h, 0)) * p.keep(b, h, i, static_cast<int>(j));
      for (int c = 0; c < p.c.dim_v; ++c) o.at(b, i, h, c) += weight * v.at(b, static_cast<int64_t>(j), group(h), c);
    }
  }

  void backward_row(size_t b, int h, int i) {
    const std::vector<double> row = scores(b, h, i);
    double delta = 0;
    for (int c = 0; c < p.c.dim_v; ++c) delta += d_o.at(b, i, h, c) * o.at(b, i, h, c);
    if (with_sink()) {
      const double s = sink[static_cast<size_t>(h)];
      dsink[static_cast<size_t>(h)] -= std::exp(s - stats.at(b, i, h, 0)) * delta;
    }
    for (size_t at = 0; at < row.size(); ++at) {
      if (std::isinf(row[at])) continue;
      const auto j = static_cast<int64_t>(at);
      const double probability = std::exp(row[at] - stats.at(b, i, h, 0));
      const double kept = p.keep(b, h, i, static_cast<int>(at));
      double dp = 0, magnitude = 0;
      for (int c = 0; c < p.c.dim_v; ++c) {
        dp += d_o.at(b, i, h, c) * v.at(b, j, group(h), c);
        magnitude +=
            std::fabs(d_o.at(b, i, h, c)) * (kept * std::fabs(v.at(b, j, group(h), c)) + std::fabs(o.at(b, i, h, c)));
        dv.at(b, j, group(h), c) += kept * probability * d_o.at(b, i, h, c);
      }
      if (p.c.biased()) dbias[p.bias_at(b, h, i, static_cast<int>(at))] += probability * (kept * dp - delta);
      const double ds = probability * (kept * dp - delta) * double{p.c.scale};
      magnitude *= probability * double{p.c.scale};
      for (int c = 0; c < p.c.dim_qk; ++c) {
        terms =
            std::max({terms, magnitude * std::fabs(k.at(b, j, group(h), c)), magnitude * std::fabs(q.at(b, i, h, c))});
        dq.at(b, i, h, c) += ds * k.at(b, j, group(h), c);
        dk.at(b, j, group(h), c) += ds * q.at(b, i, h, c);
      }
    }
  }
};

/*
 * How far results may lie from double, relative to the largest magnitude in the tensor. dq and dk get two roundings of
 * their largest term on top: where ds_ij cancels to nothing, as with a single key, its error does not.
 *   forward   FP32: sums of some hundred terms, an exponential within 2 units of the last place. FP16, BF16: the
 * result's rounding (half a unit: 2^-12, 2^-9 of the value) on top. backward  also D_i, made from the rounded o: its
 * error enters every ds_ij, so a few roundings instead of one. stats     never rounded below FP32, whatever the
 * storage.
 */
struct Tolerance {
  double forward, backward, stats;
};
inline Tolerance tolerance(NVTEDType dtype) {
  switch (dtype) {
    case kNVTEFloat32:
      return {3e-6, 1e-5, 1e-6};
    case kNVTEFloat16:
      return {0x1p-11, 0x1p-9, 1e-6};
    default:
      return {0x1p-8, 0x1p-6, 1e-6};
  }
}

inline double largest(const Table &table) {
  double value = 1e-3;
  for (const double entry : table.values) value = std::isfinite(entry) ? std::max(value, std::fabs(entry)) : value;
  return value;
}

/* Compares the valid elements of a tensor; one report for the worst. */
inline void compare(const Problem &problem, const char *what, const Piece &actual, Table &expected, double allowed,
                    double terms = 0) {
  const double limit = allowed * largest(expected) + 2 * check::rounding(problem.c.dtype) * terms;
  double worst = 0;
  std::string where;
  actual.each([&](size_t b, int i, int h, int c) {
    const double difference = std::fabs(actual.get(b, i, h, c) - expected.at(b, i, h, c));
    if (difference <= limit || difference <= worst) return;
    worst = std::isnan(difference) ? std::numeric_limits<double>::infinity() : difference;
    where = chagres::reference::text("b ", b, " token ", i, " head ", h, " column ", c, ": expected ",
                                     expected.at(b, i, h, c), ", got ", actual.get(b, i, h, c));
  });
  if (!where.empty())
    check::report(__FILE__, __LINE__, problem.c.name(), ", ", what, " ", where, " (allowed ", limit, ")");
}

/* Elements that belong to no valid token: THD gaps keep what they had, rows of dense padding are zero. */
inline void compare_rest(Problem &problem) {
  std::map<Array *, std::vector<bool>> valid;
  std::map<Array *, double> expected;
  for (Piece *piece : {problem.out.q.get(), problem.out.k.get(), problem.out.v.get(), problem.o.get()}) {
    std::vector<bool> &marks = valid[&piece->buffer()];
    marks.resize(piece->buffer().count());
    expected[&piece->buffer()] = piece->format() == NVTE_THD ? Problem::kUntouched : 0;
    piece->each([&](size_t b, int i, int h, int c) { marks[piece->at(b, i, h, c)] = true; });
  }
  for (const auto &[buffer, marks] : valid)
    for (size_t at = 0; at < marks.size(); ++at) {
      if (marks[at] || buffer->get(at) == expected[buffer]) continue;
      check::report(__FILE__, __LINE__, problem.c.name(), ", element ", at, " outside every sequence: expected ",
                    expected[buffer], ", got ", buffer->get(at));
      break;
    }
}

/* What forward left in the first auxiliary tensor. */
inline void compare_stats(const Problem &problem, Double &exact) {
  const double limit = tolerance(problem.c.dtype).stats * (1 + largest(exact.stats));
  problem.o->each([&](size_t b, int i, int h, int c) {
    if (c != 0) return;
    const double stats = exact.stats.at(b, i, h, 0), actual = problem.stat(0, b, i, h);
    if (!check::close(actual, stats, 0, limit))
      check::report(__FILE__, __LINE__, problem.c.name(), ", stats of b ", b, " token ", i, " head ", h, ": expected ",
                    stats, ", got ", actual);
  });
}

/* Forward and backward of one case against double. */
inline void check_case(const Case &wanted) {
  Problem problem(wanted);
  problem.forward();
  problem.backward();
  Double exact(problem);
  exact.forward();
  exact.backward();
  const Tolerance allowed = tolerance(wanted.dtype);
  compare(problem, "o", *problem.o, exact.o, allowed.forward);
  compare(problem, "dq", *problem.out.q, exact.dq, allowed.backward, exact.terms);
  compare(problem, "dk", *problem.out.k, exact.dk, allowed.backward, exact.terms);
  compare(problem, "dv", *problem.out.v, exact.dv, allowed.backward);
  compare_rest(problem);
  compare_stats(problem, exact);
  if (wanted.biased())
    check::expect_close(__FILE__, __LINE__, (wanted.name() + ", DBias").c_str(), problem.dbias.values(), exact.dbias,
                        wanted.dtype == kNVTEFloat32 ? 1e-4 : 0x1p-7, allowed.backward * 10);
  if (wanted.softmax != NVTE_VANILLA_SOFTMAX)
    check::expect_close(__FILE__, __LINE__, "dSoftmaxOffset", problem.dsink.values(), exact.dsink, 1e-4,
                        allowed.backward * 10);
}

}  // namespace attention

#endif /* CHAGRES_ATTENTION_DOUBLE_H */

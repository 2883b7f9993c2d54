/* residual_norm_forward and residual_norm_backward: both norms, with and without what may be left out. */
#include <limits>
#include <utility>

#include "harness/fp8.h"
#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr float kEpsilon = 1e-5f;

/* FP32 roundings of a value that comes out of two sums over a row. */
constexpr double kSlack = 16;

enum class Sum { kNone, kResidual, kBiasAndResidual };
/* What forward writes beside or instead of y. */
enum class Cast { kNone, kAmax, kRows, kBoth, kBothAlone };

struct Shape {
  int dtype;
  int64_t rows, columns;
  int kind = OPS_LAYER_NORM, center = 0;
  Sum sum = Sum::kResidual;
  int multiprocessors = 0;
  bool sums() const { return sum != Sum::kNone; }
  bool centered() const { return kind == OPS_LAYER_NORM; }
  int64_t filled() const { return (rows + 15) / 16 * 16; }
  size_t at(int64_t row, int64_t column) const { return static_cast<size_t>(row * columns + column); }
  std::string text() const {
    return shape_text({{"rows", rows}, {"columns", columns}, {"kind", kind}, {"center", center},
                       {"sum", static_cast<int64_t>(sum)}, {"multiprocessors", multiprocessors}});
  }
};

struct Statistics {
  Doubles mean, inverse;
};

Statistics statistics_of(const Doubles &h, const Shape &shape) {
  Statistics result;
  for (int64_t r = 0; r < shape.rows; ++r) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; shape.centered() && c < shape.columns; ++c) mean += h[shape.at(r, c)] / static_cast<double>(shape.columns);
    for (int64_t c = 0; c < shape.columns; ++c) {
      const double off = h[shape.at(r, c)] - mean;
      variance += off * off / static_cast<double>(shape.columns);
    }
    result.mean.push_back(mean);
    result.inverse.push_back(1 / std::sqrt(variance + kEpsilon));
  }
  return result;
}

/* Each code is the nearest to value * scale, but for FP32 roundings of what stands before it. */
void expect_codes(Case &test, const Bytes &codes, const Doubles &wanted, const Doubles &size, double scale,
                  const std::function<size_t(size_t)> &place, const char *what) {
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double value = std::max(-448.0, std::min(448.0, wanted[i] * scale)), got = fp8_value(codes[place(i)], 3);
    const double unit = std::ldexp(1.0, std::max(-9, value == 0 ? -9 : std::ilogb(value) - 3));
    const double slack = kSlack * kFormats[0].roundoff() * size[i] * scale;
    if (std::isnan(wanted[i]) ? std::isnan(got) : std::fabs(got - value) <= unit / 2 + slack) continue;
    return test.fail(std::string(what) + "[" + std::to_string(i) + "] is " + std::to_string(got) + "; expected " +
                     std::to_string(value));
  }
}

struct Forward {
  Doubles h, mean, inverse, y, size;
};

/* The norm in double precision of h as it was stored: it must be that of what backward reads. */
Forward normed(const Shape &shape, const Doubles &h, const Doubles &gamma, const Doubles &beta) {
  const Statistics rows = statistics_of(h, shape);
  Forward result{h, rows.mean, rows.inverse, Doubles(h.size()), Doubles(h.size())};
  for (int64_t r = 0; r < shape.rows; ++r)
    for (int64_t c = 0; c < shape.columns; ++c) {
      const size_t i = shape.at(r, c), row = static_cast<size_t>(r), column = static_cast<size_t>(c);
      const double factor = gamma[column] + shape.center, summand = shape.centered() ? beta[column] : 0;
      result.y[i] = (h[i] - rows.mean[row]) * rows.inverse[row] * factor + summand;
      result.size[i] = (std::fabs(h[i]) + 1) * rows.inverse[row] * std::fabs(factor) + std::fabs(summand);
    }
  return result;
}

void expect_amax(Case &test, const Doubles &got, const Doubles &y, double old, double slack) {
  double largest = old;
  for (double value : y) largest = std::fmax(largest, std::fabs(value));
  if (std::fabs(got[0] - largest) > slack * largest)
    test.fail("amax is " + std::to_string(got[0]) + "; expected " + std::to_string(largest));
}

void forward_case(Session &session, const Shape &shape, Cast cast) {
  Case test(session, "residual_norm_forward", shape.dtype,
            shape.text() + " cast=" + std::to_string(static_cast<int>(cast)));
  const Format &format = format_of(shape.dtype);
  const int64_t count = shape.rows * shape.columns;
  const bool sums = shape.sums(), adds_bias = shape.sum == Sum::kBiasAndResidual, fp8 = cast >= Cast::kRows, transposes = cast >= Cast::kBoth;
  Doubles x = session.random.normal(format, count);
  const Doubles residual = session.random.normal(format, count);
  if (fp8 && shape.rows > 3) x[shape.at(3, 1)] = kNan;
  const Doubles gamma = session.random.normal(format, shape.columns), beta = session.random.normal(format, shape.columns);
  const Doubles bias = session.random.normal(format, shape.columns);
  const Doubles nothing(x.size(), kNan), row_of_nothing(static_cast<size_t>(shape.rows), kNan);
  Buffer in = session.floats(shape.dtype, x), other = session.floats(shape.dtype, residual);
  Buffer factor = session.floats(shape.dtype, gamma), summand = session.floats(shape.dtype, beta);
  Buffer left = session.floats(shape.dtype, bias);
  Buffer h = session.floats(shape.dtype, nothing), y = session.floats(shape.dtype, nothing);
  Buffer mean = session.floats(4, row_of_nothing), inverse = session.floats(4, row_of_nothing);
  Buffer y8 = session.raw(Bytes(x.size(), 0x55));
  Buffer transposed = session.raw(Bytes(static_cast<size_t>(shape.filled() * shape.columns), 0x55));
  const float of_scale = 96;
  Buffer scale = session.floats(4, {of_scale}), amax = session.floats(4, {0.25}), scale_inverse = session.floats(4, {0});
  OpsResidualNorm norm = {};
  norm.x = in.data();
  norm.gamma = factor.data();
  if (shape.centered()) {
    norm.beta = summand.data();
    norm.mean = mean.data<float>();
  }
  if (sums) {
    norm.residual = other.data();
    norm.h = h.data();
  }
  if (adds_bias) norm.bias = left.data();
  if (cast != Cast::kBothAlone) norm.y = y.data();
  norm.inverse = inverse.data<float>();
  if (cast != Cast::kNone) norm.amax = amax.data<float>();
  if (fp8) {
    norm.y8 = y8.data();
    norm.scale = scale.data<float>();
    norm.scale_inverse = scale_inverse.data<float>();
  }
  if (transposes) norm.y8_transposed = transposed.data();
  norm.rows = shape.rows;
  norm.columns = shape.columns;
  norm.filled_rows = shape.filled();
  norm.epsilon = kEpsilon;
  norm.kind = shape.kind;
  norm.center = shape.center;
  norm.dtype = shape.dtype;
  norm.multiprocessors = shape.multiprocessors;
  if (!test.run({&h, &y, &mean, &inverse, &y8, &transposed, &amax, &scale_inverse},
                [&] { return session.ops.residual_norm_forward(&norm, session.memory.stream()); }))
    return;
  Doubles got_h = x;
  if (sums) {
    Doubles sum(x.size()), size(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      const double added = adds_bias ? bias[i % bias.size()] : 0;
      sum[i] = x[i] + added + residual[i];
      size[i] = std::fabs(x[i]) + std::fabs(added) + std::fabs(residual[i]);
    }
    got_h = test.output(0, shape.dtype);
    test.close(shape.dtype, got_h, sum, size, 1, "h");
  }
  const Forward wanted = normed(shape, got_h, gamma, beta);
  if (cast != Cast::kBothAlone) test.close(shape.dtype, test.output(1, shape.dtype), wanted.y, wanted.size, kSlack, "y");
  else test.equal(test.output(1, shape.dtype), nothing, "y that is not wanted");
  if (shape.centered()) test.close(4, test.output(2, 4), wanted.mean, Doubles(wanted.mean.size(), 1), kSlack, "mean");
  test.close(4, test.output(3, 4), wanted.inverse, wanted.inverse, kSlack, "inverse");
  if (shape.rows == 0 || cast == Cast::kNone) return;
  expect_amax(test, test.output(6, 4), wanted.y, 0.25, fp8 ? 1e-5 : 1e-5 + format.roundoff());
  if (!fp8) return;
  expect_codes(test, test.output(4), wanted.y, wanted.size, of_scale, [](size_t i) { return i; }, "y8");
  test.close(4, test.output(7, 4), {1 / of_scale}, {1 / of_scale}, 1, "scale_inverse");
  if (!transposes) return;
  const auto columns = static_cast<size_t>(shape.columns), filled = static_cast<size_t>(shape.filled());
  expect_codes(test, test.output(5), wanted.y, wanted.size, of_scale,
               [=](size_t i) { return i % columns * filled + i / columns; }, "y8_transposed");
  for (size_t c = 0; c < columns; ++c)
    for (size_t r = static_cast<size_t>(shape.rows); r < filled; ++r)
      if (test.output(5)[c * filled + r] != 0) return test.fail("y8_transposed is not 0 behind the last row");
}

struct Gradients {
  Doubles dh, dh_scale, dgamma, dbeta, gamma_scale, beta_scale;
};

Gradients gradients_of(const Shape &shape, const Doubles &dy, const Doubles &h, const Doubles &gamma,
                       const Doubles &dresidual, const Statistics &row_of, const Doubles &old, float factor) {
  Gradients wanted{Doubles(h.size()), Doubles(h.size()), Doubles(old.size()), Doubles(old.size()), Doubles(old.size()),
                   Doubles(old.size())};
  for (size_t c = 0; c < old.size(); ++c) {
    wanted.dgamma[c] = wanted.dbeta[c] = factor == 0 ? 0 : factor * old[c];
    wanted.gamma_scale[c] = wanted.beta_scale[c] = std::fabs(wanted.dgamma[c]);
  }
  const double columns = static_cast<double>(shape.columns);
  for (int64_t r = 0; r < shape.rows; ++r) {
    const double mean = row_of.mean[static_cast<size_t>(r)], inverse = row_of.inverse[static_cast<size_t>(r)];
    double sum = 0, products = 0, size = 0;
    for (int64_t c = 0; c < shape.columns; ++c) {
      const size_t i = shape.at(r, c), column = static_cast<size_t>(c);
      const double n = (h[i] - mean) * inverse, g = dy[i] * (gamma[column] + shape.center);
      sum += shape.centered() ? g : 0;
      products += g * n;
      size += std::fabs(g) * (1 + std::fabs(n));
      wanted.dgamma[column] += dy[i] * n;
      wanted.dbeta[column] += dy[i];
      wanted.gamma_scale[column] += std::fabs(dy[i]) * (std::fabs(n) + inverse);
      wanted.beta_scale[column] += std::fabs(dy[i]);
    }
    for (int64_t c = 0; c < shape.columns; ++c) {
      const size_t i = shape.at(r, c), column = static_cast<size_t>(c);
      const double n = (h[i] - mean) * inverse, g = dy[i] * (gamma[column] + shape.center);
      wanted.dh[i] = dresidual[i] + inverse * (g - sum / columns - n * products / columns);
      wanted.dh_scale[i] = std::fabs(dresidual[i]) +
                           inverse * (std::fabs(g) + size / columns * (1 + std::fabs(n)) + inverse);
    }
  }
  return wanted;
}

/* dresidual is added to the norm's own gradient as that is stored without one. */
void expect_sum_of_rounded(Case &test, int dtype, const Doubles &own, const Doubles &dresidual, const Doubles &got) {
  Doubles wanted(own.size());
  for (size_t i = 0; i < own.size(); ++i) wanted[i] = round_to(format_of(dtype), own[i] + dresidual[i]);
  test.equal(got, wanted, "dh");
}

void backward_case(Session &session, const Shape &shape, float factor) {
  Case test(session, "residual_norm_backward", shape.dtype, shape.text() + " accumulate=" + std::to_string(factor));
  const Format &format = format_of(shape.dtype);
  const int64_t count = shape.rows * shape.columns;
  const bool sums = shape.sums();
  const Doubles dy = session.random.normal(format, count), h = session.random.normal(format, count);
  Doubles dresidual = session.random.normal(format, count);
  if (!sums) std::fill(dresidual.begin(), dresidual.end(), 0);
  const Doubles gamma = session.random.normal(format, shape.columns);
  const Doubles old = session.random.normal(kFormats[0], shape.columns);
  Statistics rows = statistics_of(h, shape);
  for (double &value : rows.mean) value = static_cast<float>(value);
  for (double &value : rows.inverse) value = static_cast<float>(value);
  const Gradients wanted = gradients_of(shape, dy, h, gamma, dresidual, rows, old, factor);
  Buffer gradient = session.floats(shape.dtype, dy), input = session.floats(shape.dtype, h);
  Buffer mean = session.floats(4, rows.mean), inverse = session.floats(4, rows.inverse);
  Buffer factors = session.floats(shape.dtype, gamma);
  Buffer dh = session.floats(shape.dtype, sums ? dresidual : Doubles(dresidual.size(), kNan)); /* in dresidual's place */
  Buffer dgamma = session.floats(4, factor == 0 ? Doubles(old.size(), kNan) : old);
  Buffer dbeta = session.floats(4, factor == 0 ? Doubles(old.size(), kNan) : old);
  OpsResidualNorm norm = {};
  norm.dy = gradient.data();
  norm.h = input.data();
  norm.inverse = inverse.data<float>();
  norm.gamma = factors.data();
  if (shape.rows == 0) norm.gamma = reinterpret_cast<void *>(uintptr_t{0x1001}); /* then it is not looked at */
  norm.dh = dh.data();
  if (sums) norm.dresidual = dh.data();
  norm.dgamma = dgamma.data<float>();
  if (shape.centered()) {
    norm.mean = mean.data<float>();
    norm.dbeta = dbeta.data<float>();
  }
  norm.rows = shape.rows;
  norm.columns = shape.columns;
  norm.accumulate = factor;
  norm.kind = shape.kind;
  norm.center = shape.center;
  norm.dtype = shape.dtype;
  norm.multiprocessors = shape.multiprocessors;
  if (!test.run({&dh, &dgamma, &dbeta},
                [&] { return session.ops.residual_norm_backward(&norm, session.memory.stream()); }))
    return;
  if (!sums || format.size == 4) test.close(shape.dtype, test.output(0, shape.dtype), wanted.dh, wanted.dh_scale, kSlack, "dh");
  test.close(4, test.output(1, 4), wanted.dgamma, wanted.gamma_scale, kSlack, "dgamma");
  if (shape.centered()) test.close(4, test.output(2, 4), wanted.dbeta, wanted.beta_scale, kSlack, "dbeta");
  if (!sums || format.size == 4) return;
  const Doubles got = test.output(0, shape.dtype);
  norm.dresidual = nullptr;
  if (test.run({&dh}, [&] { return session.ops.residual_norm_backward(&norm, session.memory.stream()); }))
    expect_sum_of_rounded(test, shape.dtype, test.output(0, shape.dtype), dresidual, got);
}

/* Everything that may be left out, at sizes round those of a tile. */
void variants(Session &session, int64_t rows, int64_t columns) {
  for (const Format &format : kFormats)
    for (int kind : {OPS_LAYER_NORM, OPS_RMS_NORM})
      for (int center : {0, 1})
        for (Sum sum : {Sum::kNone, Sum::kResidual, Sum::kBiasAndResidual}) {
          const Shape shape{format.dtype, rows, columns, kind, center, sum};
          for (Cast cast : {Cast::kNone, Cast::kAmax, Cast::kRows, Cast::kBoth, Cast::kBothAlone}) {
            if (cast < Cast::kRows || columns % 16 == 0) forward_case(session, shape, cast);
          }
          if (sum != Sum::kBiasAndResidual) backward_case(session, shape, 0.5f);
        }
}

/* What is wrong about the struct is told; nothing is enqueued. */
void norm_mistakes(Session &session) {
  void *const p = reinterpret_cast<void *>(uintptr_t{0x1000});
  float *const f = static_cast<float *>(p);
  OpsResidualNorm good = {};
  good.x = good.gamma = good.beta = p;
  good.y = p;
  good.mean = good.inverse = f;
  good.rows = 3;
  good.columns = 24;
  good.epsilon = kEpsilon;
  good.dtype = 6;
  const auto refused = [&](const OpsResidualNorm *norm, const std::string &text) {
    Case test(session, "residual_norm_forward", 6, text);
    const int status = session.ops.residual_norm_forward(norm, session.memory.stream());
    const std::string told = session.ops.last_error();
    if (status != OPS_INVALID_ARGUMENT || told != "ops_residual_norm_forward: " + text) test.fail("told: " + told);
  };
  refused(nullptr, "norm is null; expected a host address");
  OpsResidualNorm bad = good;
  bad.kind = 2;
  refused(&bad, "kind is 2; expected 0 to 1");
  bad = good;
  bad.center = -1;
  refused(&bad, "center is -1; expected 0 to 1");
  bad = good;
  bad.multiprocessors = -1;
  refused(&bad, "multiprocessors is -1; expected 0 to 2147483647");
  bad = good;
  bad.y = nullptr;
  refused(&bad, "y is null; expected y, y8 or y8_transposed");
  bad = good;
  bad.scale = f;
  refused(&bad, "scale is given; expected null, for neither y8 nor y8_transposed is given");
  bad = good;
  bad.scale_inverse = f;
  refused(&bad, "scale_inverse is given; expected null, for neither y8 nor y8_transposed is given");
  bad = good;
  bad.bias = p;
  refused(&bad, "bias is given; expected null without a residual");
  bad = good;
  bad.y8 = p;
  refused(&bad, "scale is null; expected a device pointer");
  bad.scale = f;
  refused(&bad, "columns is 24; expected a multiple of 16 for FP8");
  bad.columns = 32;
  bad.y8_transposed = p;
  bad.filled_rows = 3;
  refused(&bad, "filled_rows is 3; expected 16 to 16");
}

}  // namespace

void residual_norm_cases(Session &session) {
  const int64_t shapes[][2] = {{0, 64},   {1, 8},     {7, 64},    {9, 320},    {33, 480},   {65, 640},
                               {17, 768}, {33, 1024}, {130, 1280}, {5, 2560}, {16, 4096},  {16384, 320}, {4099, 1280}};
  for (const auto &[rows, columns] : shapes) {
    if (rows * columns > 100000 && !session.large) continue;
    for (const Format &format : kFormats) {
      const Shape shape{format.dtype, rows, columns};
      forward_case(session, shape, Cast::kNone);
      backward_case(session, shape, 0);
      backward_case(session, shape, 1);
    }
  }
  const int64_t of_tiles[][2] = {{0, 64}, {1, 16}, {15, 32}, {17, 48}, {33, 320}, {3, 72}};
  for (const auto &[rows, columns] : of_tiles) variants(session, rows, columns);
  forward_case(session, {6, 19, 4096, OPS_RMS_NORM, 0, Sum::kResidual}, Cast::kBothAlone);
  forward_case(session, {6, 40, 8192, OPS_LAYER_NORM, 1, Sum::kNone}, Cast::kBoth);
  forward_case(session, {6, 150, 3600, OPS_LAYER_NORM, 0, Sum::kBiasAndResidual}, Cast::kBoth); /* turned by a kernel of its own */
  /* One multiprocessor, some, all but one of an emulated device and of an H200, more than there are. */
  for (int multiprocessors : {1, 2, 3, 16, 131, INT32_MAX})
    for (const auto &[rows, columns] : {std::pair<int64_t, int64_t>{67, 48}, {41, 1280}, {5, 4096}}) {
      const Shape shape{6, rows, columns, OPS_LAYER_NORM, 0, Sum::kResidual, multiprocessors};
      forward_case(session, shape, Cast::kAmax);
      forward_case(session, shape, Cast::kBoth);
      backward_case(session, shape, 1);
    }
  if (session.large) {
    for (int multiprocessors : {1, 116, 131}) {
      const Shape shape{6, 4099, 1280, OPS_RMS_NORM, 1, Sum::kResidual, multiprocessors};
      forward_case(session, shape, Cast::kBoth);
      backward_case(session, shape, 0);
    }
    forward_case(session, {6, 4099, 1280, OPS_LAYER_NORM, 0, Sum::kResidual}, Cast::kBothAlone);
    forward_case(session, {6, 4099, 4096, OPS_LAYER_NORM, 0, Sum::kBiasAndResidual}, Cast::kBoth);
  }
  norm_mistakes(session);
}

}  // namespace chagres::tests

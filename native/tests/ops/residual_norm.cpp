/* residual_norm_forward and residual_norm_backward. */
#include <limits>

#include "harness/report.h"

namespace chagres::tests {

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr float kEpsilon = 1e-5f;

/* FP32 roundings of a value that comes out of two sums over a row. */
constexpr double kSlack = 16;

struct Shape {
  int dtype;
  int64_t rows, columns;
  size_t at(int64_t row, int64_t column) const { return static_cast<size_t>(row * columns + column); }
  std::string text() const { return shape_text({{"rows", rows}, {"columns", columns}}); }
};

struct Statistics {
  Doubles mean, inverse;
};

Statistics statistics_of(const Doubles &h, const Shape &shape) {
  Statistics result;
  for (int64_t r = 0; r < shape.rows; ++r) {
    double mean = 0, variance = 0;
    for (int64_t c = 0; c < shape.columns; ++c) mean += h[shape.at(r, c)] / static_cast<double>(shape.columns);
    for (int64_t c = 0; c < shape.columns; ++c) {
      const double off = h[shape.at(r, c)] - mean;
      variance += off * off / static_cast<double>(shape.columns);
    }
    result.mean.push_back(mean);
    result.inverse.push_back(1 / std::sqrt(variance + kEpsilon));
  }
  return result;
}

void forward_case(Session &session, const Shape &shape) {
  Case test(session, "residual_norm_forward", shape.dtype, shape.text());
  const Format &format = format_of(shape.dtype);
  const int64_t count = shape.rows * shape.columns;
  const Doubles x = session.random.normal(format, count), residual = session.random.normal(format, count);
  const Doubles gamma = session.random.normal(format, shape.columns), beta = session.random.normal(format, shape.columns);
  Buffer in = session.floats(shape.dtype, x), other = session.floats(shape.dtype, residual);
  Buffer factor = session.floats(shape.dtype, gamma), summand = session.floats(shape.dtype, beta);
  Buffer h = session.floats(shape.dtype, Doubles(x.size(), kNan)), y = session.floats(shape.dtype, Doubles(x.size(), kNan));
  Buffer mean = session.floats(4, Doubles(static_cast<size_t>(shape.rows), kNan));
  Buffer inverse = session.floats(4, Doubles(static_cast<size_t>(shape.rows), kNan));
  if (!test.run({&h, &y, &mean, &inverse}, [&] {
        return session.ops.residual_norm_forward(in.data(), other.data(), factor.data(), summand.data(), kEpsilon,
                                                 h.data(), y.data(), mean.data<float>(), inverse.data<float>(),
                                                 shape.rows, shape.columns, shape.dtype, session.memory.stream());
      }))
    return;
  Doubles sum(x.size()), scale(x.size());
  for (size_t i = 0; i < x.size(); ++i) {
    sum[i] = x[i] + residual[i];
    scale[i] = std::fabs(x[i]) + std::fabs(residual[i]);
  }
  const Doubles got_h = test.output(0, shape.dtype);
  test.close(shape.dtype, got_h, sum, scale, 1, "h");
  /* From here on with the sum as it was stored: the norm must be that of what backward reads. */
  const Statistics wanted = statistics_of(got_h, shape);
  Doubles normed(x.size()), size(x.size());
  for (int64_t r = 0; r < shape.rows; ++r)
    for (int64_t c = 0; c < shape.columns; ++c) {
      const size_t i = shape.at(r, c), row = static_cast<size_t>(r), column = static_cast<size_t>(c);
      normed[i] = (got_h[i] - wanted.mean[row]) * wanted.inverse[row] * gamma[column] + beta[column];
      size[i] = (std::fabs(got_h[i]) + 1) * wanted.inverse[row] * std::fabs(gamma[column]) + std::fabs(beta[column]);
    }
  test.close(shape.dtype, test.output(1, shape.dtype), normed, size, kSlack, "y");
  test.close(4, test.output(2, 4), wanted.mean, Doubles(wanted.mean.size(), 1), kSlack, "mean");
  test.close(4, test.output(3, 4), wanted.inverse, wanted.inverse, kSlack, "inverse");
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
      const double n = (h[i] - mean) * inverse, g = dy[i] * gamma[column];
      sum += g;
      products += g * n;
      size += std::fabs(g) * (1 + std::fabs(n));
      wanted.dgamma[column] += dy[i] * n;
      wanted.dbeta[column] += dy[i];
      wanted.gamma_scale[column] += std::fabs(dy[i]) * (std::fabs(n) + inverse);
      wanted.beta_scale[column] += std::fabs(dy[i]);
    }
    for (int64_t c = 0; c < shape.columns; ++c) {
      const size_t i = shape.at(r, c), column = static_cast<size_t>(c);
      const double n = (h[i] - mean) * inverse, g = dy[i] * gamma[column];
      wanted.dh[i] = dresidual[i] + inverse * (g - sum / columns - n * products / columns);
      wanted.dh_scale[i] = std::fabs(dresidual[i]) +
                           inverse * (std::fabs(g) + size / columns * (1 + std::fabs(n)) + inverse);
    }
  }
  return wanted;
}

void backward_case(Session &session, const Shape &shape, float factor) {
  Case test(session, "residual_norm_backward", shape.dtype, shape.text() + " accumulate=" + std::to_string(factor));
  const Format &format = format_of(shape.dtype);
  const int64_t count = shape.rows * shape.columns;
  const Doubles dy = session.random.normal(format, count), h = session.random.normal(format, count);
  const Doubles dresidual = session.random.normal(format, count), gamma = session.random.normal(format, shape.columns);
  const Doubles old = session.random.normal(kFormats[0], shape.columns);
  Statistics rows = statistics_of(h, shape);
  for (double &value : rows.mean) value = static_cast<float>(value);
  for (double &value : rows.inverse) value = static_cast<float>(value);
  const Gradients wanted = gradients_of(shape, dy, h, gamma, dresidual, rows, old, factor);
  Buffer gradient = session.floats(shape.dtype, dy), input = session.floats(shape.dtype, h);
  Buffer mean = session.floats(4, rows.mean), inverse = session.floats(4, rows.inverse);
  Buffer factors = session.floats(shape.dtype, gamma);
  Buffer dh = session.floats(shape.dtype, dresidual); /* in the place of dresidual */
  Buffer dgamma = session.floats(4, factor == 0 ? Doubles(old.size(), kNan) : old);
  Buffer dbeta = session.floats(4, factor == 0 ? Doubles(old.size(), kNan) : old);
  if (!test.run({&dh, &dgamma, &dbeta}, [&] {
        return session.ops.residual_norm_backward(
            gradient.data(), input.data(), mean.data<float>(), inverse.data<float>(), factors.data(), dh.data(),
            dh.data(), dgamma.data<float>(), dbeta.data<float>(), factor, shape.rows, shape.columns, shape.dtype,
            session.memory.stream());
      }))
    return;
  test.close(shape.dtype, test.output(0, shape.dtype), wanted.dh, wanted.dh_scale, kSlack, "dh");
  test.close(4, test.output(1, 4), wanted.dgamma, wanted.gamma_scale, kSlack, "dgamma");
  test.close(4, test.output(2, 4), wanted.dbeta, wanted.beta_scale, kSlack, "dbeta");
}

}  // namespace

void residual_norm_cases(Session &session) {
  const int64_t shapes[][2] = {{0, 64},   {1, 8},     {7, 64},    {9, 320},    {33, 480},   {65, 640},
                               {17, 768}, {130, 1280}, {5, 2560}, {16, 4096},  {16384, 320}, {4099, 1280}};
  for (const auto &[rows, columns] : shapes) {
    if (rows * columns > 100000 && !session.large) continue;
    for (const Format &format : kFormats) {
      const Shape shape{format.dtype, rows, columns};
      forward_case(session, shape);
      backward_case(session, shape, 0);
      backward_case(session, shape, 1);
    }
  }
}

}  // namespace chagres::tests

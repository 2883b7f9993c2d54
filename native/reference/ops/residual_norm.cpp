/* Operations: norms, with the residual sum before them and FP8 behind them. */
#include "cuda/capture.h"
#include "ops/operations.h"
#include "runtime/sums.h"

#include <cmath>

using namespace chagres;
using namespace chagres::reference;

namespace {

struct Row {
  float mean, inverse;
};

CHAGRES_CLONES Row statistics(const float *h, int64_t count, float epsilon, bool centered) {
  /* One long sum in FP32 would lose what the GPU's short ones keep. */
  const auto columns = static_cast<double>(count);
  const double mean = centered ? wide_lane_sum(count, [&](int64_t c) -> double { return h[c]; }) / columns : 0;
  const double squares = wide_lane_sum(count, [&](int64_t c) { return (h[c] - mean) * (h[c] - mean); });
  return {static_cast<float>(mean), static_cast<float>(1 / std::sqrt(squares / columns + epsilon))};
}

CHAGRES_CLONES void add(float *h, const float *x, const float *residual, int64_t count) {
#pragma GCC ivdep
  for (int64_t c = 0; c < count; ++c) h[c] = x[c] + residual[c];
}

CHAGRES_CLONES void add(float *h, const float *x, const float *bias, const float *residual, int64_t count) {
#pragma GCC ivdep
  for (int64_t c = 0; c < count; ++c) h[c] = x[c] + bias[c] + residual[c];
}

CHAGRES_CLONES void normalize(float *y, const float *h, const Row &row, const float *gamma, const float *beta,
                              int64_t count) {
#pragma GCC ivdep
  for (int64_t c = 0; c < count; ++c) y[c] = (h[c] - row.mean) * row.inverse * gamma[c] + beta[c];
}

/* `values` becomes the gradient of the norm's input; the row's terms are added to dgamma and dbeta. */
CHAGRES_CLONES void differentiate(float *values, const float *h, const float *dy, const float *gamma, const Row &row,
                                  float *dgamma, float *dbeta, int64_t count, bool centered) {
#pragma GCC ivdep
  for (int64_t c = 0; c < count; ++c) {
    values[c] = (h[c] - row.mean) * row.inverse;
    dgamma[c] += dy[c] * values[c];
    dbeta[c] += dy[c];
  }
  const auto columns = static_cast<double>(count);
  const auto sum = [&] { return wide_lane_sum(count, [&](int64_t c) -> double { return dy[c] * gamma[c]; }); };
  const float average = centered ? static_cast<float>(sum() / columns) : 0;
  const double products = wide_lane_sum(count, [&](int64_t c) -> double { return dy[c] * gamma[c] * values[c]; });
  const auto slope = static_cast<float>(products / columns);
#pragma GCC ivdep
  for (int64_t c = 0; c < count; ++c) values[c] = row.inverse * (dy[c] * gamma[c] - average - values[c] * slope);
}

CHAGRES_CLONES void accumulate(float *out, float factor, const float *sum, int64_t count) {
  for (int64_t c = 0; c < count; ++c) out[c] = factor == 0 ? sum[c] : factor * out[c] + sum[c];
}

CHAGRES_CLONES float largest(const float *y, int64_t count) {
  float result = 0;
  for (int64_t c = 0; c < count; ++c) result = std::fmax(result, std::fabs(y[c]));
  return result;
}

/* Gamma, and 1 more where it is centred on zero. */
void to_factors(float *factors, const OpsResidualNorm &n) {
  to_float(factors, n.gamma, as_dtype(n.dtype), n.columns);
  for (int64_t c = 0; n.center != 0 && c < n.columns; ++c) factors[c] += 1;
}

/* Writes a row in FP8, and as a column of the transpose. `y` is used up. */
void cast_row(const OpsResidualNorm &n, int64_t row, float *y, uint8_t *bytes) {
  scale_floats(y, y, *n.scale, n.columns);
  from_float(bytes, y, kNVTEFloat8E4M3, n.columns);
  if (n.y8 != nullptr) std::copy(bytes, bytes + n.columns, static_cast<uint8_t *>(n.y8) + row * n.columns);
  auto *transposed = static_cast<uint8_t *>(n.y8_transposed);
  for (int64_t c = 0; transposed != nullptr && c < n.columns; ++c) transposed[c * n.filled_rows + row] = bytes[c];
}

/* x, or its sum with bias and residual as backward will read it, which n.h gets; `buffer` is for what is not Float32. */
const float *summed_row(const OpsResidualNorm &n, int64_t start, const float *x, const float *bias, float *buffer) {
  if (n.residual == nullptr) return x;
  const NVTEDType type = as_dtype(n.dtype);
  const FloatRun residual(element(n.residual, start, type), type, n.columns);
  if (type == kNVTEFloat32) buffer = static_cast<float *>(n.h) + start;
  if (n.bias == nullptr) add(buffer, x, residual.data(), n.columns);
  else add(buffer, x, bias, residual.data(), n.columns);
  if (type == kNVTEFloat32) return buffer;
  from_float(element(n.h, start, type), buffer, type, n.columns);
  to_float(buffer, element(n.h, start, type), type, n.columns);
  return buffer;
}

/* Forward of one row, in `row` and `other`. Returns its largest magnitude. */
float forward_row(const OpsResidualNorm &n, int64_t r, const float *bias, const float *factors, const float *summands,
                  float *row, float *other) {
  const NVTEDType type = as_dtype(n.dtype);
  const int64_t columns = n.columns, start = r * columns;
  const bool centered = n.kind == OPS_LAYER_NORM;
  const FloatRun x(element(n.x, start, type), type, columns);
  const float *h = summed_row(n, start, x.data(), bias, row);
  const Row of_row = statistics(h, columns, n.epsilon, centered);
  if (centered) n.mean[r] = of_row.mean;
  n.inverse[r] = of_row.inverse;
  const bool in_place = type == kNVTEFloat32 && n.y != nullptr && n.scale == nullptr;
  if (in_place) row = static_cast<float *>(n.y) + start;
  normalize(row, h, of_row, factors, summands, columns);
  float result = n.amax != nullptr && n.scale != nullptr ? largest(row, columns) : 0;
  if (n.y != nullptr) {
    void *rounded = element(n.y, start, type);
    if (!in_place) from_float(rounded, row, type, columns);
    if (n.amax != nullptr && n.scale == nullptr) {
      to_float(other, rounded, type, columns); /* a later cast of y needs the amax of y as stored */
      result = largest(other, columns);
    }
  }
  if (n.scale != nullptr) cast_row(n, r, row, reinterpret_cast<uint8_t *>(other));
  return result;
}

/* Rows whose terms of dgamma and dbeta one thread adds up in their order. */
constexpr int64_t kRows = 128;

}  // namespace

int ops_residual_norm_forward(const OpsResidualNorm *norm, OpsStream stream) try {
  const int status = ops::check_residual_norm_forward(norm);
  if (status != OPS_SUCCESS || norm->rows == 0) return status;
  if (recorded_problem("a call", norm, stream, ops_residual_norm_forward)) return OPS_SUCCESS;
  const OpsResidualNorm &n = *norm;
  return run("ops_residual_norm_forward", [&] {
    Scratch bias(n.columns), factors(n.columns), summands(n.columns), largest_of(n.rows);
    if (n.bias != nullptr) to_float(bias.data(), n.bias, as_dtype(n.dtype), n.columns);
    to_factors(factors.data(), n);
    std::fill(summands.data(), summands.data() + n.columns, 0.0f);
    if (n.kind == OPS_LAYER_NORM) to_float(summands.data(), n.beta, as_dtype(n.dtype), n.columns);
    parallel_for(0, n.rows, grain_for(n.columns), [&](int64_t first, int64_t last) {
      Scratch row(n.columns), other(n.columns);
      for (int64_t r = first; r < last; ++r)
        largest_of.data()[r] =
            forward_row(n, r, bias.data(), factors.data(), summands.data(), row.data(), other.data());
    });
    auto *transposed = static_cast<uint8_t *>(n.y8_transposed);
    for (int64_t c = 0; transposed != nullptr && c < n.columns; ++c)
      std::fill(transposed + c * n.filled_rows + n.rows, transposed + (c + 1) * n.filled_rows, uint8_t{0});
    if (n.amax != nullptr) *n.amax = std::fmax(*n.amax, largest(largest_of.data(), n.rows));
    if (n.scale_inverse != nullptr) *n.scale_inverse = 1 / *n.scale;
  });
} OPS_CATCH

int ops_residual_norm_backward(const OpsResidualNorm *norm, OpsStream stream) try {
  const int status = ops::check_residual_norm_backward(norm);
  if (status != OPS_SUCCESS) return status;
  if (recorded_problem("a call", norm, stream, ops_residual_norm_backward)) return OPS_SUCCESS;
  const OpsResidualNorm &n = *norm;
  const NVTEDType type = as_dtype(n.dtype);
  const bool centered = n.kind == OPS_LAYER_NORM;
  const int64_t rows = n.rows, columns = n.columns;
  return run("ops_residual_norm_backward", [&] {
    const int64_t blocks = (rows + kRows - 1) / kRows;
    Scratch factors(columns), partial(2 * blocks * columns), total(2 * columns);
    if (rows > 0) to_factors(factors.data(), n);
    std::fill(partial.data(), partial.data() + 2 * blocks * columns, 0.0f);
    std::fill(total.data(), total.data() + 2 * columns, 0.0f);
    parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
      Scratch value(columns);
      for (int64_t r = first * kRows; r < std::min(last * kRows, rows); ++r) {
        float *sums = partial.data() + 2 * (r / kRows) * columns;
        const FloatRun h(element(n.h, r * columns, type), type, columns);
        const FloatRun gradient(element(n.dy, r * columns, type), type, columns);
        differentiate(value.data(), h.data(), gradient.data(), factors.data(), {centered ? n.mean[r] : 0, n.inverse[r]}, sums,
                      sums + columns, columns, centered);
        void *dh = element(n.dh, r * columns, type);
        if (n.dresidual != nullptr) {
          const FloatRun residual(element(n.dresidual, r * columns, type), type, columns);
          if (type != kNVTEFloat32) { /* dh may be dresidual, of which there is a copy */
            from_float(dh, value.data(), type, columns);
            to_float(value.data(), dh, type, columns);
          }
          add_floats(value.data(), residual.data(), columns);
        }
        from_float(dh, value.data(), type, columns);
      }
    });
    for (int64_t b = 0; b < blocks; ++b) add_floats(total.data(), partial.data() + 2 * b * columns, 2 * columns);
    accumulate(n.dgamma, n.accumulate, total.data(), columns);
    if (centered) accumulate(n.dbeta, n.accumulate, total.data() + columns, columns);
  });
} OPS_CATCH

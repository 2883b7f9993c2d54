/* Operations: the residual sum with its layer norm. */
#include "ops/operations.h"

#include <cmath>

using namespace chagres;
using namespace chagres::reference;

namespace {

struct Row {
  float mean, inverse;
};

CHAGRES_CLONES Row statistics(const float *h, int64_t count, float epsilon) {
  /* One long sum in FP32 would lose what the GPU's short ones keep. */
  double sum = 0, squares = 0;
  for (int64_t c = 0; c < count; ++c) sum += h[c];
  const double mean = sum / static_cast<double>(count);
  for (int64_t c = 0; c < count; ++c) squares += (h[c] - mean) * (h[c] - mean);
  return {static_cast<float>(mean), static_cast<float>(1 / std::sqrt(squares / static_cast<double>(count) + epsilon))};
}

CHAGRES_CLONES void normalize(float *h, const Row &row, const float *gamma, const float *beta, int64_t count) {
  for (int64_t c = 0; c < count; ++c) h[c] = (h[c] - row.mean) * row.inverse * gamma[c] + beta[c];
}

/* h becomes the gradient of the norm's input; the row's terms are added to dgamma and dbeta. */
CHAGRES_CLONES void differentiate(float *h, const float *dy, const float *gamma, const Row &row, float *dgamma,
                                  float *dbeta, int64_t count) {
  double sum = 0, products = 0;
  for (int64_t c = 0; c < count; ++c) {
    h[c] = (h[c] - row.mean) * row.inverse;
    dgamma[c] += dy[c] * h[c];
    dbeta[c] += dy[c];
    const float scaled = dy[c] * gamma[c];
    sum += scaled;
    products += scaled * h[c];
  }
  const float average = static_cast<float>(sum / static_cast<double>(count));
  const float slope = static_cast<float>(products / static_cast<double>(count));
  for (int64_t c = 0; c < count; ++c) h[c] = row.inverse * (dy[c] * gamma[c] - average - h[c] * slope);
}

CHAGRES_CLONES void accumulate(float *out, float factor, const float *sum, int64_t count) {
  for (int64_t c = 0; c < count; ++c) out[c] = factor == 0 ? sum[c] : factor * out[c] + sum[c];
}

/* Rows whose terms of dgamma and dbeta one thread adds up in their order. */
constexpr int64_t kRows = 128;

}  // namespace

int ops_residual_norm_forward(const void *x, const void *residual, const void *gamma, const void *beta, float epsilon,
                              void *h, void *y, float *mean, float *inverse, int64_t rows, int64_t columns, int dtype,
                              OpsStream) try {
  const int status = ops::check_residual_norm_forward(x, residual, gamma, beta, epsilon, h, y, mean, inverse, rows,
                                                      columns, dtype);
  if (status != OPS_SUCCESS || rows == 0) return status;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_residual_norm_forward", [&] {
    Scratch factors(columns), summands(columns);
    to_float(factors.data(), gamma, type, columns);
    to_float(summands.data(), beta, type, columns);
    parallel_for(0, rows, grain_for(columns), [&](int64_t first, int64_t last) {
      Scratch sum(columns), other(columns);
      for (int64_t r = first; r < last; ++r) {
        to_float(sum.data(), element(x, r * columns, type), type, columns);
        to_float(other.data(), element(residual, r * columns, type), type, columns);
        add_floats(sum.data(), other.data(), columns);
        void *rounded = element(h, r * columns, type);
        from_float(rounded, sum.data(), type, columns);
        to_float(sum.data(), rounded, type, columns); /* the norm sees what backward will read */
        const Row row = statistics(sum.data(), columns, epsilon);
        mean[r] = row.mean;
        inverse[r] = row.inverse;
        normalize(sum.data(), row, factors.data(), summands.data(), columns);
        from_float(element(y, r * columns, type), sum.data(), type, columns);
      }
    });
  });
} OPS_CATCH

int ops_residual_norm_backward(const void *dy, const void *h, const float *mean, const float *inverse,
                               const void *gamma, const void *dresidual, void *dh, float *dgamma, float *dbeta,
                               float factor, int64_t rows, int64_t columns, int dtype, OpsStream) try {
  const int status = ops::check_residual_norm_backward(dy, h, mean, inverse, gamma, dresidual, dh, dgamma, dbeta, rows,
                                                       columns, dtype);
  if (status != OPS_SUCCESS) return status;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_residual_norm_backward", [&] {
    const int64_t blocks = (rows + kRows - 1) / kRows;
    Scratch factors(columns), partial(2 * blocks * columns), total(2 * columns);
    if (rows > 0) to_float(factors.data(), gamma, type, columns);
    std::fill(partial.data(), partial.data() + 2 * blocks * columns, 0.0f);
    std::fill(total.data(), total.data() + 2 * columns, 0.0f);
    parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
      Scratch value(columns), gradient(columns);
      for (int64_t r = first * kRows; r < std::min(last * kRows, rows); ++r) {
        float *sums = partial.data() + 2 * (r / kRows) * columns;
        to_float(value.data(), element(h, r * columns, type), type, columns);
        to_float(gradient.data(), element(dy, r * columns, type), type, columns);
        differentiate(value.data(), gradient.data(), factors.data(), {mean[r], inverse[r]}, sums, sums + columns,
                      columns);
        to_float(gradient.data(), element(dresidual, r * columns, type), type, columns);
        add_floats(value.data(), gradient.data(), columns);
        from_float(element(dh, r * columns, type), value.data(), type, columns);
      }
    });
    for (int64_t b = 0; b < blocks; ++b) add_floats(total.data(), partial.data() + 2 * b * columns, 2 * columns);
    accumulate(dgamma, factor, total.data(), columns);
    accumulate(dbeta, factor, total.data() + columns, columns);
  });
} OPS_CATCH

/* Operations: cross-entropy by parts of the classes. */
#include "../../ops/cross_entropy_checks.h"
#include "cuda/capture.h"
#include "ops/operations.h"
#include "ops/partial_loss.h"

#include <cmath>
#include <limits>
#include <vector>

using namespace chagres;
using namespace chagres::reference;

namespace {

constexpr int64_t kTokens = 64; /* tokens of a piece: where the loss's partial sums are cut */

/* A power of two below 1 / classes: the sum of logits times this overflows for no finite logits, and rounds as their sum does. */
constexpr float kShare = 0x1p-32f;

/* An infinite maximum must not be subtracted from itself. */
float shift(float largest) { return std::isinf(largest) ? 0.0f : largest; }

}  // namespace

int ops_vocabulary_cross_entropy_maximum(const void *logits, float *maximum, int64_t tokens, int64_t classes,
                                         int64_t stride, int dtype, OpsStream stream) try {
  const int status = ops::check_vocabulary_cross_entropy_maximum(logits, maximum, tokens, classes, stride, dtype);
  if (status != OPS_SUCCESS || tokens == 0) return status;
  if (recorded_by_value(ops_vocabulary_cross_entropy_maximum, logits, maximum, tokens, classes, stride, dtype, stream))
    return OPS_SUCCESS;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_vocabulary_cross_entropy_maximum", [&] {
    parallel_for(0, tokens, kTokens, [&](int64_t begin, int64_t end) {
      Scratch row(classes);
      for (int64_t t = begin; t < end; ++t) {
        float largest = -std::numeric_limits<float>::infinity();
        if (classes > 0) to_float(row.data(), element(logits, t * stride, type), type, classes);
        for (int64_t c = 0; c < classes; ++c) largest = std::max(largest, row.data()[c]);
        maximum[t] = largest;
      }
    });
  });
} OPS_CATCH

int ops_vocabulary_cross_entropy_sums(const void *logits, const int32_t *labels, const float *maximum,
                                      float label_smoothing, float *sums, int64_t tokens, int64_t classes,
                                      int64_t stride, int64_t first, int dtype, OpsStream stream) try {
  const int status = ops::check_vocabulary_cross_entropy_sums(logits, labels, maximum, label_smoothing, sums, tokens,
                                                              classes, stride, first, dtype);
  if (status != OPS_SUCCESS || tokens == 0) return status;
  if (recorded_by_value(ops_vocabulary_cross_entropy_sums, logits, labels, maximum, label_smoothing, sums, tokens,
                        classes, stride, first, dtype, stream)) return OPS_SUCCESS;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_vocabulary_cross_entropy_sums", [&] {
    parallel_for(0, tokens, kTokens, [&](int64_t begin, int64_t end) {
      Scratch row(classes);
      for (int64_t t = begin; t < end; ++t) {
        if (classes > 0) to_float(row.data(), element(logits, t * stride, type), type, classes);
        const float largest = shift(maximum[t]);
        double sum = 0, total = 0; /* tens of thousands of classes added one by one in float would lose four digits */
        for (int64_t c = 0; c < classes; ++c) {
          sum += std::exp(row.data()[c] - largest);
          total += row.data()[c];
        }
        const int64_t label = labels[t] - first;
        sums[t] = static_cast<float>(sum);
        sums[tokens + t] = label >= 0 && label < classes ? row.data()[label] : 0.0f;
        if (label_smoothing != 0) sums[2 * tokens + t] = static_cast<float>(total * kShare);
      }
    });
  });
} OPS_CATCH

int ops_vocabulary_cross_entropy_loss(const float *maximum, const float *sums, const int32_t *labels,
                                      const int32_t *divisor, float label_smoothing, float *log_sum_exp,
                                      float *token_losses, float *loss, int32_t *counted, int64_t tokens,
                                      int64_t classes, OpsStream stream) try {
  const int status = ops::check_vocabulary_cross_entropy_loss(maximum, sums, labels, divisor, label_smoothing,
                                                              log_sum_exp, token_losses, loss, counted, tokens, classes);
  if (status != OPS_SUCCESS) return status;
  if (recorded_by_value(ops_vocabulary_cross_entropy_loss, maximum, sums, labels, divisor, label_smoothing, log_sum_exp,
                        token_losses, loss, counted, tokens, classes, stream)) return OPS_SUCCESS;
  return run("ops_vocabulary_cross_entropy_loss", [&] {
    std::vector<PartialLoss> partials(static_cast<size_t>(ops::divide_up(tokens, kTokens)));
    parallel_for(0, tokens, kTokens, [&](int64_t begin, int64_t end) {
      PartialLoss &partial = partials[static_cast<size_t>(begin / kTokens)];
      for (int64_t t = begin; t < end; ++t) {
        const float lse = shift(maximum[t]) + std::log(sums[t]);
        const bool taken = labels[t] >= 0 && labels[t] < classes;
        float own = taken ? lse - sums[tokens + t] : 0.0f;
        if (taken && label_smoothing != 0) {
          const float average = sums[2 * tokens + t] / static_cast<float>(classes) / kShare;
          own = (1 - label_smoothing) * own + label_smoothing * (lse - average);
        }
        log_sum_exp[t] = lse;
        if (token_losses != nullptr) token_losses[t] = own;
        partial.sum += own;
        partial.counted += taken ? 1 : 0;
      }
    });
    store_loss(partials, divisor, loss, counted);
  });
} OPS_CATCH

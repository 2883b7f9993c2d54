/* Operations: masked cross-entropy. */
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

float log_sum_of_exp(const float *logits, int64_t classes) {
  float largest = -std::numeric_limits<float>::infinity();
  for (int64_t c = 0; c < classes; ++c) largest = std::max(largest, logits[c]);
  const float shift = std::isinf(largest) ? 0.0f : largest; /* an infinite maximum must not be subtracted from itself */
  double sum = 0; /* tens of thousands of classes added one by one in float would lose four digits */
  for (int64_t c = 0; c < classes; ++c) sum += std::exp(logits[c] - shift);
  return shift + static_cast<float>(std::log(sum));
}

/* Of one token with a label. Without smoothing nothing is summed. */
float token_loss(const float *logits, int32_t label, float log_sum_exp, float smoothing, int64_t classes) {
  const float loss = log_sum_exp - logits[label];
  if (smoothing == 0) return loss;
  double total = 0;
  for (int64_t c = 0; c < classes; ++c) total += logits[c];
  const auto average = static_cast<float>(total / static_cast<double>(classes));
  return (1 - smoothing) * loss + smoothing * (log_sum_exp - average);
}

}  // namespace

int ops_cross_entropy_forward(const void *logits, const int32_t *labels, const int32_t *divisor, float label_smoothing,
                              float *log_sum_exp, float *token_losses, float *loss, int32_t *counted, int64_t tokens,
                              int64_t classes, int64_t stride, int dtype, OpsStream stream) try {
  const int status = ops::check_cross_entropy_forward(logits, labels, divisor, label_smoothing, log_sum_exp,
                                                      token_losses, loss, counted, tokens, classes, stride, dtype);
  if (status != OPS_SUCCESS) return status;
  if (recorded_by_value(ops_cross_entropy_forward, logits, labels, divisor, label_smoothing, log_sum_exp, token_losses,
                        loss, counted, tokens, classes, stride, dtype, stream)) return OPS_SUCCESS;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_cross_entropy_forward", [&] {
    std::vector<PartialLoss> partials(static_cast<size_t>(ops::divide_up(tokens, kTokens)));
    parallel_for(0, tokens, kTokens, [&](int64_t first, int64_t last) {
      Scratch row(classes);
      PartialLoss &partial = partials[static_cast<size_t>(first / kTokens)];
      for (int64_t t = first; t < last; ++t) {
        to_float(row.data(), element(logits, t * stride, type), type, classes);
        log_sum_exp[t] = log_sum_of_exp(row.data(), classes);
        const bool taken = labels[t] >= 0 && labels[t] < classes;
        const float own = taken ? token_loss(row.data(), labels[t], log_sum_exp[t], label_smoothing, classes) : 0.0f;
        if (token_losses != nullptr) token_losses[t] = own;
        if (!taken) continue;
        partial.sum += own;
        ++partial.counted;
      }
    });
    store_loss(partials, divisor, loss, counted);
  });
} OPS_CATCH

int ops_cross_entropy_backward(const void *logits, const int32_t *labels, const float *log_sum_exp,
                               const int32_t *counted, float gradient, const float *loss_scale,
                               const float *token_gradients, float label_smoothing, void *dlogits, int64_t tokens,
                               int64_t classes, int64_t stride, int64_t first, int64_t all_classes, int dtype,
                               OpsStream stream) try {
  const int status = ops::check_cross_entropy_backward(logits, labels, log_sum_exp, counted, loss_scale, token_gradients,
                                                       label_smoothing, dlogits, tokens, classes, stride, first, all_classes,
                                                       dtype);
  if (status != OPS_SUCCESS || tokens == 0 || stride == 0) return status;
  if (recorded_by_value(ops_cross_entropy_backward, logits, labels, log_sum_exp, counted, gradient, loss_scale,
                        token_gradients, label_smoothing, dlogits, tokens, classes, stride, first, all_classes, dtype, stream)) {
    return OPS_SUCCESS;
  }
  const NVTEDType type = as_dtype(dtype);
  const float sum = loss_scale == nullptr ? gradient : gradient * *loss_scale;
  const float scale = counted == nullptr ? sum : *counted > 0 ? sum / static_cast<float>(*counted) : 0.0f;
  const float miss = label_smoothing / static_cast<float>(all_classes), hit = 1 - label_smoothing + miss;
  return run("ops_cross_entropy_backward", [&] {
    parallel_for(0, tokens, kTokens, [&](int64_t begin, int64_t end) {
      Scratch row(stride);
      for (int64_t t = begin; t < end; ++t) {
        const int64_t label = labels[t];
        const bool taken = label >= 0 && label < all_classes;
        const float factor = token_gradients == nullptr ? scale : scale * token_gradients[t];
        to_float(row.data(), element(logits, t * stride, type), type, stride);
        for (int64_t c = 0; c < stride; ++c) {
          const float slope = std::exp(row[c] - log_sum_exp[t]) - (first + c == label ? hit : miss);
          row[c] = taken && c < classes ? factor * slope : 0.0f;
        }
        from_float(element(dlogits, t * stride, type), row.data(), type, stride);
      }
    });
  });
} OPS_CATCH

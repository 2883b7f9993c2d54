#include <algorithm>

#include "cross_entropy_checks.h"
#include "kernel.h"
#include "workspace.h"

using namespace chagres::ops;

namespace {

Kernel forward_packed[] = FLOAT_KERNELS("cross_entropy.cu", "cross_entropy_forward");
Kernel forward_scalar[] = FLOAT_KERNELS("cross_entropy.cu", "cross_entropy_forward_scalar");
Kernel backward_packed[] = FLOAT_KERNELS("cross_entropy.cu", "cross_entropy_backward");
Kernel backward_scalar[] = FLOAT_KERNELS("cross_entropy.cu", "cross_entropy_backward_scalar");
Kernel mean("cross_entropy.cu", "cross_entropy_mean");

constexpr int64_t kMostPartials = 8 * 132; /* blocks of the forward kernel: one full wave on an H200 */

bool fits_packs(const void *a, const void *b, int64_t stride, int dtype) {
  return aligned(a, b) && stride * size_of(dtype) % 16 == 0;
}

}  // namespace

int ops_cross_entropy_forward(const void *logits, const int32_t *labels, const int32_t *divisor, float label_smoothing,
                              float *log_sum_exp, float *token_losses, float *loss, int32_t *counted, int64_t tokens,
                              int64_t classes, int64_t stride, int dtype, OpsStream stream) try {
  const char *function = "ops_cross_entropy_forward";
  int status = check_cross_entropy_forward(logits, labels, divisor, label_smoothing, log_sum_exp, token_losses, loss,
                                           counted, tokens, classes, stride, dtype);
  if (status != OPS_SUCCESS) return status;
  const Workspace workspace(function, stream);
  if (workspace.status() != OPS_SUCCESS) return workspace.status();
  Grid grid;
  const int blocks = static_cast<int>(std::min(divide_up(tokens, kThreads / 32), kMostPartials));
  grid.x = static_cast<unsigned>(blocks);
  float *const partial_loss = workspace.floats();
  auto *const partial_count = reinterpret_cast<int32_t *>(partial_loss + kMostPartials);
  if (blocks > 0) {
    Kernel &kernel = (fits_packs(logits, logits, stride, dtype) ? forward_packed : forward_scalar)[float_index(dtype)];
    status = launch(function, kernel, grid, stream, logits, labels, label_smoothing, log_sum_exp, token_losses, partial_loss,
                    partial_count, tokens, classes, stride);
  }
  if (status != OPS_SUCCESS) return status;
  return launch(function, mean, Grid(), stream, partial_loss, partial_count, divisor, loss, counted, blocks);
} OPS_CATCH

int ops_cross_entropy_backward(const void *logits, const int32_t *labels, const float *log_sum_exp,
                               const int32_t *counted, float gradient, const float *loss_scale,
                               const float *token_gradients, float label_smoothing, void *dlogits, int64_t tokens,
                               int64_t classes, int64_t stride, int64_t first, int64_t all_classes, int dtype,
                               OpsStream stream) try {
  const int status = check_cross_entropy_backward(logits, labels, log_sum_exp, counted, loss_scale, token_gradients,
                                                  label_smoothing, dlogits, tokens, classes, stride, first, all_classes,
                                                  dtype);
  if (status != OPS_SUCCESS || tokens == 0 || stride == 0) return status;
  const bool fits = fits_packs(logits, dlogits, stride, dtype);
  Kernel &kernel = (fits ? backward_packed : backward_scalar)[float_index(dtype)];
  const int64_t items = tokens * stride / (fits ? 16 / size_of(dtype) : 1);
  return launch("ops_cross_entropy_backward", kernel, grid_for(items), stream, logits, labels, log_sum_exp, counted,
                gradient, loss_scale, token_gradients, label_smoothing, dlogits, tokens, classes, stride, first, all_classes);
} OPS_CATCH

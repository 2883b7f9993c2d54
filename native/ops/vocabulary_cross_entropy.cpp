#include <algorithm>

#include "cross_entropy_checks.h"
#include "kernel.h"
#include "workspace.h"

using namespace chagres::ops;

namespace {

#define MAXIMUM "vocabulary_cross_entropy_maximum"
#define SUMS "vocabulary_cross_entropy_sums"

Kernel maximum_packed[] = FLOAT_KERNELS("vocabulary_cross_entropy.cu", MAXIMUM);
Kernel maximum_scalar[] = FLOAT_KERNELS("vocabulary_cross_entropy.cu", MAXIMUM "_scalar");
Kernel sums_packed[] = FLOAT_KERNELS("vocabulary_cross_entropy.cu", SUMS);
Kernel sums_scalar[] = FLOAT_KERNELS("vocabulary_cross_entropy.cu", SUMS "_scalar");
Kernel token_losses_of("vocabulary_cross_entropy.cu", "vocabulary_cross_entropy_loss");
Kernel mean("cross_entropy.cu", "cross_entropy_mean");

constexpr int64_t kMostPartials = 8 * 132; /* one full wave on an H200 */

bool fits_packs(const void *logits, int64_t stride, int dtype) {
  return aligned(logits) && stride * size_of(dtype) % 16 == 0;
}

/* Blocks for as many threads. */
Grid blocks_for(int64_t threads) {
  Grid grid;
  grid.x = static_cast<unsigned>(std::min(divide_up(threads, kThreads), kMostPartials));
  return grid;
}

}  // namespace

int ops_vocabulary_cross_entropy_maximum(const void *logits, float *maximum, int64_t tokens, int64_t classes,
                                         int64_t stride, int dtype, OpsStream stream) try {
  const int status = check_vocabulary_cross_entropy_maximum(logits, maximum, tokens, classes, stride, dtype);
  if (status != OPS_SUCCESS || tokens == 0) return status;
  Kernel &kernel = (fits_packs(logits, stride, dtype) ? maximum_packed : maximum_scalar)[float_index(dtype)];
  return launch("ops_vocabulary_cross_entropy_maximum", kernel, blocks_for(32 * tokens), stream, logits, maximum, tokens,
                classes, stride);
} OPS_CATCH

int ops_vocabulary_cross_entropy_sums(const void *logits, const int32_t *labels, const float *maximum,
                                      float label_smoothing, float *sums, int64_t tokens, int64_t classes,
                                      int64_t stride, int64_t first, int dtype, OpsStream stream) try {
  const int status = check_vocabulary_cross_entropy_sums(logits, labels, maximum, label_smoothing, sums, tokens, classes,
                                                         stride, first, dtype);
  if (status != OPS_SUCCESS || tokens == 0) return status;
  Kernel &kernel = (fits_packs(logits, stride, dtype) ? sums_packed : sums_scalar)[float_index(dtype)];
  return launch("ops_vocabulary_cross_entropy_sums", kernel, blocks_for(32 * tokens), stream, logits, labels, maximum,
                label_smoothing, sums, tokens, classes, stride, first);
} OPS_CATCH

int ops_vocabulary_cross_entropy_loss(const float *maximum, const float *sums, const int32_t *labels,
                                      const int32_t *divisor, float label_smoothing, float *log_sum_exp,
                                      float *token_losses, float *loss, int32_t *counted, int64_t tokens,
                                      int64_t classes, OpsStream stream) try {
  const char *function = "ops_vocabulary_cross_entropy_loss";
  int status = check_vocabulary_cross_entropy_loss(maximum, sums, labels, divisor, label_smoothing, log_sum_exp,
                                                   token_losses, loss, counted, tokens, classes);
  if (status != OPS_SUCCESS) return status;
  const Workspace workspace(function, stream);
  if (workspace.status() != OPS_SUCCESS) return workspace.status();
  const Grid grid = blocks_for(tokens);
  const int blocks = tokens == 0 ? 0 : static_cast<int>(grid.x);
  float *const partial_loss = workspace.floats();
  auto *const partial_count = reinterpret_cast<int32_t *>(partial_loss + kMostPartials);
  if (blocks > 0)
    status = launch(function, token_losses_of, grid, stream, maximum, sums, labels, label_smoothing, log_sum_exp,
                    token_losses, partial_loss, partial_count, tokens, classes);
  if (status != OPS_SUCCESS) return status;
  return launch(function, mean, Grid(), stream, partial_loss, partial_count, divisor, loss, counted, blocks);
} OPS_CATCH

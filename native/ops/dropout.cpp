#include <cmath>

#include "checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {
Kernel forward_packed[] = FLOAT_KERNELS("dropout.cu", "dropout_add");
Kernel forward_scalar[] = FLOAT_KERNELS("dropout.cu", "dropout_add_scalar");
Kernel backward_packed[] = FLOAT_KERNELS("dropout.cu", "dropout_backward");
Kernel backward_scalar[] = FLOAT_KERNELS("dropout.cu", "dropout_backward_scalar");
}  // namespace

int ops_dropout_add(const void *x, const void *residual, void *y, uint8_t *mask, const int64_t *rng_state,
                    float probability, int64_t count, int dtype, OpsStream stream) try {
  const int status = check_dropout_add(x, residual, y, mask, rng_state, probability, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  /* word * 2^-32 >= p in integers, exactly: a float times 2^32 is exact in double, and here below 2^32. */
  const auto threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(probability) * 4294967296.0));
  const float scale = 1.0f / (1.0f - probability);
  Kernel &kernel = (aligned(x, residual, y) ? forward_packed : forward_scalar)[float_index(dtype)];
  return launch("ops_dropout_add", kernel, grid_for(divide_up(count, 8)), stream, x, residual, y, mask, rng_state,
                threshold, scale, count);
} OPS_CATCH

int ops_dropout_backward(const void *dy, const uint8_t *mask, void *dx, float probability, int64_t count, int dtype,
                         OpsStream stream) try {
  const int status = check_dropout_backward(dy, mask, dx, probability, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  const float scale = 1.0f / (1.0f - probability);
  Kernel &kernel = (aligned(dy, dx) ? backward_packed : backward_scalar)[float_index(dtype)];
  return launch("ops_dropout_backward", kernel, grid_for(divide_up(count, 8)), stream, dy, mask, dx, scale, count);
} OPS_CATCH

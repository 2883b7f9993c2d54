#include "checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {

Kernel kernel_of[] = FLOAT_KERNELS("gated_gradient.cu", "gated_gradient");
constexpr int64_t kSide = 64; /* rows and columns of dy that a block has at a time */

}  // namespace

int ops_gated_gradient(const void *dy, const void *x, void *q, void *q_transposed, const float *scale, float *amax,
                       float *scale_inverse, int64_t rows, int64_t columns, int gate, float limit, float alpha,
                       float offset, int dtype, int fp8, OpsStream stream) try {
  const int status = check_gated_gradient(dy, x, q, q_transposed, scale, amax, scale_inverse, rows, columns, gate, limit,
                                          alpha, offset, dtype, fp8);
  if (status != OPS_SUCCESS || rows == 0 || columns == 0) return status;
  Grid grid;
  grid.x = static_cast<unsigned>(std::min(divide_up(rows, kSide) * divide_up(columns, kSide), int64_t{INT32_MAX}));
  return launch("ops_gated_gradient", kernel_of[float_index(dtype)], grid, stream, dy, x, q, q_transposed, scale, amax,
                scale_inverse, rows, columns, gate, limit, alpha, offset, fp8);
} OPS_CATCH

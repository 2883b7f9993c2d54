#include <cmath>

#include "checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {
Kernel draw("drop_path.cu", "drop_path_factors");
Kernel packed[] = FLOAT_KERNELS("drop_path.cu", "scale_sequences_add");
Kernel scalar[] = FLOAT_KERNELS("drop_path.cu", "scale_sequences_add_scalar");
}  // namespace

int ops_drop_path_factors(const int64_t *rng_state, float probability, float *factors, int64_t sequences,
                          OpsStream stream) try {
  const int status = check_drop_path_factors(rng_state, probability, factors, sequences);
  if (status != OPS_SUCCESS || sequences == 0) return status;
  /* word * 2^-32 >= p in integers, exactly: a float times 2^32 is exact in double, and here below 2^32. */
  const auto threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(probability) * 4294967296.0));
  const float scale = 1.0f / (1.0f - probability);
  return launch("ops_drop_path_factors", draw, grid_for(divide_up(sequences, 4)), stream, rng_state, threshold, scale,
                factors, sequences);
} OPS_CATCH

int ops_scale_sequences_add(const void *x, const void *residual, void *y, const float *factors,
                            const int32_t *cu_seqlens, int layout, int64_t first, int64_t tokens, int64_t whole,
                            int64_t extent, int64_t columns, int dtype, OpsStream stream) try {
  const int status = check_scale_sequences_add(x, residual, y, factors, cu_seqlens, layout, first, tokens, whole,
                                               extent, columns, dtype);
  if (status != OPS_SUCCESS || tokens == 0 || columns == 0) return status;
  const bool fits = aligned(x, residual, y) && columns * size_of(dtype) % 16 == 0;
  Kernel &kernel = (fits ? packed : scalar)[float_index(dtype)];
  return launch("ops_scale_sequences_add", kernel, grid_for(tokens, 32), stream, x, residual, y, factors, cu_seqlens,
                layout, first, tokens, extent, columns);
} OPS_CATCH

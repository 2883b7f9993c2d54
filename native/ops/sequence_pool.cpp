#include "checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {
Kernel forward[] = FLOAT_KERNELS("sequence_pool.cu", "sequence_pool_forward");
Kernel backward[] = FLOAT_KERNELS("sequence_pool.cu", "sequence_pool_backward");
constexpr int64_t kLanes = 32; /* columns of a block */
}  // namespace

int ops_sequence_pool_forward(const void *x, const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded, void *y,
                              int32_t *argument, int pool, int layout, int64_t tokens, int64_t sequences, int64_t columns,
                              int dtype, OpsStream stream) try {
  const char *function = "ops_sequence_pool_forward";
  const int status = check_sequence_pool(function, "x", x, "y", y, argument, cu_seqlens, cu_seqlens_padded, pool, layout,
                                         tokens, sequences, columns, dtype);
  if (status != OPS_SUCCESS || columns == 0) return status;
  Grid grid;
  grid.x = static_cast<unsigned>(std::min(sequences * divide_up(columns, kLanes), kMostBlocks));
  return launch(function, forward[float_index(dtype)], grid, stream, x, cu_seqlens, cu_seqlens_padded, y, argument, pool,
                layout, tokens, sequences, columns);
} OPS_CATCH

int ops_sequence_pool_backward(const void *dy, const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded,
                               const int32_t *argument, void *dx, int pool, int layout, int64_t tokens, int64_t sequences,
                               int64_t columns, int dtype, OpsStream stream) try {
  const char *function = "ops_sequence_pool_backward";
  const int status = check_sequence_pool(function, "dx", dx, "dy", dy, argument, cu_seqlens, cu_seqlens_padded, pool,
                                         layout, tokens, sequences, columns, dtype);
  if (status != OPS_SUCCESS || tokens == 0 || columns == 0) return status;
  return launch(function, backward[float_index(dtype)], grid_for(tokens, 32), stream, dy, cu_seqlens, cu_seqlens_padded,
                argument, dx, pool, layout, tokens, sequences, columns);
} OPS_CATCH

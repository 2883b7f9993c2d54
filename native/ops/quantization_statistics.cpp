#include <algorithm>

#include "checks.h"
#include "kernel.h"
#include "workspace.h"

using namespace chagres::ops;

namespace {

Kernel statistics_of[] = FLOAT_KERNELS("quantization_statistics.cu", "quantization_statistics");
Kernel merge("quantization_statistics.cu", "quantization_statistics_merge");

constexpr int64_t kBlocks = 4 * 132; /* four for each multiprocessor of an H200 */
static_assert(kBlocks * 6 * sizeof(float) <= kWorkspaceBytes, "partial results must fit");

}  // namespace

int ops_quantization_statistics(const void *x, const void *q, const float *scale_inverse, float *statistics, int64_t rows,
                                int64_t columns, int64_t stride, int scaling, int dtype, int fp8,
                                OpsStream stream) try {
  const char *function = "ops_quantization_statistics";
  int status = check_quantization_statistics(x, q, scale_inverse, statistics, rows, columns, stride, scaling, dtype, fp8);
  if (status != OPS_SUCCESS) return status;
  const int64_t blocks = columns == 0 ? 0 : std::min(rows, kBlocks);
  const Workspace workspace(function, stream);
  if (workspace.status() != OPS_SUCCESS) return workspace.status();
  float *const partial = workspace.floats();
  if (blocks > 0) {
    Grid grid;
    grid.x = static_cast<unsigned>(blocks);
    status = launch(function, statistics_of[float_index(dtype)], grid, stream, x, q, scale_inverse, partial, rows, columns,
                    stride, scaling, fp8);
    if (status != OPS_SUCCESS) return status;
  }
  Grid last;
  last.threads = 32;
  return launch(function, merge, last, stream, partial, statistics, blocks,
                static_cast<float>(rows) * static_cast<float>(columns));
} OPS_CATCH

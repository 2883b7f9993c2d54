#include <algorithm>

#include "checks.h"
#include "kernel.h"
#include "workspace.h"

using namespace chagres::ops;

namespace {

Kernel packed_of[] = FLOAT_KERNELS("quantization_statistics.cu", "quantization_statistics");
Kernel scalar_of[] = FLOAT_KERNELS("quantization_statistics.cu", "quantization_statistics_scalar");
Kernel merge("quantization_statistics.cu", "quantization_statistics_merge");

static_assert(kWorkspaceStreams <= 32, "quantization_statistics.cu counts for so many");
constexpr int64_t kBlocks = 4 * 132; /* four for each multiprocessor of an H200 */
static_assert(kBlocks * 6 * sizeof(float) <= kWorkspaceBytes, "partial results must fit");

}  // namespace

int ops_quantization_statistics(const void *x, const void *q, const float *scale_inverse, float *statistics, int64_t rows,
                                int64_t columns, int64_t stride, int scaling, int dtype, int fp8,
                                OpsStream stream) try {
  const char *function = "ops_quantization_statistics";
  int status = check_quantization_statistics(x, q, scale_inverse, statistics, rows, columns, stride, scaling, dtype, fp8);
  if (status != OPS_SUCCESS) return status;
  /* Neighbours under one scale, and so one pack, end with the row where blocks are scaled. */
  const int64_t pack = 16 / size_of(dtype), neighbours = scaling == kOneScale ? rows * columns : columns;
  const bool packed = neighbours % pack == 0 && aligned(x, q);
  const int64_t packs_in_row = packed ? columns / pack : columns, packs = rows * columns / (packed ? pack : 1);
  const int64_t blocks = std::clamp(divide_up(packs, kThreads), int64_t{1}, kBlocks);
  const auto count = static_cast<float>(rows) * static_cast<float>(columns);
  const Workspace workspace(function, stream);
  if (workspace.status() != OPS_SUCCESS) return workspace.status();
  float *const partial = workspace.floats();
  Grid grid;
  grid.x = static_cast<unsigned>(blocks);
  Kernel &kernel = (packed ? packed_of : scalar_of)[float_index(dtype)];
  status = launch(function, kernel, grid, stream, x, q, scale_inverse, partial, statistics, packs, packs_in_row, stride,
                  count, scaling, fp8, workspace.place());
  if (status != OPS_SUCCESS || workspace.place() >= 0) return status;
  return launch(function, merge, Grid(), stream, partial, statistics, blocks, count);
} OPS_CATCH

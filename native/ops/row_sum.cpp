#include <algorithm>

#include "checks.h"
#include "kernel.h"
#include "workspace.h"

using namespace chagres::ops;

namespace {

Kernel packed[] = FLOAT_KERNELS("row_sum.cu", "row_sum");
Kernel scalar[] = FLOAT_KERNELS("row_sum.cu", "row_sum_scalar");
Kernel few_packed[] = FLOAT_KERNELS("row_sum.cu", "row_sum_few");
Kernel few_scalar[] = FLOAT_KERNELS("row_sum.cu", "row_sum_few_scalar");
Kernel partials("row_sum.cu", "row_sum_partials");

/* Blocks to aim at: sixteen for each multiprocessor of an H200, so that the last wave costs little. */
constexpr int64_t kBlocks = 16 * 132;
/* Fewer rows a block than this, and writing its partial sums costs more than reading its rows. */
constexpr int64_t kLeastRows = 128;
constexpr int64_t kMostLanes = 32;
/* Up to so many rows a thread adds up its columns by itself: more threads for a column would have nothing to do. */
constexpr int64_t kFewRows = 16;
static_assert(kBlocks * kMostLanes * 8 * sizeof(float) <= kWorkspaceBytes, "partial sums must fit");

/* Threads side by side on a row of `packs`: the power of two that leaves the fewest idle, the widest of those. Eight of
 * 16 bytes are a cache line; fewer only for rows shorter than one. */
int lanes_for(int64_t packs) {
  int64_t best = 1;
  while (best < packs && best < 8) best *= 2;
  for (int64_t lanes = 2 * best; packs >= 8 && lanes <= kMostLanes; lanes *= 2)
    if (divide_up(packs, lanes) * lanes <= divide_up(packs, best) * best) best = lanes;
  return static_cast<int>(best);
}

}  // namespace

int ops_row_sum(const void *x, float *sum, float beta, int64_t rows, int64_t columns, int dtype, OpsStream stream) try {
  const char *function = "ops_row_sum";
  int status = check_row_sum(x, sum, rows, columns, dtype);
  if (status != OPS_SUCCESS || columns == 0) return status;
  if (rows <= kFewRows) {
    const bool in_fours = aligned(x, sum) && columns % 4 == 0;
    Kernel &few = (in_fours ? few_packed : few_scalar)[float_index(dtype)];
    return launch(function, few, grid_for(in_fours ? columns / 4 : columns), stream, x, sum, beta, rows, columns);
  }
  const int64_t pack = 16 / size_of(dtype);
  const bool fits = aligned(x) && columns % pack == 0;
  const int64_t packs = fits ? columns / pack : columns;
  const int lanes = lanes_for(packs);
  const int64_t tiles = divide_up(packs, lanes);
  if (tiles > INT32_MAX)
    return Arguments(function).between("columns", columns, 0, columns / tiles * INT32_MAX).status();
  const int64_t chunk_rows = std::max(kLeastRows, divide_up(rows, std::max(kBlocks / tiles, int64_t{1})));
  const int64_t chunks = std::max(divide_up(rows, chunk_rows), int64_t{1});
  Kernel &kernel = (fits ? packed : scalar)[float_index(dtype)];
  Grid grid;
  grid.x = static_cast<unsigned>(tiles);
  grid.y = static_cast<unsigned>(chunks);
  if (chunks == 1) return launch(function, kernel, grid, stream, x, sum, beta, rows, columns, chunk_rows, lanes);

  const Workspace workspace(function, stream);
  if (workspace.status() != OPS_SUCCESS) return workspace.status();
  float *const partial = workspace.floats();
  status = launch(function, kernel, grid, stream, x, partial, 0.0f, rows, columns, chunk_rows, lanes);
  if (status != OPS_SUCCESS) return status;
  return launch(function, partials, grid_for(columns, 8), stream, partial, sum, beta, chunks, columns);
} OPS_CATCH

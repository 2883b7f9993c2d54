#include <algorithm>

#include "checks.h"
#include "kernel.h"
#include "workspace.h"

using namespace chagres::ops;

namespace {

constexpr int kLeastPacks = 2, kMostPacks = 4; /* packs of a row that one thread keeps */
constexpr int kTileBytes = 8 * kThreads * sizeof(float);

Kernel forward[][3] = {FLOAT_KERNELS("residual_norm.cu", "residual_norm_2"),
                       FLOAT_KERNELS("residual_norm.cu", "residual_norm_3"),
                       FLOAT_KERNELS("residual_norm.cu", "residual_norm_4")};
Kernel backward[][3] = {FLOAT_KERNELS("residual_norm.cu", "norm_gradient_2"),
                        FLOAT_KERNELS("residual_norm.cu", "norm_gradient_3"),
                        FLOAT_KERNELS("residual_norm.cu", "norm_gradient_4")};
Kernel partials("residual_norm.cu", "norm_partials");

/* How many threads share a row, and how many packs of it each keeps. */
struct Split {
  int lanes = 32;
  int packs = kLeastPacks;
};

/* The fewest threads that need at most three packs each (four when all 256 share a row): registers stay few. */
Split split(int64_t columns, int dtype) {
  const int64_t packs = divide_up(columns, 16 / size_of(dtype));
  Split result;
  while (result.lanes < kThreads && divide_up(packs, result.lanes) > kMostPacks - 1) result.lanes *= 2;
  result.packs = static_cast<int>(std::max(divide_up(packs, result.lanes), int64_t{kLeastPacks}));
  return result;
}

}  // namespace

int ops_residual_norm_forward(const void *x, const void *residual, const void *gamma, const void *beta, float epsilon,
                              void *h, void *y, float *mean, float *inverse, int64_t rows, int64_t columns, int dtype,
                              OpsStream stream) try {
  const char *function = "ops_residual_norm_forward";
  const int status =
      check_residual_norm_forward(x, residual, gamma, beta, epsilon, h, y, mean, inverse, rows, columns, dtype);
  if (status != OPS_SUCCESS || rows == 0) return status;
  const Split by = split(columns, dtype);
  Grid grid;
  grid.x = static_cast<unsigned>(std::min(divide_up(rows, kThreads / by.lanes), kMostBlocks));
  return launch(function, forward[by.packs - kLeastPacks][float_index(dtype)], grid, stream, x, residual, gamma, beta,
                epsilon, h, y, mean, inverse, rows, columns, by.lanes);
} OPS_CATCH

int ops_residual_norm_backward(const void *dy, const void *h, const float *mean, const float *inverse,
                               const void *gamma, const void *dresidual, void *dh, float *dgamma, float *dbeta,
                               float accumulate, int64_t rows, int64_t columns, int dtype, OpsStream stream) try {
  const char *function = "ops_residual_norm_backward";
  const int status = check_residual_norm_backward(dy, h, mean, inverse, gamma, dresidual, dh, dgamma, dbeta, rows,
                                                  columns, dtype);
  if (status != OPS_SUCCESS) return status;
  const Split by = split(columns, dtype);
  /* Two blocks a multiprocessor of an H200, as long as the partial sums fit. */
  const int64_t fitting = static_cast<int64_t>(kWorkspaceBytes / sizeof(float)) / (2 * columns);
  const int64_t blocks = std::max(
      std::min({divide_up(rows, kThreads / by.lanes), int64_t{2 * 132}, fitting}), int64_t{1});
  const Workspace workspace(function, stream);
  if (workspace.status() != OPS_SUCCESS) return workspace.status();
  float *const partial = workspace.floats();
  Grid grid;
  grid.x = static_cast<unsigned>(blocks);
  grid.shared_bytes = kTileBytes;
  const int launched = launch(function, backward[by.packs - kLeastPacks][float_index(dtype)], grid, stream, dy, h, mean,
                              inverse, gamma, dresidual, dh, partial, rows, columns, by.lanes);
  if (launched != OPS_SUCCESS) return launched;
  Grid last = grid_for(columns, 8);
  last.y = 2;
  return launch(function, partials, last, stream, partial, dgamma, dbeta, accumulate, blocks, columns);
} OPS_CATCH

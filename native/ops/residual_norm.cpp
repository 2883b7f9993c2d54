#include <algorithm>

#include "checks.h"
#include "kernel.h"
#include "residual_norm_arguments.cuh"
#include "ring_stages.cuh"
#include "workspace.h"

using namespace chagres::ops;

namespace {

constexpr int kLeastPacks = 2, kMostPacks = 4; /* packs of a row that one thread keeps */
constexpr int kMostPacksOfWarp = 5;            /* where a warp has a forward's row of its own */
/* Shared memory of a RowRing of `tensors`, by the packs of a row that a thread keeps. */
constexpr int ring_bytes(int packs, int tensors) { return kRingStages * tensors * packs * kThreads * 16; }

/* x and residual; h, dy and dresidual. */
constexpr int kForwardTensors = 2, kBackwardTensors = 3;
/* Blocks that a multiprocessor's registers suffice for, by packs. */
constexpr int kForwardBlocks[] = {4, 3, 3, 2}, kTransposingBlocks[] = {2, 2, 1};
/* Shared memory of a multiprocessor of an H200, of which every block takes a KiB more than it asks for. Kernels have a little
 * shared memory besides. */
constexpr int kSharedOfMultiprocessor = 228 * 1024, kSharedOfBlock = kSharedOfMultiprocessor - 2048;

#define NORM_KERNELS(name, shared)                                                                  \
  {                                                                                                 \
    {"residual_norm.cu", name "_float32", shared}, {"residual_norm.cu", name "_float16", shared},   \
        {"residual_norm.cu", name "_bfloat16", shared}                                              \
  }
Kernel forward[][3] = {NORM_KERNELS("residual_norm_2", ring_bytes(2, kForwardTensors)),
                       NORM_KERNELS("residual_norm_3", ring_bytes(3, kForwardTensors)),
                       NORM_KERNELS("residual_norm_4", ring_bytes(4, kForwardTensors)),
                       NORM_KERNELS("residual_norm_5", ring_bytes(5, kForwardTensors))};
Kernel backward[][3] = {NORM_KERNELS("norm_gradient_2", ring_bytes(2, kBackwardTensors)),
                        NORM_KERNELS("norm_gradient_3", ring_bytes(3, kBackwardTensors)),
                        NORM_KERNELS("norm_gradient_4", ring_bytes(4, kBackwardTensors))};
Kernel transposing[][3] = {NORM_KERNELS("norm_transposed_2", kSharedOfBlock),
                           NORM_KERNELS("norm_transposed_3", kSharedOfBlock),
                           NORM_KERNELS("norm_transposed_4", kSharedOfBlock)};
Kernel partials("residual_norm.cu", "norm_partials");
Kernel transpose("transpose.cu", "transpose_bytes");
constexpr int64_t kTransposeSide = 128; /* rows and columns that one of its blocks turns */

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

/* The same of forward without transposing: a warp that has a row of its own waits for no other. */
Split forward_split(int64_t columns, int dtype) {
  const int64_t of_warp = divide_up(divide_up(columns, 16 / size_of(dtype)), 32);
  return of_warp < kMostPacks || of_warp > kMostPacksOfWarp ? split(columns, dtype) : Split{32, static_cast<int>(of_warp)};
}

/* How many multiprocessors the norm's kernels are to fill, at most those of the current device. */
int to_fill(const char *function, const OpsResidualNorm &norm, int &multiprocessors) {
  const int status = multiprocessors_of_device(function, multiprocessors);
  if (norm.multiprocessors != 0) multiprocessors = std::min(multiprocessors, norm.multiprocessors);
  return status;
}

/* A block for each of `tiles`, but no more than `multiprocessors` run at once: a block asks for its next tile while it computes
 * one. */
Grid persistent(int64_t tiles, int multiprocessors, int blocks, int shared_bytes) {
  Grid grid;
  const int at_once = std::min(blocks, kSharedOfMultiprocessor / (shared_bytes + 1024));
  grid.x = static_cast<unsigned>(std::min(tiles, int64_t{multiprocessors} * at_once));
  grid.shared_bytes = static_cast<size_t>(shared_bytes);
  return grid;
}

NormArguments arguments_of(const OpsResidualNorm &n, const Split &by) {
  const bool centered = n.kind == OPS_LAYER_NORM;
  NormArguments a{};
  a.x = n.x;
  a.bias = n.bias;
  a.residual = n.residual;
  a.gamma = n.gamma;
  a.beta = centered ? n.beta : nullptr;
  a.h = n.h;
  a.y = n.y;
  a.mean = centered ? n.mean : nullptr;
  a.inverse = n.inverse;
  a.y8 = static_cast<uint8_t *>(n.y8);
  a.y8_transposed = static_cast<uint8_t *>(n.y8_transposed);
  a.scale = n.scale;
  a.amax = n.amax;
  a.scale_inverse = n.scale_inverse;
  a.dy = n.dy;
  a.dresidual = n.dresidual;
  a.dh = n.dh;
  a.dbeta = centered ? n.dbeta : nullptr;
  a.rows = n.rows;
  a.columns = n.columns;
  a.filled_rows = n.filled_rows;
  a.epsilon = n.epsilon;
  a.center = static_cast<float>(n.center);
  a.lanes = by.lanes;
  a.centered = centered;
  return a;
}

/* Whether rows are so long that a multiprocessor has room for only one block with its tile. That block would mostly
 * wait for memory; a separate kernel that transposes the rows after they are written, mostly from the cache, takes half
 * as long. */
bool turns_apart(const OpsResidualNorm &norm, int shared_bytes) {
  return norm.y8 != nullptr && aligned(norm.y8, norm.y8_transposed) &&
         2 * (shared_bytes + 1024) > kSharedOfMultiprocessor;
}

/* y8_transposed from y8. */
int turn(const char *function, const OpsResidualNorm &norm, OpsStream stream) {
  Grid grid;
  grid.x = static_cast<unsigned>(divide_up(norm.columns, kTransposeSide));
  grid.y = static_cast<unsigned>(divide_up(norm.filled_rows, kTransposeSide));
  return launch(function, transpose, grid, stream, static_cast<const uint8_t *>(norm.y8),
                static_cast<uint8_t *>(norm.y8_transposed), norm.rows, norm.columns, norm.filled_rows);
}

}  // namespace

int ops_residual_norm_forward(const OpsResidualNorm *norm, OpsStream stream) try {
  const char *function = "ops_residual_norm_forward";
  int status = check_residual_norm_forward(norm);
  if (status != OPS_SUCCESS || norm->rows == 0) return status;
  int multiprocessors = 0;
  status = to_fill(function, *norm, multiprocessors);
  if (status != OPS_SUCCESS) return status;
  const int type = float_index(norm->dtype);
  const auto launch_rows = [&] {
    const Split by = forward_split(norm->columns, norm->dtype);
    const int kernel = by.packs - kLeastPacks;
    const Grid grid = persistent(divide_up(norm->rows, kThreads / by.lanes), multiprocessors, kForwardBlocks[kernel],
                                 ring_bytes(by.packs, kForwardTensors));
    return launch(function, forward[kernel][type], grid, stream, arguments_of(*norm, by));
  };
  if (norm->y8_transposed == nullptr) return launch_rows();
  const Split by = split(norm->columns, norm->dtype);
  NormArguments arguments = arguments_of(*norm, by);
  const int kernel = by.packs - kLeastPacks;
  const int ring = ring_bytes(by.packs, kForwardTensors);
  const int64_t row = norm->columns + kTilePad;
  /* 32 rows of a column are a sector of memory that is written whole. */
  arguments.tile_rows = 32 * row + ring <= kSharedOfBlock ? 32 : 16;
  arguments.tile_bytes = static_cast<int>(arguments.tile_rows * row);
  if (turns_apart(*norm, arguments.tile_bytes + ring)) {
    const int launched = launch_rows();
    return launched != OPS_SUCCESS ? launched : turn(function, *norm, stream);
  }
  const Grid grid = persistent(divide_up(norm->filled_rows, arguments.tile_rows), multiprocessors,
                               kTransposingBlocks[kernel], arguments.tile_bytes + ring);
  return launch(function, transposing[kernel][type], grid, stream, arguments);
} OPS_CATCH

int ops_residual_norm_backward(const OpsResidualNorm *norm, OpsStream stream) try {
  const char *function = "ops_residual_norm_backward";
  int status = check_residual_norm_backward(norm);
  if (status != OPS_SUCCESS) return status;
  int multiprocessors = 0;
  status = to_fill(function, *norm, multiprocessors);
  if (status != OPS_SUCCESS) return status;
  const int64_t rows = norm->rows, columns = norm->columns;
  const Split by = split(columns, norm->dtype);
  /* Two blocks a multiprocessor, as long as the partial sums fit. */
  const int64_t fitting = static_cast<int64_t>(kWorkspaceBytes / sizeof(float)) / (2 * columns);
  const int64_t blocks = std::max(
      std::min({divide_up(rows, kThreads / by.lanes), int64_t{2} * multiprocessors, fitting}), int64_t{1});
  const Workspace workspace(function, stream);
  if (workspace.status() != OPS_SUCCESS) return workspace.status();
  NormArguments arguments = arguments_of(*norm, by);
  arguments.partial = workspace.floats();
  if (rows == 0) arguments.gamma = nullptr; /* then it was not checked */
  Grid grid;
  grid.x = static_cast<unsigned>(blocks);
  grid.shared_bytes = static_cast<size_t>(ring_bytes(by.packs, kBackwardTensors)); /* the columns' sums need less */
  const int launched =
      launch(function, backward[by.packs - kLeastPacks][float_index(norm->dtype)], grid, stream, arguments);
  if (launched != OPS_SUCCESS) return launched;
  Grid last = grid_for(columns, 8);
  last.y = arguments.dbeta == nullptr ? 1 : 2;
  const float *const partial = arguments.partial;
  return launch(function, partials, last, stream, partial, norm->dgamma, arguments.dbeta, norm->accumulate, blocks,
                columns);
} OPS_CATCH

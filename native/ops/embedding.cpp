#include <algorithm>

#include "checks.h"
#include "kernel.h"
#include "rows.h"
#include "workspace.h"

using namespace chagres::ops;

namespace {

/* As in embedding.cu: a block's table has kRows rows of 32 * N columns for each of its warps. */
constexpr int64_t kRows = 64;
constexpr int64_t kWarps = 6;
constexpr int table_bytes(int64_t n) { return static_cast<int>(kWarps * kRows * 32 * n * sizeof(float)); }
#define EMBEDDING_KERNELS(name, n)                    \
  {{"embedding.cu", name "_float32", table_bytes(n)}, \
   {"embedding.cu", name "_float16", table_bytes(n)}, \
   {"embedding.cu", name "_bfloat16", table_bytes(n)}}

Kernel packed[] = EMBEDDING_KERNELS("embedding_backward", 2);
Kernel scalar[] = EMBEDDING_KERNELS("embedding_backward_scalar", 1);
Kernel listed[] = FLOAT_KERNELS("embedding.cu", "embedding_backward_listed");
Kernel partials("embedding.cu", "embedding_partials");

/* As in embedding.cu: columns of a lane, of a block. */
constexpr int64_t kListColumns = 4;
constexpr int64_t kListTile = 1024;
/* Rows from which on, at a few tokens a row, tokens are listed by row. */
constexpr int64_t kLargeVocabulary = 2048;
constexpr int64_t kFewTokens = 4;

/* Whether tokens are listed by row: packs of a lane's columns must be aligned in both tensors. */
bool is_listed(const void *dy, const float *gradient, int64_t tokens, int64_t vocabulary, int64_t hidden, int dtype) {
  return vocabulary >= kLargeVocabulary && tokens <= kFewTokens * vocabulary && hidden % kListColumns == 0 &&
         reinterpret_cast<uintptr_t>(dy) % (kListColumns * size_of(dtype)) == 0 &&
         reinterpret_cast<uintptr_t>(gradient) % (kListColumns * sizeof(float)) == 0 &&
         divide_up(vocabulary, kRows) * divide_up(hidden, kListTile) <= INT32_MAX;
}

/* Blocks to aim at: two for each multiprocessor of an H200, as many as have room for their tables. */
constexpr int64_t kBlocks = 2 * 132;
static_assert(kBlocks * kRows * 32 * 2 * sizeof(float) <= kWorkspaceBytes, "partial sums must fit");

}  // namespace

int ops_embedding_forward(const void *table, const int32_t *ids, void *y, int64_t first, int64_t tokens,
                          int64_t vocabulary, int64_t hidden, int dtype, OpsStream stream) try {
  const int status = check_embedding_forward(table, ids, y, first, tokens, vocabulary, hidden, dtype);
  if (status != OPS_SUCCESS || tokens == 0 || hidden == 0) return status;
  return gather_rows("ops_embedding_forward", table, ids, y, first, tokens, hidden, vocabulary, size_of(dtype), stream);
} OPS_CATCH

int ops_embedding_backward(const void *dy, const int32_t *ids, float *gradient, float beta, int64_t first,
                           int64_t tokens, int64_t vocabulary, int64_t hidden, int dtype, OpsStream stream) try {
  const char *function = "ops_embedding_backward";
  int status = check_embedding_backward(dy, ids, gradient, first, tokens, vocabulary, hidden, dtype);
  if (status != OPS_SUCCESS || vocabulary == 0 || hidden == 0) return status;
  if (is_listed(dy, gradient, tokens, vocabulary, hidden, dtype)) {
    const int64_t groups = divide_up(hidden, kListTile);
    Grid grid;
    grid.x = static_cast<unsigned>(divide_up(vocabulary, kRows) * groups);
    const int groups_a_row = static_cast<int>(groups);
    return launch(function, listed[float_index(dtype)], grid, stream, dy, ids, gradient, beta, first, tokens,
                  vocabulary, hidden, groups_a_row);
  }
  const bool fits = hidden % 2 == 0 && reinterpret_cast<uintptr_t>(dy) % (2 * size_of(dtype)) == 0;
  const int64_t n = fits ? 2 : 1, column_tiles = divide_up(hidden, 32 * n);
  const int64_t tiles = divide_up(vocabulary, kRows) * column_tiles;
  if (tiles > INT32_MAX)
    return Arguments(function).between("vocabulary", vocabulary, 0, INT32_MAX / column_tiles * kRows).status();
  const int64_t wanted = std::min(std::max(kBlocks / tiles, int64_t{1}), divide_up(tokens, 32 * kWarps));
  const int64_t chunk_tokens = divide_up(divide_up(tokens, std::max(wanted, int64_t{1})), 32) * 32;
  const int64_t chunks = tokens == 0 ? 1 : divide_up(tokens, chunk_tokens);
  Kernel &kernel = (fits ? packed : scalar)[float_index(dtype)];
  Grid grid;
  grid.x = static_cast<unsigned>(tiles);
  grid.y = static_cast<unsigned>(chunks);
  grid.threads = 32 * kWarps;
  grid.shared_bytes = static_cast<size_t>(table_bytes(n));
  const int tiles_a_row = static_cast<int>(column_tiles);
  if (chunks == 1)
    return launch(function, kernel, grid, stream, dy, ids, gradient, beta, first, tokens, vocabulary, hidden,
                  chunk_tokens, tiles_a_row);

  const Workspace workspace(function, stream);
  if (workspace.status() != OPS_SUCCESS) return workspace.status();
  float *const partial = workspace.floats();
  status = launch(function, kernel, grid, stream, dy, ids, partial, 0.0f, first, tokens, vocabulary, hidden,
                  chunk_tokens, tiles_a_row);
  if (status != OPS_SUCCESS) return status;
  const int64_t cells = vocabulary * hidden;
  return launch(function, partials, grid_for(cells, 8), stream, partial, gradient, beta, chunks, cells);
} OPS_CATCH

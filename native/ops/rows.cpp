#include "rows.h"

#include "checks.h"
#include "kernel.h"

namespace chagres::ops {
namespace {

Kernel gather[] = {{"rows.cu", "gather_rows_16"}, {"rows.cu", "gather_rows_4"}, {"rows.cu", "gather_rows_2"}};
Kernel scatter[] = {{"rows.cu", "scatter_rows_16"}, {"rows.cu", "scatter_rows_4"}, {"rows.cu", "scatter_rows_2"}};
constexpr int64_t kUnits[] = {16, 4, 2}; /* bytes that the kernels above move at a time */
constexpr int64_t kSegment = 128;        /* units of a row that a warp moves at a time */

int copy_rows(const char *function, Kernel *kernels, const void *x, const int32_t *index, void *y, int64_t first,
              int64_t rows, int64_t row_bytes, int64_t indexed, OpsStream stream) {
  /* Of a matrix without rows nothing is read: its address was not checked. */
  const uintptr_t source = indexed == 0 ? 0 : reinterpret_cast<uintptr_t>(x);
  const auto bits = static_cast<uint64_t>(row_bytes) | source | reinterpret_cast<uintptr_t>(y);
  int choice = 0;
  while (bits % kUnits[choice] != 0) ++choice; /* ends: elements are of 2 or 4 bytes */
  const int64_t units = row_bytes / kUnits[choice];
  const Grid grid = grid_for(rows * divide_up(units, kSegment), 32);
  return launch(function, kernels[choice], grid, stream, x, index, y, first, rows, units, indexed);
}

}  // namespace

int gather_rows(const char *function, const void *x, const int32_t *index, void *y, int64_t first, int64_t rows,
                int64_t columns, int64_t x_rows, int64_t element_size, OpsStream stream) {
  return copy_rows(function, gather, x, index, y, first, rows, columns * element_size, x_rows, stream);
}

}  // namespace chagres::ops

using namespace chagres::ops;

int ops_gather_rows(const void *x, const int32_t *index, void *y, int64_t rows, int64_t columns, int64_t x_rows,
                    int dtype, OpsStream stream) try {
  const char *function = "ops_gather_rows";
  const int status = check_rows(function, x, index, y, rows, columns, "x_rows", x_rows, dtype);
  if (status != OPS_SUCCESS || rows == 0 || columns == 0) return status;
  return gather_rows(function, x, index, y, 0, rows, columns, x_rows, size_of(dtype), stream);
} OPS_CATCH

int ops_scatter_rows(const void *x, const int32_t *index, void *y, int64_t rows, int64_t columns, int64_t y_rows,
                     int dtype, OpsStream stream) try {
  const char *function = "ops_scatter_rows";
  const int status = check_rows(function, x, index, y, rows, columns, "y_rows", y_rows, dtype);
  if (status != OPS_SUCCESS || rows == 0 || columns == 0 || y_rows == 0) return status;
  return copy_rows(function, scatter, x, index, y, 0, rows, columns * size_of(dtype), y_rows, stream);
} OPS_CATCH

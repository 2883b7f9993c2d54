/* Operations: rows moved by index. */
#include "cuda/capture.h"
#include "ops/rows.h"

#include <cstring>

#include "ops/operations.h"

using namespace chagres;
using namespace chagres::reference;

void chagres::reference::gather(const void *x, const int32_t *index, void *y, int64_t first, int64_t rows,
                                int64_t row_bytes, int64_t x_rows) {
  parallel_for(0, rows, grain_for(row_bytes / 4), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      char *row = static_cast<char *>(y) + r * row_bytes;
      const int64_t other = index[r] - first;
      if (other < 0 || other >= x_rows) std::memset(row, 0, static_cast<size_t>(row_bytes));
      else std::memcpy(row, static_cast<const char *>(x) + other * row_bytes, static_cast<size_t>(row_bytes));
    }
  });
}

int ops_gather_rows(const void *x, const int32_t *index, void *y, int64_t rows, int64_t columns, int64_t x_rows,
                    int dtype, OpsStream stream) try {
  const char *function = "ops_gather_rows";
  const int status = ops::check_rows(function, x, index, y, rows, columns, "x_rows", x_rows, dtype);
  if (status != OPS_SUCCESS || rows == 0 || columns == 0) return status;
  if (recorded_by_value(ops_gather_rows, x, index, y, rows, columns, x_rows, dtype, stream)) return OPS_SUCCESS;
  return run(function, [&] { gather(x, index, y, 0, rows, columns * ops::size_of(dtype), x_rows); });
} OPS_CATCH

int ops_scatter_rows(const void *x, const int32_t *index, void *y, int64_t rows, int64_t columns, int64_t y_rows,
                     int dtype, OpsStream stream) try {
  const char *function = "ops_scatter_rows";
  const int status = ops::check_rows(function, x, index, y, rows, columns, "y_rows", y_rows, dtype);
  if (status != OPS_SUCCESS || rows == 0 || columns == 0 || y_rows == 0) return status;
  if (recorded_by_value(ops_scatter_rows, x, index, y, rows, columns, y_rows, dtype, stream)) return OPS_SUCCESS;
  const int64_t row_bytes = columns * ops::size_of(dtype);
  return run(function, [&] {
    parallel_for(0, rows, grain_for(row_bytes / 4), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r)
        if (index[r] >= 0 && index[r] < y_rows)
          std::memcpy(static_cast<char *>(y) + index[r] * row_bytes, static_cast<const char *>(x) + r * row_bytes,
                      static_cast<size_t>(row_bytes));
    });
  });
} OPS_CATCH

/* Operations: rows moved by index, embedding, and sums over rows. */
#include "operations.h"

#include <cstring>

using namespace chagres;
using namespace chagres::reference;

namespace {

/* out = beta * out + sum; beta 0 does not read out. */
CHAGRES_CLONES void finish_sum(float *out, float beta, const float *sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = beta == 0 ? sum[i] : beta * out[i] + sum[i];
}

/* y[r, :] = x[index[r], :] for rows of row_bytes; an index outside 0..x_rows-1 gives zeros. */
void gather(const void *x, const int32_t *index, void *y, int64_t rows, int64_t row_bytes, int64_t x_rows) {
  parallel_for(0, rows, grain_for(row_bytes / 4), [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      char *row = static_cast<char *>(y) + r * row_bytes;
      if (index[r] < 0 || index[r] >= x_rows) std::memset(row, 0, static_cast<size_t>(row_bytes));
      else std::memcpy(row, static_cast<const char *>(x) + index[r] * row_bytes, static_cast<size_t>(row_bytes));
    }
  });
}

constexpr int64_t kColumns = 64; /* columns of a piece: every sum is one thread's, in the order of the rows */

/* Rows are added up in runs of kRun, then the runs: the error grows with the run's length, not with the rows. */
constexpr int64_t kRun = 128;

}  // namespace

int ops_embedding_forward(const void *table, const int32_t *ids, void *y, int64_t tokens, int64_t vocabulary,
                          int64_t hidden, int dtype, OpsStream) {
  const int status = ops::check_embedding_forward(table, ids, y, tokens, vocabulary, hidden, dtype);
  if (status != OPS_SUCCESS || tokens == 0 || hidden == 0) return status;
  return run("ops_embedding_forward", [&] { gather(table, ids, y, tokens, hidden * ops::size_of(dtype), vocabulary); });
}

int ops_embedding_backward(const void *dy, const int32_t *ids, float *gradient, float beta, int64_t tokens,
                           int64_t vocabulary, int64_t hidden, int dtype, OpsStream) {
  const int status = ops::check_embedding_backward(dy, ids, gradient, tokens, vocabulary, hidden, dtype);
  if (status != OPS_SUCCESS || vocabulary == 0 || hidden == 0) return status;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_embedding_backward", [&] {
    parallel_for(0, hidden, kColumns, [&](int64_t first, int64_t last) {
      const int64_t width = last - first;
      Scratch sums(vocabulary * width);
      std::fill(sums.data(), sums.data() + vocabulary * width, 0.0f);
      float row[kColumns];
      for (int64_t t = 0; t < tokens; ++t) {
        if (ids[t] < 0 || ids[t] >= vocabulary) continue;
        to_float(row, element(dy, t * hidden + first, type), type, width);
        add_floats(sums.data() + ids[t] * width, row, width);
      }
      for (int64_t v = 0; v < vocabulary; ++v)
        finish_sum(gradient + v * hidden + first, beta, sums.data() + v * width, width);
    });
  });
}

int ops_row_sum(const void *x, float *sum, float beta, int64_t rows, int64_t columns, int dtype, OpsStream) {
  const int status = ops::check_row_sum(x, sum, rows, columns, dtype);
  if (status != OPS_SUCCESS || columns == 0) return status;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_row_sum", [&] {
    parallel_for(0, columns, kColumns, [&](int64_t first, int64_t last) {
      const int64_t width = last - first;
      float row[kColumns], run_sum[kColumns], total[kColumns] = {};
      for (int64_t begin = 0; begin < rows; begin += kRun) {
        std::fill(run_sum, run_sum + width, 0.0f);
        for (int64_t r = begin; r < std::min(begin + kRun, rows); ++r) {
          to_float(row, element(x, r * columns + first, type), type, width);
          add_floats(run_sum, row, width);
        }
        add_floats(total, run_sum, width);
      }
      finish_sum(sum + first, beta, total, width);
    });
  });
}

int ops_gather_rows(const void *x, const int32_t *index, void *y, int64_t rows, int64_t columns, int64_t x_rows,
                    int dtype, OpsStream) {
  const char *function = "ops_gather_rows";
  const int status = ops::check_rows(function, x, index, y, rows, columns, "x_rows", x_rows, dtype);
  if (status != OPS_SUCCESS || rows == 0 || columns == 0) return status;
  return run(function, [&] { gather(x, index, y, rows, columns * ops::size_of(dtype), x_rows); });
}

int ops_scatter_rows(const void *x, const int32_t *index, void *y, int64_t rows, int64_t columns, int64_t y_rows,
                     int dtype, OpsStream) {
  const char *function = "ops_scatter_rows";
  const int status = ops::check_rows(function, x, index, y, rows, columns, "y_rows", y_rows, dtype);
  if (status != OPS_SUCCESS || rows == 0 || columns == 0 || y_rows == 0) return status;
  const int64_t row_bytes = columns * ops::size_of(dtype);
  return run(function, [&] {
    parallel_for(0, rows, grain_for(row_bytes / 4), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r)
        if (index[r] >= 0 && index[r] < y_rows)
          std::memcpy(static_cast<char *>(y) + index[r] * row_bytes, static_cast<const char *>(x) + r * row_bytes,
                      static_cast<size_t>(row_bytes));
    });
  });
}

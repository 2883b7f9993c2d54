/* Operations: the sum over rows. */
#include "cuda/capture.h"
#include "ops/operations.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

/* Rows are added up in runs of kRun, then the runs: the error grows with the run's length, not with the rows. */
constexpr int64_t kRun = 128;

}  // namespace

int ops_row_sum(const void *x, float *sum, float beta, int64_t rows, int64_t columns, int dtype, OpsStream stream) try {
  const int status = ops::check_row_sum(x, sum, rows, columns, dtype);
  if (status != OPS_SUCCESS || columns == 0) return status;
  if (recorded_by_value(ops_row_sum, x, sum, beta, rows, columns, dtype, stream)) return OPS_SUCCESS;
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
} OPS_CATCH

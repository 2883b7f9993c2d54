/* Operations: a bias added to rows. */
#include "cuda/capture.h"
#include "ops/operations.h"

using namespace chagres;
using namespace chagres::reference;

int ops_bias_add(const void *x, const void *bias, const void *residual, void *y, int64_t rows, int64_t columns,
                 int dtype, OpsStream stream) try {
  const int status = ops::check_bias_add(x, bias, residual, y, rows, columns, dtype);
  if (status != OPS_SUCCESS || rows == 0 || columns == 0) return status;
  if (recorded_by_value(ops_bias_add, x, bias, residual, y, rows, columns, dtype, stream)) return OPS_SUCCESS;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_bias_add", [&] {
    Scratch summand(columns);
    to_float(summand.data(), bias, type, columns);
    parallel_for(0, rows, grain_for(columns), [&](int64_t first, int64_t last) {
      Scratch sum(columns);
      for (int64_t r = first; r < last; ++r) {
        to_float(sum.data(), element(x, r * columns, type), type, columns);
        add_floats(sum.data(), summand.data(), columns);
        if (residual != nullptr) {
          const FloatRun base(element(residual, r * columns, type), type, columns);
          add_floats(sum.data(), base.data(), columns);
        }
        from_float(element(y, r * columns, type), sum.data(), type, columns);
      }
    });
  });
} OPS_CATCH

#include "checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {

Kernel packed[] = FLOAT_KERNELS("bias.cu", "bias_add");
Kernel scalar[] = FLOAT_KERNELS("bias.cu", "bias_add_scalar");

}  // namespace

int ops_bias_add(const void *x, const void *bias, const void *residual, void *y, int64_t rows, int64_t columns,
                 int dtype, OpsStream stream) try {
  const char *function = "ops_bias_add";
  const int status = check_bias_add(x, bias, residual, y, rows, columns, dtype);
  if (status != OPS_SUCCESS || rows == 0 || columns == 0) return status;
  const int64_t pack = 16 / size_of(dtype), count = rows * columns;
  const bool fits = columns % pack == 0 && aligned(x, bias, residual, y);
  Kernel &kernel = (fits ? packed : scalar)[float_index(dtype)];
  return launch(function, kernel, grid_for(fits ? count / pack : count), stream, x, bias, residual, y, rows, columns);
} OPS_CATCH

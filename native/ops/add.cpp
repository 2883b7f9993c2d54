#include "checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {
Kernel packed[] = FLOAT_KERNELS("add.cu", "add");
Kernel scalar[] = FLOAT_KERNELS("add.cu", "add_scalar");
}  // namespace

int ops_add(const void *x, const void *residual, void *y, int64_t count, int dtype, OpsStream stream) {
  const int status = check_add(x, residual, y, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  const bool fits = aligned(x, residual, y);
  Kernel &kernel = (fits ? packed : scalar)[float_index(dtype)];
  const Grid grid = grid_for(fits ? count * size_of(dtype) / 16 : count);
  return launch("ops_add", kernel, grid, stream, x, residual, y, count);
}

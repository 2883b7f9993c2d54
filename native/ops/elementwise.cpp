#include <algorithm>

#include "checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {

Kernel add_packed[] = FLOAT_KERNELS("elementwise.cu", "add");
Kernel add_scalar[] = FLOAT_KERNELS("elementwise.cu", "add_scalar");

#define CAST_KERNELS(name)                                 \
  {FLOAT_KERNELS("elementwise.cu", name "_float32"), \
   FLOAT_KERNELS("elementwise.cu", name "_float16"), \
   FLOAT_KERNELS("elementwise.cu", name "_bfloat16")}

Kernel cast_packed[3][3] = CAST_KERNELS("cast"); /* [from][to] */
Kernel cast_scalar[3][3] = CAST_KERNELS("cast_scalar");
Kernel accumulate_packed[] = FLOAT_KERNELS("elementwise.cu", "accumulate");
Kernel accumulate_scalar[] = FLOAT_KERNELS("elementwise.cu", "accumulate_scalar");

}  // namespace

int ops_add(const void *x, const void *residual, void *y, int64_t count, int dtype, OpsStream stream) try {
  const int status = check_add(x, residual, y, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  const bool fits = aligned(x, residual, y);
  Kernel &kernel = (fits ? add_packed : add_scalar)[float_index(dtype)];
  const Grid grid = grid_for(fits ? count * size_of(dtype) / 16 : count);
  return launch("ops_add", kernel, grid, stream, x, residual, y, count);
} OPS_CATCH

int ops_cast(const void *x, int x_dtype, void *y, int y_dtype, int64_t count, OpsStream stream) try {
  const int status = check_cast(x, x_dtype, y, y_dtype, count);
  if (status != OPS_SUCCESS || count == 0) return status;
  const bool fits = aligned(x, y);
  Kernel &kernel = (fits ? cast_packed : cast_scalar)[float_index(x_dtype)][float_index(y_dtype)];
  const int64_t wider = std::max(size_of(x_dtype), size_of(y_dtype));
  return launch("ops_cast", kernel, grid_for(fits ? count * wider / 16 : count), stream, x, y, count);
} OPS_CATCH

int ops_accumulate(const void *x, float *y, float beta, int64_t count, int dtype, OpsStream stream) try {
  const int status = check_accumulate(x, y, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  const bool fits = aligned(x, y);
  Kernel &kernel = (fits ? accumulate_packed : accumulate_scalar)[float_index(dtype)];
  return launch("ops_accumulate", kernel, grid_for(fits ? count / 4 : count), stream, x, y, beta, count);
} OPS_CATCH

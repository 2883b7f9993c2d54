#include "checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {

Kernel packed_of[] = FLOAT_KERNELS("dequantize_blocks.cu", "dequantize_blocks");
Kernel scalar_of[] = FLOAT_KERNELS("dequantize_blocks.cu", "dequantize_blocks_scalar");

}  // namespace

int ops_dequantize_blocks(const void *q, const float *scale_inverse, void *y, int64_t rows, int64_t columns, int64_t stride,
                          int scaling, int dtype, int fp8, OpsStream stream) try {
  const char *function = "ops_dequantize_blocks";
  const int status = check_dequantize_blocks(q, scale_inverse, y, rows, columns, stride, scaling, dtype, fp8);
  if (status != OPS_SUCCESS || rows == 0 || columns == 0) return status;
  const int64_t pack = 16 / size_of(dtype);
  const bool packed = columns % pack == 0 && aligned(q, y);
  const int64_t in_row = packed ? columns / pack : columns, items = rows * in_row;
  Kernel &kernel = (packed ? packed_of : scalar_of)[float_index(dtype)];
  return launch(function, kernel, grid_for(items), stream, q, scale_inverse, y, items, in_row, stride, scaling, fp8);
} OPS_CATCH

/* Operations: dequantization of FP8 with block scales. */
#include "cuda/capture.h"
#include "ops/operations.h"

using namespace chagres;
using namespace chagres::reference;

int ops_dequantize_blocks(const void *q, const float *scale_inverse, void *y, int64_t rows, int64_t columns, int64_t stride,
                          int scaling, int dtype, int fp8, OpsStream stream) try {
  const int status = ops::check_dequantize_blocks(q, scale_inverse, y, rows, columns, stride, scaling, dtype, fp8);
  if (status != OPS_SUCCESS) return status;
  if (recorded_by_value(ops_dequantize_blocks, q, scale_inverse, y, rows, columns, stride, scaling, dtype, fp8, stream)) {
    return OPS_SUCCESS;
  }
  return run("ops_dequantize_blocks", [&] {
    if (columns == 0) return;
    parallel_for(0, rows, 16, [&](int64_t first, int64_t last) {
      Scratch values(columns);
      for (int64_t r = first; r < last; ++r) {
        to_float(values.data(), element(q, r * columns, as_dtype(fp8)), as_dtype(fp8), columns);
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t block = c / ops::kScaleBlock;
          values.data()[c] *= scale_inverse[scaling == ops::kRowBlocks ? block * stride + r
                                                                       : r / ops::kScaleBlock * stride + block];
        }
        from_float(element(y, r * columns, as_dtype(dtype)), values.data(), as_dtype(dtype), columns);
      }
    });
  });
} OPS_CATCH

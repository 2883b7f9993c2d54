/* Operations: sum, accumulation and cast. */
#include "ops/operations.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

CHAGRES_CLONES void scale_add_floats(float *y, float beta, const float *x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = beta * y[i] + x[i];
}

}  // namespace

int ops_add(const void *x, const void *residual, void *y, int64_t count, int dtype, OpsStream) try {
  const int status = ops::check_add(x, residual, y, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_add", [&] {
    for_each_block(count, [&](int64_t first, int64_t length) {
      float a[kBlock], sum[kBlock];
      to_float(a, element(x, first, type), type, length);
      to_float(sum, element(residual, first, type), type, length);
      add_floats(sum, a, length);
      from_float(element(y, first, type), sum, type, length);
    });
  });
} OPS_CATCH

int ops_accumulate(const void *x, float *y, float beta, int64_t count, int dtype, OpsStream) try {
  const int status = ops::check_accumulate(x, y, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_accumulate", [&] {
    for_each_block(count, [&](int64_t first, int64_t length) {
      float in[kBlock];
      to_float(in, element(x, first, type), type, length);
      if (beta == 0) std::copy(in, in + length, y + first);
      else scale_add_floats(y + first, beta, in, length);
    });
  });
} OPS_CATCH

int ops_cast(const void *x, int x_dtype, void *y, int y_dtype, int64_t count, OpsStream) try {
  const int status = ops::check_cast(x, x_dtype, y, y_dtype, count);
  if (status != OPS_SUCCESS || count == 0) return status;
  const NVTEDType from = as_dtype(x_dtype), to = as_dtype(y_dtype);
  return run("ops_cast", [&] {
    for_each_block(count, [&](int64_t first, int64_t length) {
      float values[kBlock];
      to_float(values, element(x, first, from), from, length);
      from_float(element(y, first, to), values, to, length);
    });
  });
} OPS_CATCH

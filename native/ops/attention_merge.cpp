#include "attention_merge_checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {

Kernel packed[] = FLOAT_KERNELS("attention_merge.cu", "attention_merge");
Kernel scalar[] = FLOAT_KERNELS("attention_merge.cu", "attention_merge_scalar");

}  // namespace

int ops_attention_merge(const void *partial, const float *log_sum_exp, float *merged, float *merged_log_sum_exp,
                        int64_t rows, int64_t columns, int first, int dtype, OpsStream stream) try {
  const int status =
      check_attention_merge(partial, log_sum_exp, merged, merged_log_sum_exp, rows, columns, first, dtype);
  if (status != OPS_SUCCESS || rows == 0) return status;
  const bool fits = aligned(partial, merged) && columns % 4 == 0;
  Kernel &kernel = (fits ? packed : scalar)[float_index(dtype)];
  return launch("ops_attention_merge", kernel, grid_for(rows, 32), stream, partial, log_sum_exp, merged,
                merged_log_sum_exp, rows, columns, first);
} OPS_CATCH

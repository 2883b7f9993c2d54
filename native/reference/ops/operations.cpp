/* Loops over floats that several operations share. */
#include "ops/operations.h"

namespace chagres::reference {

CHAGRES_CLONES void add_floats(float *sum, const float *x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += x[i];
}

CHAGRES_CLONES void scale_floats(float *y, const float *x, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * factor;
}

CHAGRES_CLONES void finish_sum(float *out, float beta, const float *sum, int64_t count) {
  for (int64_t i = 0; i < count; ++i) out[i] = beta == 0 ? sum[i] : beta * out[i] + sum[i];
}

}  // namespace chagres::reference

/* Operations: the clip factor of a gradient norm. */
#include <cmath>

#include "cuda/capture.h"
#include "ops/operations.h"

using namespace chagres;
using namespace chagres::reference;

int ops_clip_scale(const float *norm, float max_norm, float *scale, OpsStream stream) try {
  const int status = ops::check_clip_scale(norm, max_norm, scale);
  if (status != OPS_SUCCESS) return status;
  if (recorded_by_value(ops_clip_scale, norm, max_norm, scale, stream)) return OPS_SUCCESS;
  *scale = std::isfinite(*norm) ? std::min(1.0f, max_norm / (*norm + 1e-6f)) : 0.0f;
  return OPS_SUCCESS;
} OPS_CATCH

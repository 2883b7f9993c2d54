/* Operations: the loss scale. */
#include <algorithm>
#include <cmath>

#include "cuda/capture.h"
#include "ops/operations.h"

using namespace chagres;
using namespace chagres::reference;

int ops_loss_scale_clip(float *norm, const float *loss_scale, float max_norm, float *factor, int32_t *skip,
                        OpsStream stream) try {
  const int status = ops::check_loss_scale_clip(norm, loss_scale, max_norm, factor, skip);
  if (status != OPS_SUCCESS) return status;
  if (recorded_by_value(ops_loss_scale_clip, norm, loss_scale, max_norm, factor, skip, stream)) return OPS_SUCCESS;
  *norm = *norm / *loss_scale;
  const bool finite = std::isfinite(*norm);
  *factor = finite ? std::min(1.0f, max_norm / (*norm + 1e-6f)) / *loss_scale : 0.0f;
  if (!finite) *skip = 1;
  return OPS_SUCCESS;
} OPS_CATCH

int ops_loss_scale_update(const int32_t *skip, float *loss_scale, int32_t *counts, int32_t *step, float growth_factor,
                          float backoff_factor, int32_t growth_interval, OpsStream stream) try {
  const int status =
      ops::check_loss_scale_update(skip, loss_scale, counts, step, growth_factor, backoff_factor, growth_interval);
  if (status != OPS_SUCCESS) return status;
  if (recorded_by_value(ops_loss_scale_update, skip, loss_scale, counts, step, growth_factor, backoff_factor,
                        growth_interval, stream)) {
    return OPS_SUCCESS;
  }
  const bool skipped = *skip == 1;
  const int32_t taken = skipped ? 0 : counts[0] + 1;
  const bool grows = taken >= growth_interval;
  const float factor = skipped ? backoff_factor : grows ? growth_factor : 1.0f;
  const float changed = *loss_scale * factor;
  if (std::isnormal(changed)) *loss_scale = changed;
  counts[0] = grows ? 0 : taken;
  ++*(skipped ? counts + 1 : step);
  return OPS_SUCCESS;
} OPS_CATCH

int ops_loss_scale_restore(const int32_t *skip, const float *saved, float *values, int64_t count, OpsStream stream) try {
  const int status = ops::check_loss_scale_restore(skip, saved, values, count);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_loss_scale_restore, skip, saved, values, count, stream)) return OPS_SUCCESS;
  if (*skip == 1) std::copy(saved, saved + count, values);
  return OPS_SUCCESS;
} OPS_CATCH

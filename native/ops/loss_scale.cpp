#include "checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {

Kernel clip("loss_scale.cu", "loss_scale_clip");
Kernel update("loss_scale.cu", "loss_scale_update");
Kernel restore("loss_scale.cu", "loss_scale_restore");

Grid one_thread() {
  Grid grid;
  grid.threads = 1;
  return grid;
}

}  // namespace

int ops_loss_scale_clip(float *norm, const float *loss_scale, float max_norm, float *factor, int32_t *skip,
                        OpsStream stream) try {
  const int status = check_loss_scale_clip(norm, loss_scale, max_norm, factor, skip);
  if (status != OPS_SUCCESS) return status;
  return launch("ops_loss_scale_clip", clip, one_thread(), stream, norm, loss_scale, max_norm, factor, skip);
} OPS_CATCH

int ops_loss_scale_update(const int32_t *skip, float *loss_scale, int32_t *counts, int32_t *step, float growth_factor,
                          float backoff_factor, int32_t growth_interval, OpsStream stream) try {
  const int status =
      check_loss_scale_update(skip, loss_scale, counts, step, growth_factor, backoff_factor, growth_interval);
  if (status != OPS_SUCCESS) return status;
  return launch("ops_loss_scale_update", update, one_thread(), stream, skip, loss_scale, counts, step, growth_factor,
                backoff_factor, growth_interval);
} OPS_CATCH

int ops_loss_scale_restore(const int32_t *skip, const float *saved, float *values, int64_t count, OpsStream stream) try {
  const int status = check_loss_scale_restore(skip, saved, values, count);
  if (status != OPS_SUCCESS || count == 0) return status;
  return launch("ops_loss_scale_restore", restore, grid_for(count), stream, skip, saved, values, count);
} OPS_CATCH

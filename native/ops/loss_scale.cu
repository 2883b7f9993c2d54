/* Loss scaling: unscales the gradient norm, and updates the scale at the end of a step, one thread each; and restores
 * what a skipped step has changed. */
#include <common.cuh>

__device__ inline bool is_normal(float value) {
  return value >= __int_as_float(0x00800000) && value < __int_as_float(0x7f800000);
}

KERNEL(loss_scale_clip, float *norm, const float *loss_scale, float max_norm, float *factor, int32_t *skip) {
  const float value = norm[0] / loss_scale[0];
  const bool finite = fabsf(value) < __int_as_float(0x7f800000); /* false for NaN */
  norm[0] = value;
  factor[0] = finite ? fminf(1.0f, max_norm / (value + 1e-6f)) / loss_scale[0] : 0.0f;
  if (!finite) skip[0] = 1;
}

KERNEL(loss_scale_update, const int32_t *skip, float *loss_scale, int32_t *counts, int32_t *step, float growth_factor,
       float backoff_factor, int32_t growth_interval) {
  const bool skipped = skip[0] == 1;
  const int32_t taken = skipped ? 0 : counts[0] + 1;
  const bool grows = taken >= growth_interval;
  const float scale = loss_scale[0];
  const float changed = skipped ? scale * backoff_factor : grows ? scale * growth_factor : scale;
  if (is_normal(changed)) loss_scale[0] = changed;
  counts[0] = grows ? 0 : taken;
  if (skipped) ++counts[1];
  else ++step[0];
}

KERNEL(loss_scale_restore, const int32_t *skip, const float *saved, float *values, int64_t count) {
  if (skip[0] != 1) return;
  for (int64_t i = thread_index(); i < count; i += thread_total()) values[i] = saved[i];
}

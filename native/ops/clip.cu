/* scale = min(1, max_norm / (norm + 1e-6)), 0 for a norm that is NaN or infinite. One thread. */
#include <common.cuh>

KERNEL(clip_scale, const float *norm, float max_norm, float *scale) {
  const float value = norm[0];
  const bool finite = fabsf(value) < __int_as_float(0x7f800000); /* false for NaN */
  scale[0] = finite ? fminf(1.0f, max_norm / (value + 1e-6f)) : 0.0f;
}

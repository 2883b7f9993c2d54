#include "checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {
Kernel clip_scale("clip.cu", "clip_scale");
}  // namespace

int ops_clip_scale(const float *norm, float max_norm, float *scale, OpsStream stream) try {
  const int status = check_clip_scale(norm, max_norm, scale);
  if (status != OPS_SUCCESS) return status;
  Grid grid;
  grid.threads = 1;
  return launch("ops_clip_scale", clip_scale, grid, stream, norm, max_norm, scale);
} OPS_CATCH

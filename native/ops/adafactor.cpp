#include <cstddef>
#include <cstdint>

#include "adafactor_arguments.cuh"
#include "adafactor_checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {

static_assert(sizeof(AdafactorRange) == sizeof(OpsAdafactorRange) &&
                  offsetof(AdafactorRange, row_map) == offsetof(OpsAdafactorRange, row_map) &&
                  offsetof(AdafactorRange, column_squares) == offsetof(OpsAdafactorRange, column_squares) &&
                  offsetof(AdafactorRange, rate) == offsetof(OpsAdafactorRange, rate) &&
                  offsetof(AdafactorRange, whole_columns) == offsetof(OpsAdafactorRange, whole_columns) &&
                  offsetof(AdafactorRange, weight_decay) == offsetof(OpsAdafactorRange, weight_decay),
              "the kernels read the caller's table");
static_assert(kRateCapped == OPS_RATE_CAPPED && kRateWarmUp == OPS_RATE_WARM_UP, "one numbering");

/* Blocks of each range; those without rows and columns end at once. */
constexpr unsigned kBlocks = 128;

/* By where FP32 weights are. */
Kernel sums[] = {{"adafactor.cu", "adafactor_sums_own"}, {"adafactor.cu", "adafactor_sums_master"},
                 {"adafactor.cu", "adafactor_sums_master"}, {"adafactor.cu", "adafactor_sums_remainder"}};
Kernel steps[] = {{"adafactor.cu", "adafactor_step_own"}, {"adafactor.cu", "adafactor_step_master_float16"},
                  {"adafactor.cu", "adafactor_step_master_bfloat16"}, {"adafactor.cu", "adafactor_step_remainder"}};
Kernel factors("adafactor.cu", "adafactor_factors");
Kernel updates("adafactor.cu", "adafactor_updates");
Kernel clip("adafactor.cu", "adafactor_clip");

int place_of(const AdafactorCall &call) {
  if (call.masters == OPS_MASTER_NONE) return 0;
  if (call.masters == OPS_MASTER_REMAINDER) return 3;
  return call.weight_dtype == kFloat16 ? 1 : 2;
}

Kernel &kernel_for(const AdafactorCall &call) {
  switch (call.phase) {
    case OPS_ADAFACTOR_SUMS: return sums[place_of(call)];
    case OPS_ADAFACTOR_FACTORS: return factors;
    case OPS_ADAFACTOR_UPDATES: return updates;
    case OPS_ADAFACTOR_CLIP: return clip;
    default: return steps[place_of(call)];
  }
}

}  // namespace

int ops_adafactor(const OpsAdafactorRange *ranges, int64_t range_count, const int32_t *step, const float *gradient_scale,
                  const int32_t *skip, int phase, float power, float epsilon1, float epsilon2, float threshold, float beta1,
                  int relative, int scaled, int weight_dtype, int masters, OpsStream stream) try {
  const AdafactorCall call = {ranges, range_count, step, gradient_scale, skip, phase, power, epsilon1,
                              epsilon2, threshold, beta1, relative, scaled, weight_dtype, masters};
  const int status = check_adafactor(call);
  if (status != OPS_SUCCESS || range_count == 0) return status;
  const AdafactorNumbers numbers = {step, gradient_scale, skip, power, epsilon1, epsilon2, threshold, beta1, relative, scaled != 0};
  Grid grid;
  grid.x = call.is_of_matrices() ? 1 : kBlocks;
  grid.y = static_cast<unsigned>(range_count);
  return launch("ops_adafactor", kernel_for(call), grid, stream, numbers, reinterpret_cast<const AdafactorRange *>(ranges));
} OPS_CATCH

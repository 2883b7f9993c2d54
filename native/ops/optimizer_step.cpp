#include <cstddef>
#include <cstdint>

#include "kernel.h"
#include "optimizer_step_arguments.cuh"
#include "optimizer_step_checks.h"

using namespace chagres::ops;

namespace {

static_assert(sizeof(StepRange) == sizeof(OpsStepRange) && offsetof(StepRange, master) == offsetof(OpsStepRange, master) &&
                  offsetof(StepRange, second) == offsetof(OpsStepRange, second) &&
                  offsetof(StepRange, second_scale) == offsetof(OpsStepRange, second_scale) &&
                  offsetof(StepRange, share) == offsetof(OpsStepRange, share) &&
                  offsetof(StepRange, first_block) == offsetof(OpsStepRange, first_block) &&
                  offsetof(StepRange, weight_decay) == offsetof(OpsStepRange, weight_decay),
              "the kernels read the caller's table");
static_assert(kMethodNesterov == OPS_METHOD_NESTEROV && kMethodPoint == OPS_METHOD_SCHEDULE_FREE_POINT && kMethodAverage == OPS_METHOD_AVERAGE,
              "one numbering");

/* By where FP32 weights are. */
struct Family {
  Kernel own, master_float16, master_bfloat16, remainder;
};
#define FAMILY(name)                                                                                              \
  {{"optimizer_step.cu", name "_own"}, {"optimizer_step.cu", name "_master_float16"},                             \
   {"optimizer_step.cu", name "_master_bfloat16"}, {"optimizer_step.cu", name "_remainder"}}

Family sgd = FAMILY("step_sgd"), lion = FAMILY("step_lion"), lion_bfloat16 = FAMILY("step_lion_bfloat16");
Family lion_codes = FAMILY("step_lion_codes"), adam_codes = FAMILY("step_adam_codes");
Family average = {{"optimizer_step.cu", "step_average_own"}, {"optimizer_step.cu", "step_average_master"},
                  {"optimizer_step.cu", "step_average_master"}, {"optimizer_step.cu", "step_average_remainder"}};
Kernel averaged[] = FLOAT_KERNELS("optimizer_step.cu", "step_averaged");
Kernel average_share("optimizer_step.cu", "average_share");

Family &family_for(const StepKind &kind) {
  if (kind.method == OPS_METHOD_ADAM) return adam_codes;
  if (kind.is_average()) return average;
  if (kind.method != OPS_METHOD_LION) return sgd;
  return kind.has_codes() ? lion_codes : kind.state_dtype == kBFloat16 ? lion_bfloat16 : lion;
}

Kernel &kernel_for(const StepKind &kind) {
  if (kind.is_averaged()) return averaged[float_index(kind.weight_dtype)];
  Family &family = family_for(kind);
  if (kind.masters == OPS_MASTER_NONE) return family.own;
  if (kind.masters == OPS_MASTER_REMAINDER) return family.remainder;
  return kind.weight_dtype == kFloat16 ? family.master_float16 : family.master_bfloat16;
}

}  // namespace

int ops_optimizer_step(const OpsStepRange *ranges, int64_t range_count, int64_t blocks, const int32_t *step,
                       const float *gradient_scale, const int32_t *skip, int method, float beta1, float beta2, float epsilon,
                       int decoupled, int bias_correction, int gradient_dtype, int weight_dtype, int state_dtype,
                       int masters, OpsStream stream) try {
  const StepKind kind = {method, gradient_dtype, weight_dtype, state_dtype, masters};
  const int status = check_optimizer_step(
      {ranges, range_count, blocks}, {step, gradient_scale, skip, beta1, beta2, epsilon, decoupled, bias_correction}, kind);
  if (status != OPS_SUCCESS || range_count == 0) return status;
  const bool corrected = kind.is_averaged() || (method == OPS_METHOD_ADAM && bias_correction != 0);
  const StepNumbers numbers = {step, gradient_scale, skip, beta1, beta2, epsilon, gradient_dtype, method, decoupled != 0, corrected};
  const StepTable table = {reinterpret_cast<const StepRange *>(ranges), static_cast<int32_t>(range_count),
                           static_cast<int32_t>(blocks)};
  return launch("ops_optimizer_step", kernel_for(kind), grid_for(blocks * kThreads - 1), stream, numbers, table);
} OPS_CATCH

int ops_average_share(const float *rates, const int32_t *step, const int32_t *skip, float *sums, float *shares, float power,
                      float rate_power, int64_t count, OpsStream stream) try {
  const int status = check_average_share(rates, step, skip, sums, shares, power, rate_power, count);
  if (status != OPS_SUCCESS || count == 0) return status;
  return launch("ops_average_share", average_share, grid_for(count), stream, rates, step, skip, sums, shares, power, rate_power,
                count);
} OPS_CATCH

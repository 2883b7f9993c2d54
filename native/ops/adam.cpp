#include <cstddef>
#include <cstdint>

#include "adam_arguments.cuh"
#include "adam_checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {

static_assert(sizeof(AdamRange) == sizeof(OpsAdamRange) && offsetof(AdamRange, master) == offsetof(OpsAdamRange, master) &&
                  offsetof(AdamRange, rate) == offsetof(OpsAdamRange, rate) &&
                  offsetof(AdamRange, first_block) == offsetof(OpsAdamRange, first_block) &&
                  offsetof(AdamRange, weight_decay) == offsetof(OpsAdamRange, weight_decay),
              "the kernels read the caller's table");
static_assert(OPS_ADAM_BLOCK == 4 * kThreads, "a thread has four elements of a block");

/* One range, and many. */
struct Kernels {
  Kernel one, many;
};
#define ADAM_KERNELS(name) {{"adam.cu", "adam_" name}, {"adam.cu", "adam_ranges_" name}}

/* By the type of the moments: FP32, BF16. */
Kernels own[] = {ADAM_KERNELS("own_float32"), ADAM_KERNELS("own_bfloat16")};
Kernels master_float16[] = {ADAM_KERNELS("master_float16_float32"), ADAM_KERNELS("master_float16_bfloat16")};
Kernels master_bfloat16[] = {ADAM_KERNELS("master_bfloat16_float32"), ADAM_KERNELS("master_bfloat16_bfloat16")};
Kernels remainder[] = {ADAM_KERNELS("remainder_float32"), ADAM_KERNELS("remainder_bfloat16")};

Kernels &kernels_for(const AdamKind &kind) {
  Kernels *family = own;
  if (kind.masters == OPS_MASTER_REMAINDER) family = remainder;
  if (kind.masters == OPS_MASTER_FLOAT32) family = kind.weight_dtype == kFloat16 ? master_float16 : master_bfloat16;
  return family[kind.moment_dtype == kBFloat16 ? 1 : 0];
}

}  // namespace

int ops_adam(const void *gradient, void *weight, void *mean, void *square, void *master, const float *rate,
             const int32_t *step, const float *gradient_scale, const int32_t *skip, float beta1, float beta2,
             float epsilon, float weight_decay, int decoupled, int bias_correction, int64_t count, int gradient_dtype,
             int weight_dtype, int moment_dtype, int masters, OpsStream stream) try {
  const AdamKind kind = {gradient_dtype, weight_dtype, moment_dtype, masters};
  const int status =
      check_adam({gradient, weight, mean, square, master, rate, count, weight_decay},
                 {step, gradient_scale, skip, beta1, beta2, epsilon, decoupled, bias_correction}, kind);
  if (status != OPS_SUCCESS || count == 0) return status;
  const bool vector = aligned(gradient, weight, mean, square, master);
  const AdamNumbers numbers = {step, gradient_scale, skip, beta1, beta2, epsilon, gradient_dtype,
                               decoupled != 0, bias_correction != 0};
  const AdamRange range = {gradient, weight, mean, square, master, rate, count, 0, weight_decay};
  const int64_t packs = vector ? count / 4 : 0;
  return launch("ops_adam", kernels_for(kind).one, grid_for(vector ? count / 4 + 1 : count), stream, numbers, range, packs);
} OPS_CATCH

int ops_adam_ranges(const OpsAdamRange *ranges, int64_t range_count, int64_t blocks, const int32_t *step,
                    const float *gradient_scale, const int32_t *skip, float beta1, float beta2, float epsilon,
                    int decoupled, int bias_correction, int gradient_dtype, int weight_dtype, int moment_dtype,
                    int masters, OpsStream stream) try {
  const AdamKind kind = {gradient_dtype, weight_dtype, moment_dtype, masters};
  const int status = check_adam_ranges(
      {ranges, range_count, blocks}, {step, gradient_scale, skip, beta1, beta2, epsilon, decoupled, bias_correction}, kind);
  if (status != OPS_SUCCESS || range_count == 0) return status;
  const AdamNumbers numbers = {step, gradient_scale, skip, beta1, beta2, epsilon, gradient_dtype,
                               decoupled != 0, bias_correction != 0};
  const AdamTable table = {reinterpret_cast<const AdamRange *>(ranges), static_cast<int32_t>(range_count),
                           static_cast<int32_t>(blocks)};
  return launch("ops_adam_ranges", kernels_for(kind).many, grid_for(blocks * kThreads - 1), stream, numbers, table);
} OPS_CATCH

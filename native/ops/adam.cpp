#include <cstdint>

#include "adam_arguments.cuh"
#include "adam_checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {

/* By the type of the moments: FP32, BF16. */
Kernel own[] = {{"adam.cu", "adam_own_float32"}, {"adam.cu", "adam_own_bfloat16"}};
Kernel master_float16[] = {{"adam.cu", "adam_master_float16_float32"}, {"adam.cu", "adam_master_float16_bfloat16"}};
Kernel master_bfloat16[] = {{"adam.cu", "adam_master_bfloat16_float32"}, {"adam.cu", "adam_master_bfloat16_bfloat16"}};
Kernel remainder[] = {{"adam.cu", "adam_remainder_float32"}, {"adam.cu", "adam_remainder_bfloat16"}};

Kernel &kernel_for(int weight_dtype, int moment_dtype, int masters) {
  Kernel *family = own;
  if (masters == OPS_MASTER_REMAINDER) family = remainder;
  if (masters == OPS_MASTER_FLOAT32) family = weight_dtype == kFloat16 ? master_float16 : master_bfloat16;
  return family[moment_dtype == kBFloat16 ? 1 : 0];
}

}  // namespace

int ops_adam(const float *gradient, void *weight, void *mean, void *square, void *master, const float *rate,
             const int32_t *step, const float *gradient_scale, const int32_t *skip, float beta1, float beta2,
             float epsilon, float weight_decay, int decoupled, int bias_correction, int64_t count, int weight_dtype,
             int moment_dtype, int masters, OpsStream stream) try {
  const int status =
      check_adam({gradient, weight, mean, square, master, rate, step, gradient_scale, skip, beta1, beta2, epsilon,
                  weight_decay, decoupled, bias_correction, count, weight_dtype, moment_dtype, masters});
  if (status != OPS_SUCCESS || count == 0) return status;
  const bool vector = aligned(gradient, weight, mean, square, master);
  const AdamArguments arguments = {gradient, weight,        mean,  square, master,  rate,         step,
                                   gradient_scale, skip,    beta1, beta2,  epsilon, weight_decay, decoupled != 0,
                                   bias_correction != 0,    vector ? count / 4 : 0, count};
  return launch("ops_adam", kernel_for(weight_dtype, moment_dtype, masters), grid_for(vector ? count / 4 + 1 : count),
                stream, arguments);
} OPS_CATCH

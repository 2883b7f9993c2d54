/* Operations: a step of Adam. */
#include "../../ops/adam_checks.h"
#include "cuda/capture.h"
#include "ops/operations.h"
#include "runtime/adam.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

struct Weights {
  void *weight, *master;
  NVTEDType dtype;
  int masters;

  uint16_t *upper(int64_t first) const { return static_cast<uint16_t *>(weight) + first; }
  int16_t *remainder(int64_t first) const { return static_cast<int16_t *>(master) + first; }

  void load(float *run, int64_t first, int64_t count) const {
    if (masters == OPS_MASTER_REMAINDER) {
      for (int64_t i = 0; i < count; ++i) run[i] = join(upper(first)[i], remainder(first)[i]);
    } else {
      const void *own = masters == OPS_MASTER_NONE ? weight : master;
      to_float(run, element(own, first, kNVTEFloat32), kNVTEFloat32, count);
    }
  }

  void store(const float *run, int64_t first, int64_t count) const {
    if (masters == OPS_MASTER_REMAINDER) {
      for (int64_t i = 0; i < count; ++i) split(run[i], upper(first) + i, remainder(first) + i);
      return;
    }
    from_float(element(weight, first, dtype), run, dtype, count);
    if (masters == OPS_MASTER_FLOAT32) from_float(element(master, first, kNVTEFloat32), run, kNVTEFloat32, count);
  }
};

}  // namespace

int ops_adam(const float *gradient, void *weight, void *mean, void *square, void *master, const float *rate,
             const int32_t *step, const float *gradient_scale, const int32_t *skip, float beta1, float beta2,
             float epsilon, float weight_decay, int decoupled, int bias_correction, int64_t count, int weight_dtype,
             int moment_dtype, int masters, OpsStream stream) try {
  const int status =
      ops::check_adam({gradient, weight, mean, square, master, rate, step, gradient_scale, skip, beta1, beta2, epsilon,
                       weight_decay, decoupled, bias_correction, count, weight_dtype, moment_dtype, masters});
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_adam, gradient, weight, mean, square, master, rate, step, gradient_scale, skip, beta1, beta2,
                        epsilon, weight_decay, decoupled, bias_correction, count, weight_dtype, moment_dtype, masters,
                        stream)) {
    return OPS_SUCCESS;
  }
  if (*skip == 1) return OPS_SUCCESS;
  AdamStep by{};
  by.lr = *rate;
  by.beta1 = beta1;
  by.beta2 = beta2;
  by.epsilon = epsilon;
  by.decay = weight_decay;
  by.decoupled = decoupled != 0;
  set_corrections(by, *step, bias_correction != 0);
  const float scale = *gradient_scale;
  const NVTEDType moment = as_dtype(moment_dtype);
  const Weights weights{weight, master, as_dtype(weight_dtype), masters};
  return run("ops_adam", [&] {
    for_each_block(count, [&](int64_t first, int64_t length) {
      float g[kBlock], p[kBlock], m[kBlock], v[kBlock];
      for (int64_t i = 0; i < length; ++i) g[i] = scale * gradient[first + i];
      weights.load(p, first, length);
      to_float(m, element(mean, first, moment), moment, length);
      to_float(v, element(square, first, moment), moment, length);
      adam_run(g, p, m, v, by, length);
      weights.store(p, first, length);
      from_float(element(mean, first, moment), m, moment, length);
      from_float(element(square, first, moment), v, moment, length);
    });
  });
} OPS_CATCH

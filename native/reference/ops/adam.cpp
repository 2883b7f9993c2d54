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

struct Gradients {
  const void *values;
  NVTEDType dtype;
};

struct Moments {
  void *mean, *square;
  NVTEDType dtype;
};

/* Moves one range. */
void update(const Gradients &gradients, float scale, const Weights &weights, const Moments &moments, const AdamStep &by, int64_t count) {
  for_each_block(count, [&](int64_t first, int64_t length) {
    float g[kBlock], p[kBlock], m[kBlock], v[kBlock];
    to_float(g, element(gradients.values, first, gradients.dtype), gradients.dtype, length);
    for (int64_t i = 0; i < length; ++i) g[i] *= scale;
    weights.load(p, first, length);
    to_float(m, element(moments.mean, first, moments.dtype), moments.dtype, length);
    to_float(v, element(moments.square, first, moments.dtype), moments.dtype, length);
    adam_run(g, p, m, v, by, length);
    weights.store(p, first, length);
    from_float(element(moments.mean, first, moments.dtype), m, moments.dtype, length);
    from_float(element(moments.square, first, moments.dtype), v, moments.dtype, length);
  });
}

/* The arguments of a step without learning rate and weight decay, which each range sets. */
AdamStep step_of(float beta1, float beta2, float epsilon, int decoupled, int step, int bias_correction) {
  AdamStep by{};
  by.beta1 = beta1;
  by.beta2 = beta2;
  by.epsilon = epsilon;
  by.decoupled = decoupled != 0;
  set_corrections(by, step, bias_correction != 0);
  return by;
}

}  // namespace

int ops_adam(const void *gradient, void *weight, void *mean, void *square, void *master, const float *rate,
             const int32_t *step, const float *gradient_scale, const int32_t *skip, float beta1, float beta2,
             float epsilon, float weight_decay, int decoupled, int bias_correction, int64_t count, int gradient_dtype,
             int weight_dtype, int moment_dtype, int masters, OpsStream stream) try {
  const int status = ops::check_adam({gradient, weight, mean, square, master, rate, count, weight_decay},
                                     {step, gradient_scale, skip, beta1, beta2, epsilon, decoupled, bias_correction},
                                     {gradient_dtype, weight_dtype, moment_dtype, masters});
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_adam, gradient, weight, mean, square, master, rate, step, gradient_scale, skip, beta1, beta2,
                        epsilon, weight_decay, decoupled, bias_correction, count, gradient_dtype, weight_dtype,
                        moment_dtype, masters, stream)) {
    return OPS_SUCCESS;
  }
  if (*skip == 1) return OPS_SUCCESS;
  AdamStep by = step_of(beta1, beta2, epsilon, decoupled, *step, bias_correction);
  by.lr = *rate;
  by.decay = weight_decay;
  const Weights weights{weight, master, as_dtype(weight_dtype), masters};
  const Moments moments{mean, square, as_dtype(moment_dtype)};
  return run("ops_adam", [&] { update({gradient, as_dtype(gradient_dtype)}, *gradient_scale, weights, moments, by, count); });
} OPS_CATCH

int ops_adam_ranges(const OpsAdamRange *ranges, int64_t range_count, int64_t blocks, const int32_t *step,
                    const float *gradient_scale, const int32_t *skip, float beta1, float beta2, float epsilon,
                    int decoupled, int bias_correction, int gradient_dtype, int weight_dtype, int moment_dtype,
                    int masters, OpsStream stream) try {
  const ops::AdamTableCall table = {ranges, range_count, blocks};
  const ops::AdamKind kind = {gradient_dtype, weight_dtype, moment_dtype, masters};
  int status = ops::check_adam_ranges(
      table, {step, gradient_scale, skip, beta1, beta2, epsilon, decoupled, bias_correction}, kind);
  if (status != OPS_SUCCESS || range_count == 0) return status;
  if (recorded_by_value(ops_adam_ranges, ranges, range_count, blocks, step, gradient_scale, skip, beta1, beta2, epsilon,
                        decoupled, bias_correction, gradient_dtype, weight_dtype, moment_dtype, masters, stream)) {
    return OPS_SUCCESS;
  }
  status = ops::check_adam_table(table, kind);
  if (status != OPS_SUCCESS || *skip == 1) return status;
  AdamStep by = step_of(beta1, beta2, epsilon, decoupled, *step, bias_correction);
  return run("ops_adam_ranges", [&] {
    for (const OpsAdamRange *range = ranges; range < ranges + range_count; ++range) {
      if (range->count == 0) continue;
      by.lr = *range->rate;
      by.decay = range->weight_decay;
      update({range->gradient, as_dtype(gradient_dtype)}, *gradient_scale, {range->weight, range->master, as_dtype(weight_dtype), masters},
             {range->mean, range->square, as_dtype(moment_dtype)}, by, range->count);
    }
  });
} OPS_CATCH

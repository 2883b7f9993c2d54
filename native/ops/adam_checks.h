/* The checks of ops_adam, shared by both libraries that export it. */
#ifndef CHAGRES_OPS_ADAM_CHECKS_H
#define CHAGRES_OPS_ADAM_CHECKS_H

#include "arguments.h"

namespace chagres::ops {

/* The arguments of ops_adam in their order, without the stream. */
struct AdamCall {
  const void *gradient, *weight, *mean, *square, *master, *rate, *step, *gradient_scale, *skip;
  float beta1, beta2, epsilon, weight_decay;
  int decoupled, bias_correction;
  int64_t count;
  int weight_dtype, moment_dtype, masters;
};

inline void adam_numbers(Arguments &arguments, const AdamCall &call) {
  arguments.probability("beta1", call.beta1).probability("beta2", call.beta2);
  if (!(call.epsilon >= 0)) arguments.refuse("epsilon", format("%g", call.epsilon), "0 or more");
  if (!(call.weight_decay >= 0)) arguments.refuse("weight_decay", format("%g", call.weight_decay), "0 or more");
  arguments.between("decoupled", call.decoupled, 0, 1).between("bias_correction", call.bias_correction, 0, 1);
}

inline void adam_dtypes(Arguments &arguments, const AdamCall &call) {
  arguments.float_dtype("weight_dtype", call.weight_dtype);
  if (call.moment_dtype != kFloat32 && call.moment_dtype != kBFloat16)
    arguments.refuse("moment_dtype", format("%d", call.moment_dtype), "4 (float32) or 6 (bfloat16)");
  arguments.between("masters", call.masters, OPS_MASTER_NONE, OPS_MASTER_REMAINDER);
  if (call.masters == OPS_MASTER_NONE && call.weight_dtype != kFloat32)
    arguments.refuse("masters", "0 (none)", "1 (float32) for weights of 16 bits, or 2 (remainder) for bfloat16");
  if (call.masters == OPS_MASTER_FLOAT32 && call.weight_dtype == kFloat32)
    arguments.refuse("masters", "1 (float32)", "0 (none) for weights of float32");
  if (call.masters == OPS_MASTER_REMAINDER && call.weight_dtype != kBFloat16)
    arguments.refuse("masters", "2 (remainder)", "weights of bfloat16 with it");
}

inline int check_adam(const AdamCall &call) {
  Arguments arguments("ops_adam");
  adam_numbers(arguments, call);
  adam_dtypes(arguments, call);
  arguments.between("count", call.count, 0);
  if (arguments.wrong() || call.count == 0) return arguments.status();
  const int64_t weight = size_of(call.weight_dtype), moment = size_of(call.moment_dtype);
  const int64_t master = call.masters == OPS_MASTER_REMAINDER ? 2 : 4;
  arguments.countable("count", {call.count, 4})
      .pointer("gradient", call.gradient, 4, bytes_of({call.count, 4}))
      .pointer("weight", call.weight, weight, bytes_of({call.count, weight}))
      .pointer("mean", call.mean, moment, bytes_of({call.count, moment}))
      .pointer("square", call.square, moment, bytes_of({call.count, moment}))
      .pointer("rate", call.rate, 4, 4)
      .pointer("step", call.step, 4, 4)
      .pointer("gradient_scale", call.gradient_scale, 4, 4)
      .pointer("skip", call.skip, 4, 4);
  if (call.masters != OPS_MASTER_NONE)
    arguments.pointer("master", call.master, master, bytes_of({call.count, master}));
  return arguments.status();
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_ADAM_CHECKS_H */

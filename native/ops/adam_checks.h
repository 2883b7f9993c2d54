/* The checks of ops_adam and ops_adam_ranges, shared by both libraries that export them. */
#ifndef CHAGRES_OPS_ADAM_CHECKS_H
#define CHAGRES_OPS_ADAM_CHECKS_H

#include "arguments.h"

namespace chagres::ops {

/* What a range has of its own. */
struct AdamCall {
  const void *gradient, *weight, *mean, *square, *master, *rate;
  int64_t count;
  float weight_decay;
};

/* What all ranges have in common. */
struct AdamStepCall {
  const void *step, *gradient_scale, *skip;
  float beta1, beta2, epsilon;
  int decoupled, bias_correction;
};

struct AdamKind {
  int gradient_dtype, weight_dtype, moment_dtype, masters;
};

struct AdamTableCall {
  const OpsAdamRange *ranges;
  int64_t range_count, blocks;
};

inline void adam_decay(Arguments &arguments, const std::string &of, float weight_decay) {
  if (!(weight_decay >= 0)) arguments.refuse((of + "weight_decay").c_str(), format("%g", weight_decay), "0 or more");
}

inline void adam_numbers(Arguments &arguments, const AdamStepCall &call) {
  arguments.probability("beta1", call.beta1).probability("beta2", call.beta2);
  if (!(call.epsilon >= 0)) arguments.refuse("epsilon", format("%g", call.epsilon), "0 or more");
  arguments.between("decoupled", call.decoupled, 0, 1).between("bias_correction", call.bias_correction, 0, 1);
}

inline void adam_dtypes(Arguments &arguments, const AdamKind &kind) {
  arguments.float_dtype("gradient_dtype", kind.gradient_dtype).float_dtype("weight_dtype", kind.weight_dtype);
  if (kind.moment_dtype != kFloat32 && kind.moment_dtype != kBFloat16)
    arguments.refuse("moment_dtype", format("%d", kind.moment_dtype), "4 (float32) or 6 (bfloat16)");
  arguments.between("masters", kind.masters, OPS_MASTER_NONE, OPS_MASTER_REMAINDER);
  if (kind.masters == OPS_MASTER_NONE && kind.weight_dtype != kFloat32)
    arguments.refuse("masters", "0 (none)", "1 (float32) for weights of 16 bits, or 2 (remainder) for bfloat16");
  if (kind.masters == OPS_MASTER_FLOAT32 && kind.weight_dtype == kFloat32)
    arguments.refuse("masters", "1 (float32)", "0 (none) for weights of float32");
  if (kind.masters == OPS_MASTER_REMAINDER && kind.weight_dtype != kBFloat16)
    arguments.refuse("masters", "2 (remainder)", "weights of bfloat16 with it");
}

/* The memory of a range; `of` comes before the names: "ranges[3].". */
inline void adam_memory(Arguments &arguments, const std::string &of, const AdamCall &call, const AdamKind &kind) {
  const int64_t weight = size_of(kind.weight_dtype), moment = size_of(kind.moment_dtype);
  const int64_t master = kind.masters == OPS_MASTER_REMAINDER ? 2 : 4;
  const auto vector = [&](const char *name, const void *address, int64_t element) {
    arguments.pointer((of + name).c_str(), address, element, bytes_of({call.count, element}));
  };
  arguments.countable((of + "count").c_str(), {call.count, 4});
  vector("gradient", call.gradient, size_of(kind.gradient_dtype));
  vector("weight", call.weight, weight);
  vector("mean", call.mean, moment);
  vector("square", call.square, moment);
  if (kind.masters != OPS_MASTER_NONE) vector("master", call.master, master);
  arguments.pointer((of + "rate").c_str(), call.rate, 4, 4);
}

inline void adam_step_memory(Arguments &arguments, const AdamStepCall &call) {
  arguments.pointer("step", call.step, 4, 4)
      .pointer("gradient_scale", call.gradient_scale, 4, 4)
      .pointer("skip", call.skip, 4, 4);
}

inline int check_adam(const AdamCall &call, const AdamStepCall &step, const AdamKind &kind) {
  Arguments arguments("ops_adam");
  adam_numbers(arguments, step);
  adam_decay(arguments, "", call.weight_decay);
  adam_dtypes(arguments, kind);
  arguments.between("count", call.count, 0);
  if (arguments.wrong() || call.count == 0) return arguments.status();
  adam_memory(arguments, "", call, kind);
  adam_step_memory(arguments, step);
  return arguments.status();
}

/* All but what the table says. */
inline int check_adam_ranges(const AdamTableCall &table, const AdamStepCall &step, const AdamKind &kind) {
  Arguments arguments("ops_adam_ranges");
  const int64_t size = sizeof(OpsAdamRange);
  adam_numbers(arguments, step);
  adam_dtypes(arguments, kind);
  arguments.between("range_count", table.range_count, 0, INT32_MAX).between("blocks", table.blocks, 0, INT32_MAX);
  if (arguments.wrong() || table.range_count == 0) return arguments.status();
  arguments.pointer("ranges", table.ranges, alignof(OpsAdamRange), bytes_of({table.range_count, size}));
  adam_step_memory(arguments, step);
  return arguments.status();
}

inline void adam_blocks(Arguments &arguments, const std::string &name, int64_t value, int64_t expected) {
  const auto text = [](int64_t number) { return format("%lld", static_cast<long long>(number)); };
  if (value != expected) arguments.refuse(name.c_str(), text(value), text(expected));
}

/* What the table says, for a library that can read it. */
inline int check_adam_table(const AdamTableCall &table, const AdamKind &kind) {
  Arguments arguments("ops_adam_ranges");
  int64_t blocks = 0;
  for (int64_t i = 0; i < table.range_count && !arguments.wrong(); ++i) {
    const OpsAdamRange &range = table.ranges[i];
    const std::string of = format("ranges[%lld].", static_cast<long long>(i));
    adam_decay(arguments, of, range.weight_decay);
    arguments.between((of + "count").c_str(), range.count, 0);
    adam_blocks(arguments, of + "first_block", range.first_block, blocks);
    if (arguments.wrong()) break;
    blocks += divide_up(range.count, OPS_ADAM_BLOCK);
    if (range.count > 0)
      adam_memory(arguments, of,
                  {range.gradient, range.weight, range.mean, range.square, range.master, range.rate, range.count,
                   range.weight_decay},
                  kind);
  }
  adam_blocks(arguments, "blocks", table.blocks, blocks);
  return arguments.status();
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_ADAM_CHECKS_H */

/* The checks of ops_optimizer_step and ops_average_share, shared by both libraries that export them. */
#ifndef CHAGRES_OPS_OPTIMIZER_STEP_CHECKS_H
#define CHAGRES_OPS_OPTIMIZER_STEP_CHECKS_H

#include "adam_checks.h"

namespace chagres::ops {

enum { kByte = 0 };

struct StepKind {
  int method, gradient_dtype, weight_dtype, state_dtype, masters;

  bool is_averaged() const { return method == OPS_METHOD_SCHEDULE_FREE || method == OPS_METHOD_SCHEDULE_FREE_POINT; }
  bool is_average() const { return method == OPS_METHOD_AVERAGE; } /* which moves no weight */
  bool has_gradient() const { return !is_average() && method != OPS_METHOD_SCHEDULE_FREE_POINT; }
  bool has_second() const { return method == OPS_METHOD_ADAM || is_averaged(); }
  bool has_codes() const { return state_dtype == kByte; }
};

struct StepTableCall {
  const OpsStepRange *ranges;
  int64_t range_count, blocks;
};

inline void step_state_dtype(Arguments &arguments, const StepKind &kind) {
  const char *expected = "4 (float32)";
  bool fits = kind.state_dtype == kFloat32;
  if (kind.method == OPS_METHOD_LION) {
    expected = "0 (byte), 4 (float32) or 6 (bfloat16)";
    fits = fits || kind.has_codes() || kind.state_dtype == kBFloat16;
  } else if (kind.method == OPS_METHOD_ADAM) {
    expected = "0 (byte); ops_adam_ranges has others";
    fits = kind.has_codes();
  }
  if (!fits) arguments.refuse("state_dtype", format("%d", kind.state_dtype), expected);
}

inline void step_masters(Arguments &arguments, const StepKind &kind) {
  if (!kind.is_averaged()) return adam_dtypes(arguments, {kind.gradient_dtype, kind.weight_dtype, kFloat32, kind.masters});
  arguments.float_dtype("gradient_dtype", kind.gradient_dtype).float_dtype("weight_dtype", kind.weight_dtype);
  if (kind.masters != OPS_MASTER_FLOAT32)
    arguments.refuse("masters", format("%d", kind.masters), "1 (float32), which is the average");
}

/* All but what the table says. */
inline int check_optimizer_step(const StepTableCall &table, const AdamStepCall &step, const StepKind &kind) {
  Arguments arguments("ops_optimizer_step");
  const int64_t size = sizeof(OpsStepRange);
  arguments.between("method", kind.method, OPS_METHOD_SGD, OPS_METHOD_AVERAGE);
  adam_numbers(arguments, step);
  step_masters(arguments, kind);
  step_state_dtype(arguments, kind);
  arguments.between("range_count", table.range_count, 0, INT32_MAX).between("blocks", table.blocks, 0, INT32_MAX);
  if (arguments.wrong() || table.range_count == 0) return arguments.status();
  arguments.pointer("ranges", table.ranges, alignof(OpsStepRange), bytes_of({table.range_count, size}));
  adam_step_memory(arguments, step);
  return arguments.status();
}

/* The memory of a range; `of` comes before the names: "ranges[3].". */
inline void step_memory(Arguments &arguments, const std::string &of, const OpsStepRange &range, const StepKind &kind) {
  const auto vector = [&](const char *name, const void *address, int64_t element, int64_t count) {
    arguments.pointer((of + name).c_str(), address, element, bytes_of({count, element}));
  };
  const int64_t state = kind.has_codes() ? 1 : size_of(kind.state_dtype), scales = divide_up(range.count, OPS_SCALED_BLOCK);
  arguments.countable((of + "count").c_str(), {range.count, 4});
  if (!kind.is_average()) vector("gradient", range.gradient, size_of(kind.gradient_dtype), range.count);
  vector("weight", range.weight, size_of(kind.weight_dtype), range.count);
  if (kind.masters != OPS_MASTER_NONE)
    vector("master", range.master, kind.masters == OPS_MASTER_REMAINDER ? 2 : 4, range.count);
  vector("first", range.first, state, range.count);
  if (kind.has_second()) vector("second", range.second, state, range.count);
  if (kind.has_codes()) vector("first_scale", range.first_scale, 4, scales);
  if (kind.has_codes() && kind.has_second()) vector("second_scale", range.second_scale, 4, scales);
  if (!kind.is_average()) vector("rate", range.rate, 4, 1);
  if (kind.is_averaged()) vector("share", range.share, 4, 1);
}

/* What the table says, for a library that can read it. */
inline int check_step_table(const StepTableCall &table, const StepKind &kind) {
  Arguments arguments("ops_optimizer_step");
  int64_t blocks = 0;
  for (int64_t i = 0; i < table.range_count && !arguments.wrong(); ++i) {
    const OpsStepRange &range = table.ranges[i];
    const std::string of = format("ranges[%lld].", static_cast<long long>(i));
    adam_decay(arguments, of, range.weight_decay);
    arguments.between((of + "count").c_str(), range.count, 0);
    adam_blocks(arguments, of + "first_block", range.first_block, blocks);
    if (arguments.wrong()) break;
    blocks += divide_up(range.count, OPS_ADAM_BLOCK);
    if (range.count > 0) step_memory(arguments, of, range, kind);
  }
  adam_blocks(arguments, "blocks", table.blocks, blocks);
  return arguments.status();
}

inline int check_average_share(const void *rates, const void *step, const void *skip, const void *sums, const void *shares,
                               float power, float rate_power, int64_t count) {
  Arguments arguments("ops_average_share");
  if (!(power >= 0)) arguments.refuse("power", format("%g", power), "0 or more");
  if (!(rate_power >= 0)) arguments.refuse("rate_power", format("%g", rate_power), "0 or more");
  arguments.between("count", count, 0);
  if (arguments.wrong() || count == 0) return arguments.status();
  arguments.countable("count", {count, 8})
      .pointer("rates", rates, 4, bytes_of({count, 4}))
      .pointer("step", step, 4, 4)
      .pointer("skip", skip, 4, 4)
      .pointer("sums", sums, 4, bytes_of({count, 8}))
      .pointer("shares", shares, 4, bytes_of({count, 4}));
  return arguments.status();
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_OPTIMIZER_STEP_CHECKS_H */

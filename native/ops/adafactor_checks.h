/* The checks of ops_adafactor, shared by both libraries that export it. */
#ifndef CHAGRES_OPS_ADAFACTOR_CHECKS_H
#define CHAGRES_OPS_ADAFACTOR_CHECKS_H

#include "adam_checks.h"

namespace chagres::ops {

struct AdafactorCall {
  const OpsAdafactorRange *ranges;
  int64_t range_count;
  const void *step, *gradient_scale, *skip;
  int phase;
  float power, epsilon1, epsilon2, threshold, beta1;
  int relative, scaled, weight_dtype, masters;

  bool is_of_matrices() const { return phase == OPS_ADAFACTOR_FACTORS || phase == OPS_ADAFACTOR_CLIP; }
  bool reads_weights() const { return phase == OPS_ADAFACTOR_STEP || (phase == OPS_ADAFACTOR_SUMS && scaled != 0); }
};

constexpr int64_t kMostAdafactorRanges = 65535;

/* All but what the table says. */
inline int check_adafactor(const AdafactorCall &call) {
  Arguments arguments("ops_adafactor");
  const auto at_least_zero = [&](const char *name, float value) {
    if (!(value >= 0)) arguments.refuse(name, format("%g", value), "0 or more");
  };
  arguments.between("phase", call.phase, OPS_ADAFACTOR_SUMS, OPS_ADAFACTOR_STEP);
  at_least_zero("power", call.power);
  at_least_zero("epsilon1", call.epsilon1);
  at_least_zero("epsilon2", call.epsilon2);
  if (!(call.threshold > 0)) arguments.refuse("threshold", format("%g", call.threshold), "above 0");
  arguments.probability("beta1", call.beta1)
      .between("relative", call.relative, OPS_RATE_GIVEN, OPS_RATE_WARM_UP)
      .between("scaled", call.scaled, 0, 1);
  adam_dtypes(arguments, {kFloat32, call.weight_dtype, kFloat32, call.masters});
  arguments.between("range_count", call.range_count, 0, kMostAdafactorRanges);
  if (arguments.wrong() || call.range_count == 0) return arguments.status();
  const int64_t size = sizeof(OpsAdafactorRange);
  arguments.pointer("ranges", call.ranges, alignof(OpsAdafactorRange), bytes_of({call.range_count, size}));
  adam_step_memory(arguments, {call.step, call.gradient_scale, call.skip, 0, 0, 0, 0, 0});
  return arguments.status();
}

/* The memory of a range; `of` comes before the names: "ranges[3].". */
inline void adafactor_memory(Arguments &arguments, const std::string &of, const OpsAdafactorRange &range, const AdafactorCall &call) {
  const auto vector = [&](const char *name, const void *address, int64_t count, int64_t element = 4) {
    arguments.pointer((of + name).c_str(), address, element, bytes_of({count, element}));
  };
  vector("numbers", range.numbers, 3);
  if (call.phase != OPS_ADAFACTOR_CLIP) {
    if (range.rows > 1 && call.phase != OPS_ADAFACTOR_SUMS) vector("row", range.row, range.rows);
    if (call.phase != OPS_ADAFACTOR_SUMS) vector("column", range.column, range.whole_columns);
  }
  if (call.phase == OPS_ADAFACTOR_SUMS || call.phase == OPS_ADAFACTOR_FACTORS) {
    vector("row_squares", range.row_squares, range.rows);
    vector("row_weights", range.row_weights, range.rows);
    vector("column_squares", range.column_squares, range.whole_columns);
  }
  if (call.phase == OPS_ADAFACTOR_UPDATES || call.phase == OPS_ADAFACTOR_CLIP) vector("row_updates", range.row_updates, range.rows);
  if (call.phase == OPS_ADAFACTOR_FACTORS) vector("rate", range.rate, 1);
  if (call.is_of_matrices()) return;
  vector("gradient", range.gradient, range.count);
  const int64_t rows = divide_up(range.first + range.count, range.columns);
  if (range.row_map != nullptr) vector("row_map", range.row_map, rows);
  if (range.column_map != nullptr) vector("column_map", range.column_map, range.columns);
  if (call.phase == OPS_ADAFACTOR_STEP && call.beta1 > 0) vector("mean", range.mean, range.count);
  if (!call.reads_weights()) return;
  vector("weight", range.weight, range.count, size_of(call.weight_dtype));
  if (call.masters != OPS_MASTER_NONE) vector("master", range.master, range.count, call.masters == OPS_MASTER_REMAINDER ? 2 : 4);
}

/* What the table says, for a library that can read it. */
inline int check_adafactor_table(const AdafactorCall &call) {
  Arguments arguments("ops_adafactor");
  for (int64_t i = 0; i < call.range_count && !arguments.wrong(); ++i) {
    const OpsAdafactorRange &range = call.ranges[i];
    const std::string of = format("ranges[%lld].", static_cast<long long>(i));
    const auto name = [&](const char *field) { return of + field; };
    adam_decay(arguments, of, range.weight_decay);
    arguments.between(name("rows").c_str(), range.rows, 1)
        .between(name("whole_columns").c_str(), range.whole_columns, 1)
        .countable(name("rows * whole_columns").c_str(), {range.rows, range.whole_columns, 4});
    if (!call.is_of_matrices())
      arguments.between(name("columns").c_str(), range.columns, 1, range.whole_columns)
          .between(name("first").c_str(), range.first, 0)
          .between(name("count").c_str(), range.count, 0)
          .between(name("first + count").c_str(), range.first + range.count, 0, range.rows * range.columns);
    if (!arguments.wrong() && (call.is_of_matrices() || range.count > 0)) adafactor_memory(arguments, of, range, call);
  }
  return arguments.status();
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_ADAFACTOR_CHECKS_H */

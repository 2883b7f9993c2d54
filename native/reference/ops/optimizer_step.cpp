/* Operations: steps of SGD, Lion, schedule-free AdamW, and of Adam and Lion whose states have eight bits. */
#include "../../ops/optimizer_step_checks.h"

#include <array>
#include <cmath>

#include "cuda/capture.h"
#include "ops/operations.h"
#include "runtime/adam.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

struct Step {
  int method;
  float beta1, beta2, epsilon, scale, correction1, correction2;
  bool decoupled, first;
};

/* One element: its range's numbers, and what moves. */
struct Element {
  float gradient, rate, decay, share;
  float weight, first, second; /* weight: of schedule-free AdamW the average */
};

void sgd(const Step &step, Element &e) {
  const float g = step.scale * e.gradient + e.decay * e.weight;
  e.first = step.beta1 == 0 || step.first ? g : step.beta1 * e.first + (1 - step.beta2) * g;
  e.weight -= e.rate * (step.method == OPS_METHOD_NESTEROV ? g + step.beta1 * e.first : e.first);
}

void lion(const Step &step, Element &e) {
  const float g = step.scale * e.gradient, between = step.beta1 * e.first + (1 - step.beta1) * g;
  const float sign = between > 0 ? 1.0f : between < 0 ? -1.0f : between; /* 0 and NaN stay */
  e.first = step.beta2 * e.first + (1 - step.beta2) * g;
  e.weight -= e.rate * (sign + e.decay * e.weight);
}

void adam(const Step &step, Element &e) {
  AdamStep by{};
  by.lr = e.rate;
  by.beta1 = step.beta1;
  by.beta2 = step.beta2;
  by.epsilon = step.epsilon;
  by.decay = e.decay;
  by.correction1 = step.correction1;
  by.correction2 = step.correction2;
  by.decoupled = step.decoupled;
  float g = step.scale * e.gradient;
  adam_run(&g, &e.weight, &e.first, &e.second, by, 1);
}

float point(const Step &step, const Element &e) { return step.beta1 * e.weight + (1 - step.beta1) * e.first; }

void averaged(const Step &step, Element &e) {
  const float g = step.scale * e.gradient;
  e.second = step.beta2 * e.second + (1 - step.beta2) * g * g;
  const float direction = g / (std::sqrt(e.second / step.correction2) + step.epsilon);
  e.first -= e.rate * (direction + e.decay * point(step, e));
  e.weight += e.share * (e.first - e.weight);
}

void move(const Step &step, Element &e) {
  switch (step.method) {
    case OPS_METHOD_LION: return lion(step, e);
    case OPS_METHOD_ADAM: return adam(step, e);
    case OPS_METHOD_SCHEDULE_FREE: return averaged(step, e);
    case OPS_METHOD_SCHEDULE_FREE_POINT: return;
    case OPS_METHOD_AVERAGE:
      e.first += (1 - step.beta1) * (e.weight - e.first);
      return;
    default: return sgd(step, e);
  }
}

/* The numbers that codes stand for, in rising order. */
using Codes = std::array<float, 256>;

Codes codes_of(bool is_signed) {
  Codes codes{};
  size_t next = 0;
  codes[next++] = 0;
  codes[next++] = 1;
  for (int decade = 0; decade < 7; ++decade) {
    const int count = (is_signed ? 1 : 2) << decade;
    for (int i = 0; i < count; ++i) {
      const double value = std::pow(10.0, decade - 6) * (0.1 + 0.9 * (i + 0.5) / count);
      codes[next++] = static_cast<float>(value);
      if (is_signed) codes[next++] = -static_cast<float>(value);
    }
  }
  std::sort(codes.begin(), codes.end());
  return codes;
}

const Codes kSigned = codes_of(true), kUnsigned = codes_of(false);

/* The code whose number is nearest; the smaller one of two. */
uint8_t nearest(const Codes &codes, float value) {
  size_t place = static_cast<size_t>(std::lower_bound(codes.begin(), codes.end() - 1, value) - codes.begin());
  if (place > 0 && value - codes[place - 1] <= codes[place] - value) --place;
  return static_cast<uint8_t>(place);
}

/* A state of a range: numbers, or codes and a scale for each block of them. */
struct State {
  void *values;
  float *scales; /* null: numbers */
  int dtype;
  const Codes &codes;
  int zero; /* the code for which the byte is 0 */

  void load(float *run, int64_t first, int64_t count) const {
    if (values == nullptr) return;
    if (scales == nullptr) {
      to_float(run, element(values, first, as_dtype(dtype)), as_dtype(dtype), count);
      return;
    }
    const auto *bytes = static_cast<const uint8_t *>(values) + first;
    for (int64_t i = 0; i < count; ++i) run[i] = scales[(first + i) / OPS_SCALED_BLOCK] * codes[static_cast<uint8_t>(bytes[i] + zero)];
  }

  /* first: where a block begins. */
  void store(const float *run, int64_t first, int64_t count) const {
    if (values == nullptr) return;
    if (scales == nullptr) {
      from_float(element(values, first, as_dtype(dtype)), run, as_dtype(dtype), count);
      return;
    }
    auto *bytes = static_cast<uint8_t *>(values) + first;
    for (int64_t begin = 0; begin < count; begin += OPS_SCALED_BLOCK) {
      const int64_t end = std::min<int64_t>(begin + OPS_SCALED_BLOCK, count);
      float largest = 0;
      for (int64_t i = begin; i < end; ++i) largest = std::fmax(largest, std::fabs(run[i]));
      for (int64_t i = begin; i < end; ++i) 
        bytes[i] = static_cast<uint8_t>(nearest(codes, largest > 0 ? run[i] / largest : 0.0f) - zero);
      scales[(first + begin) / OPS_SCALED_BLOCK] = largest;
    }
  }
};

struct Weights {
  void *weight, *master;
  NVTEDType dtype;
  int masters;

  void load(float *run, int64_t first, int64_t count) const {
    if (masters == OPS_MASTER_REMAINDER) {
      const auto *upper = static_cast<const uint16_t *>(weight) + first;
      const auto *lower = static_cast<const int16_t *>(master) + first;
      for (int64_t i = 0; i < count; ++i) run[i] = join(upper[i], lower[i]);
    } else {
      to_float(run, element(masters == OPS_MASTER_NONE ? weight : master, first, kNVTEFloat32), kNVTEFloat32, count);
    }
  }

  void store(const float *run, const float *rounded, int64_t first, int64_t count) const {
    if (masters == OPS_MASTER_REMAINDER) {
      auto *upper = static_cast<uint16_t *>(weight) + first;
      auto *lower = static_cast<int16_t *>(master) + first;
      for (int64_t i = 0; i < count; ++i) split(run[i], upper + i, lower + i);
      return;
    }
    from_float(element(weight, first, dtype), rounded, dtype, count);
    if (masters == OPS_MASTER_FLOAT32) from_float(element(master, first, kNVTEFloat32), run, kNVTEFloat32, count);
  }
};

/* Moves one range. */
void update(const OpsStepRange &range, const Step &step, const ops::StepKind &kind) {
  const Weights weights{range.weight, range.master, as_dtype(kind.weight_dtype), kind.masters};
  const State firsts{range.first, kind.has_codes() ? range.first_scale : nullptr, kind.state_dtype, kSigned, 127};
  const State seconds{kind.has_second() ? range.second : nullptr, kind.has_codes() ? range.second_scale : nullptr,
                      kind.state_dtype, kUnsigned, 0};
  const NVTEDType gradients = as_dtype(kind.gradient_dtype);
  const float share = kind.is_averaged() ? *range.share : 0, rate = kind.is_average() ? 0 : *range.rate;
  for_each_block(range.count, [&](int64_t first, int64_t count) {
    float g[kBlock] = {}, w[kBlock], rounded[kBlock], a[kBlock] = {}, b[kBlock] = {};
    if (kind.has_gradient()) to_float(g, element(range.gradient, first, gradients), gradients, count);
    weights.load(w, first, count);
    firsts.load(a, first, count);
    seconds.load(b, first, count);
    for (int64_t i = 0; i < count; ++i) {
      Element e = {g[i], rate, range.weight_decay, share, w[i], a[i], b[i]};
      move(step, e);
      w[i] = e.weight;
      a[i] = e.first;
      b[i] = e.second;
      rounded[i] = kind.is_averaged() ? point(step, e) : e.weight;
    }
    if (!kind.is_average()) weights.store(w, rounded, first, count);
    firsts.store(a, first, count);
    seconds.store(b, first, count);
  });
}

}  // namespace

int ops_optimizer_step(const OpsStepRange *ranges, int64_t range_count, int64_t blocks, const int32_t *step,
                       const float *gradient_scale, const int32_t *skip, int method, float beta1, float beta2, float epsilon,
                       int decoupled, int bias_correction, int gradient_dtype, int weight_dtype, int state_dtype,
                       int masters, OpsStream stream) try {
  const ops::StepTableCall table = {ranges, range_count, blocks};
  const ops::StepKind kind = {method, gradient_dtype, weight_dtype, state_dtype, masters};
  int status = ops::check_optimizer_step(
      table, {step, gradient_scale, skip, beta1, beta2, epsilon, decoupled, bias_correction}, kind);
  if (status != OPS_SUCCESS || range_count == 0) return status;
  if (recorded_by_value(ops_optimizer_step, ranges, range_count, blocks, step, gradient_scale, skip, method, beta1, beta2, epsilon,
                        decoupled, bias_correction, gradient_dtype, weight_dtype, state_dtype, masters, stream)) {
    return OPS_SUCCESS;
  }
  status = ops::check_step_table(table, kind);
  if (status != OPS_SUCCESS || *skip == 1) return status;
  AdamStep corrections{};
  corrections.beta1 = beta1;
  corrections.beta2 = beta2;
  set_corrections(corrections, *step, kind.is_averaged() || (method == OPS_METHOD_ADAM && bias_correction != 0));
  const Step by = {method, beta1, beta2, epsilon, *gradient_scale, corrections.correction1, corrections.correction2,
                   decoupled != 0, *step == 1};
  return run("ops_optimizer_step", [&] {
    for (const OpsStepRange *range = ranges; range < ranges + range_count; ++range)
      if (range->count > 0) update(*range, by, kind);
  });
} OPS_CATCH

int ops_average_share(const float *rates, const int32_t *step, const int32_t *skip, float *sums, float *shares, float power,
                      float rate_power, int64_t count, OpsStream stream) try {
  const int status = ops::check_average_share(rates, step, skip, sums, shares, power, rate_power, count);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_average_share, rates, step, skip, sums, shares, power, rate_power, count, stream)) return OPS_SUCCESS;
  if (*skip == 1) return OPS_SUCCESS;
  return run("ops_average_share", [&] {
    for (int64_t i = 0; i < count; ++i) {
      float *const of = sums + 2 * i;
      of[1] = std::fmax(of[1], rates[i]);
      const float weight = std::pow(static_cast<float>(*step), power) * std::pow(of[1], rate_power);
      of[0] += weight;
      shares[i] = of[0] > 0 ? weight / of[0] : 0.0f;
    }
  });
} OPS_CATCH

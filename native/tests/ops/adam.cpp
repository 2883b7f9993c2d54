/* One step of Adam: every type of weight, moment and master against double precision. */
#include "harness/report.h"

namespace chagres::tests {

namespace {

struct Adam {
  int weight_dtype, moment_dtype, masters;
  int64_t count, offset;
  int decoupled;
  int32_t step;
  float beta1;
};

constexpr float kBeta2 = 0.98f, kEpsilon = 1e-6f, kDecay = 0.1f, kRate = 0.01f, kScale = 0.25f;

std::string adam_text(const Adam &adam) {
  return shape_text({{"count", adam.count},
                     {"offset", adam.offset},
                     {"moments", adam.moment_dtype},
                     {"masters", adam.masters},
                     {"decoupled", adam.decoupled},
                     {"step", adam.step}});
}

uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

/* The halves of FP32 numbers: BF16 rounded to nearest, and what is left. */
struct HalvesOf {
  std::vector<uint16_t> upper, lower;
  explicit HalvesOf(const Doubles &values) {
    for (double value : values) {
      const uint32_t bits = bits_of(static_cast<float>(value));
      lower.push_back(static_cast<uint16_t>(bits));
      upper.push_back(static_cast<uint16_t>((bits >> 16) + (lower.back() >= 0x8000u ? 1 : 0)));
    }
  }
};

Doubles joined(const std::vector<uint16_t> &upper, const std::vector<uint16_t> &lower) {
  Doubles values;
  for (size_t i = 0; i < upper.size(); ++i) {
    const uint32_t high = static_cast<uint32_t>(upper[i]) - (lower[i] >= 0x8000u ? 1 : 0);
    const uint32_t bits = high << 16 | lower[i];
    float value;
    std::memcpy(&value, &bits, 4);
    values.push_back(static_cast<double>(value));
  }
  return values;
}

/* What the step starts from, and what should come of it. */
struct Numbers {
  Doubles gradient, weight, mean, square;
  Doubles new_weight, new_mean, new_square, weight_scale, mean_scale;
};

Doubles squares(Doubles values) {
  for (double &value : values) value *= value;
  return values;
}

Doubles rounded(int dtype, Doubles values) {
  for (double &value : values) value = round_to(format_of(dtype), value);
  return values;
}

Numbers make_numbers(Session &session, const Adam &adam) {
  Numbers n;
  n.gradient = session.random.normal(format_of(4), adam.count, 1);
  n.weight = session.random.normal(format_of(adam.masters == OPS_MASTER_NONE ? adam.weight_dtype : 4), adam.count, 2);
  n.mean = session.random.normal(format_of(adam.moment_dtype), adam.count, 0.1);
  n.square = rounded(adam.moment_dtype, squares(session.random.normal(format_of(4), adam.count, 0.3)));
  const double b1 = adam.beta1, b2 = kBeta2, c1 = 1 - std::pow(b1, adam.step), c2 = 1 - std::pow(b2, adam.step);
  for (size_t i = 0; i < n.gradient.size(); ++i) {
    const double w = n.weight[i], coupled = adam.decoupled ? 0 : kDecay * w, g = kScale * n.gradient[i] + coupled;
    const double m = b1 * n.mean[i] + (1 - b1) * g, v = b2 * n.square[i] + (1 - b2) * g * g;
    const double size = std::fabs(kScale * n.gradient[i]) + std::fabs(coupled);
    const double denominator = std::sqrt(v / c2) + kEpsilon;
    n.new_mean.push_back(m);
    n.new_square.push_back(v);
    n.mean_scale.push_back(b1 * std::fabs(n.mean[i]) + (1 - b1) * size);
    n.new_weight.push_back(w - kRate * (m / c1 / denominator + (adam.decoupled ? kDecay * w : 0)));
    n.weight_scale.push_back(std::fabs(w) + 8 * kRate * n.mean_scale.back() / c1 / denominator);
  }
  return n;
}

/* The tensors of one call. */
struct Tensors {
  Buffer gradient, weight, mean, square, master, rate, step, scale, skip;

  Tensors(Session &s, const Adam &a, const Numbers &n, int32_t skipped)
      : gradient(s.floats(4, n.gradient, a.offset)),
        weight(a.masters == OPS_MASTER_REMAINDER ? Buffer(s.memory, raw_bytes(HalvesOf(n.weight).upper))
                                                 : s.floats(a.weight_dtype, n.weight, a.offset)),
        mean(s.floats(a.moment_dtype, n.mean, a.offset)),
        square(s.floats(a.moment_dtype, n.square, a.offset)),
        master(a.masters == OPS_MASTER_REMAINDER ? Buffer(s.memory, raw_bytes(HalvesOf(n.weight).lower))
                                                 : s.floats(4, n.weight, a.offset)),
        rate(s.floats(4, {kRate})),
        step(s.raw(std::vector<int32_t>{a.step})),
        scale(s.floats(4, {kScale})),
        skip(s.raw(std::vector<int32_t>{skipped})) {}

  int call(Session &s, const Adam &a) {
    return s.ops.adam(gradient.data<float>(), weight.data(), mean.data(), square.data(),
                      a.masters == OPS_MASTER_NONE ? nullptr : master.data(), rate.data<float>(), step.data<int32_t>(),
                      scale.data<float>(), skip.data<int32_t>(), a.beta1, kBeta2, kEpsilon, kDecay, a.decoupled, 1,
                      a.count, a.weight_dtype, a.moment_dtype, a.masters, s.memory.stream());
  }
};

void adam_case(Session &session, const Adam &adam) {
  Case test(session, "adam", adam.weight_dtype, adam_text(adam));
  const Numbers n = make_numbers(session, adam);
  Tensors t(session, adam, n, 0);
  if (!test.run({&t.weight, &t.mean, &t.square, &t.master}, [&] { return t.call(session, adam); })) return;
  test.close(adam.moment_dtype, test.output(1, adam.moment_dtype), n.new_mean, n.mean_scale, 8, "mean");
  test.close(adam.moment_dtype, test.output(2, adam.moment_dtype), n.new_square, n.new_square, 16, "square");
  Doubles weights;
  if (adam.masters == OPS_MASTER_REMAINDER) {
    const auto upper = from_raw<uint16_t>(test.output(0)), lower = from_raw<uint16_t>(test.output(3));
    weights = joined(upper, lower);
    if (HalvesOf(weights).upper != upper) test.fail("a weight is not the upper half, rounded");
  } else if (adam.masters == OPS_MASTER_FLOAT32) {
    weights = test.output(3, 4);
    test.equal(test.output(0, adam.weight_dtype), rounded(adam.weight_dtype, weights), "weight, the rounded master");
  } else {
    weights = test.output(0, 4);
  }
  test.close(4, weights, n.new_weight, n.weight_scale, 16, "FP32 weight");
}

void skipped_case(Session &session, const Adam &adam) {
  Case test(session, "adam", adam.weight_dtype, adam_text(adam) + " skipped");
  const Numbers n = make_numbers(session, adam);
  Tensors t(session, adam, n, 1);
  const Bytes before[] = {t.weight.download(), t.mean.download(), t.square.download(), t.master.download()};
  if (!test.run({&t.weight, &t.mean, &t.square, &t.master}, [&] { return t.call(session, adam); })) return;
  for (size_t i = 0; i < 4; ++i) test.equal_bytes(test.output(i), before[i], "what a skipped step leaves");
}

}  // namespace

void adam_cases(Session &session) {
  const int kinds[][2] = {{4, OPS_MASTER_NONE}, {5, OPS_MASTER_FLOAT32}, {6, OPS_MASTER_FLOAT32}, {6, OPS_MASTER_REMAINDER}};
  for (const auto &[weights, masters] : kinds)
    for (int moments : {4, 6}) {
      for (int64_t count : {0, 1, 4, 7, 1023, 5000})
        for (int64_t offset : {0, 1}) adam_case(session, {weights, moments, masters, count, offset, 1, 3, 0.9f});
      adam_case(session, {weights, moments, masters, 100, 0, 0, 1, 0.9f});
      adam_case(session, {weights, moments, masters, 100, 0, 1, 100000, 0.999f});
      adam_case(session, {weights, moments, masters, 100, 0, 1, 1, 0});
      skipped_case(session, {weights, moments, masters, 100, 0, 1, 3, 0.9f});
    }
}

}  // namespace chagres::tests

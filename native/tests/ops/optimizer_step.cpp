/* Steps of SGD, Lion, schedule-free AdamW, of Adam and Lion in eight bits, and of averages, against double precision. */
#include "harness/report.h"

namespace chagres::tests {

namespace {

struct Kind {
  int method, weight_dtype, state_dtype, masters, gradient_dtype = 4;
};

struct Numbers {
  float beta1 = 0.9f, beta2 = 0.98f, epsilon = 1e-6f, scale = 0.25f;
  int32_t step = 3, skip = 0;
  int decoupled = 1, bias_correction = 1;
};

/* Elements that a step moves, each by the numbers of its range. */
struct Piece {
  int64_t first, count;
  float rate, decay, share;
};

bool is_averaged(int method) { return method == OPS_METHOD_SCHEDULE_FREE || method == OPS_METHOD_SCHEDULE_FREE_POINT; }

/* The numbers of the codes of eight bits, in rising order. */
Doubles code_numbers(bool is_signed) {
  Doubles numbers = {0, 1};
  for (int decade = 0; decade < 7; ++decade) {
    const int count = (is_signed ? 1 : 2) << decade;
    for (int i = 0; i < count; ++i) {
      numbers.push_back(std::pow(10.0, decade - 6) * (0.1 + 0.9 * (i + 0.5) / count));
      if (is_signed) numbers.push_back(-numbers.back());
    }
  }
  std::sort(numbers.begin(), numbers.end());
  return numbers;
}

/* A state: numbers, or codes with a scale for each block. */
struct State {
  bool coded;
  int dtype, zero;
  Doubles codes, values;
  std::vector<uint8_t> bytes;
  Doubles scales;

  State(Session &session, int dtype, int64_t count, bool is_signed) : coded(dtype == 0), dtype(dtype), zero(is_signed ? 127 : 0) {
    codes = code_numbers(is_signed);
    values = session.random.normal(format_of(coded ? 4 : dtype), count, 0.1);
    if (!is_signed)
      for (double &value : values) value = round_to(format_of(coded ? 4 : dtype), value * value);
    if (!coded) return;
    for (int64_t i = 0; i < count; i += OPS_SCALED_BLOCK) scales.push_back(i % 3 == 2 ? 0 : 0.5 + static_cast<double>(i % 7));
    for (size_t i = 0; i < values.size(); ++i) {
      bytes.push_back(static_cast<uint8_t>((i * 37 + i / 256 * 11) % 256));
      values[i] = number(bytes[i]) * scales[i / OPS_SCALED_BLOCK];
    }
  }

  double number(uint8_t byte) const { return codes[static_cast<uint8_t>(byte + zero)]; }

  Buffer buffer(Session &session, int64_t offset) const {
    return coded ? Buffer(session.memory, raw_bytes(bytes)) : session.floats(dtype, values, offset);
  }
};

struct Data {
  Doubles gradient, weight, new_weight, rounded, weight_size, new_first, new_second, first_size, second_size;
  State first, second;

  Data(Session &session, const Kind &kind, int64_t count, const Numbers &numbers, const std::vector<Piece> &pieces)
      : gradient(session.random.normal(format_of(kind.gradient_dtype), count, 1)),
        weight(session.random.normal(format_of(4), count, 2)),
        first(session, kind.state_dtype, count, true),
        second(session, kind.state_dtype, count, false) {
    gradient[0] = 0;
    new_weight = weight;
    rounded = weight;
    weight_size = Doubles(weight.size(), 0);
    new_first = first.values;
    new_second = second.values;
    first_size = second_size = weight_size;
    if (numbers.skip == 1) return;
    for (const Piece &piece : pieces)
      for (int64_t i = piece.first; i < piece.first + piece.count; ++i) move(kind.method, numbers, piece, static_cast<size_t>(i));
  }

  void move(int method, const Numbers &n, const Piece &p, size_t i) {
    const double w = weight[i], g = static_cast<double>(n.scale) * gradient[i], b1 = n.beta1, b2 = n.beta2, a = first.values[i];
    const double size = std::fabs(g) + std::fabs(p.decay * w);
    double &to = new_weight[i], &state = new_first[i];
    first_size[i] = std::fabs(a) + size;
    if (method == OPS_METHOD_AVERAGE) {
      state = a + (1 - b1) * (w - a);
      first_size[i] = std::fabs(a) + std::fabs(w);
      weight_size[i] = 0;
    } else if (method == OPS_METHOD_SGD || method == OPS_METHOD_NESTEROV) {
      const double d = g + p.decay * w;
      state = b1 == 0 || n.step == 1 ? d : b1 * a + (1 - b2) * d;
      to = w - p.rate * (method == OPS_METHOD_NESTEROV ? d + b1 * state : state);
      weight_size[i] = std::fabs(w) + p.rate * 2 * (std::fabs(a) + size);
    } else if (method == OPS_METHOD_LION) {
      const double between = b1 * a + (1 - b1) * g;
      state = b2 * a + (1 - b2) * g;
      to = w - p.rate * ((between > 0) - (between < 0) + p.decay * w);
      weight_size[i] = std::fabs(w) + p.rate * 2;
      if (std::fabs(between) < 1e-6 * first_size[i] && between != 0) weight_size[i] = 1e9; /* either sign may come out */
    } else if (method == OPS_METHOD_ADAM) {
      adam(n, p, i);
    } else {
      averaged(method, n, p, i);
    }
    rounded[i] = is_averaged(method) ? b1 * to + (1 - b1) * state : to;
  }

  void adam(const Numbers &n, const Piece &p, size_t i) {
    const double w = weight[i], b1 = n.beta1, b2 = n.beta2, coupled = n.decoupled ? 0 : p.decay * w;
    const double g = static_cast<double>(n.scale) * gradient[i] + coupled;
    const double c1 = n.bias_correction ? 1 - std::pow(b1, n.step) : 1, c2 = n.bias_correction ? 1 - std::pow(b2, n.step) : 1;
    new_first[i] = b1 * first.values[i] + (1 - b1) * g;
    new_second[i] = b2 * second.values[i] + (1 - b2) * g * g;
    second_size[i] = second.values[i] + g * g;
    const double denominator = std::sqrt(new_second[i] / c2) + n.epsilon;
    new_weight[i] = w - p.rate * (new_first[i] / c1 / denominator + (n.decoupled ? p.decay * w : 0));
    weight_size[i] = std::fabs(w) + 16 * p.rate * (first_size[i] / c1 / denominator + 1);
  }

  void averaged(int method, const Numbers &n, const Piece &p, size_t i) {
    const double b1 = n.beta1, b2 = n.beta2, x = weight[i], z = first.values[i];
    weight_size[i] = std::fabs(x) + std::fabs(z) + 2;
    first_size[i] = weight_size[i];
    if (method == OPS_METHOD_SCHEDULE_FREE_POINT) return;
    const double g = static_cast<double>(n.scale) * gradient[i], y = (1 - b1) * z + b1 * x;
    new_second[i] = b2 * second.values[i] + (1 - b2) * g * g;
    second_size[i] = second.values[i] + g * g;
    new_first[i] = z - p.rate * (g / (std::sqrt(new_second[i] / (1 - std::pow(b2, n.step))) + n.epsilon) + p.decay * y);
    new_weight[i] = x + p.share * (new_first[i] - x);
  }
};

/* BF16 rounded to nearest, ties away from zero, and the low 16 bits of the FP32 number. */
void halves(const Doubles &values, std::vector<uint16_t> &upper, std::vector<uint16_t> &lower) {
  for (double value : values) {
    const auto number = static_cast<float>(value);
    uint32_t bits;
    std::memcpy(&bits, &number, 4);
    lower.push_back(static_cast<uint16_t>(bits));
    upper.push_back(static_cast<uint16_t>((bits >> 16) + (lower.back() >= 0x8000u ? 1 : 0)));
  }
}

Doubles joined(const std::vector<uint16_t> &upper, const std::vector<uint16_t> &lower) {
  Doubles values;
  for (size_t i = 0; i < upper.size(); ++i) {
    const uint32_t bits = (static_cast<uint32_t>(upper[i]) - (lower[i] >= 0x8000u ? 1 : 0)) << 16 | lower[i];
    float value;
    std::memcpy(&value, &bits, 4);
    values.push_back(static_cast<double>(value));
  }
  return values;
}

Doubles rounded_to(int dtype, Doubles values) {
  for (double &value : values) value = round_to(format_of(dtype), value);
  return values;
}

Buffer weights_of(Session &s, const Kind &kind, const Doubles &values, int64_t offset, bool master) {
  if (kind.masters != OPS_MASTER_REMAINDER)
    return master ? s.floats(4, values, offset) : s.floats(kind.weight_dtype, rounded_to(kind.weight_dtype, values), offset);
  std::vector<uint16_t> upper, lower;
  halves(values, upper, lower);
  return Buffer(s.memory, raw_bytes(master ? lower : upper));
}

template <class Get>
Buffer floats_of(Session &s, const std::vector<Piece> &pieces, Get get) {
  Doubles values;
  for (const Piece &piece : pieces) values.push_back(static_cast<double>(get(piece)));
  return s.floats(4, values);
}

/* The tensors of one call. */
struct Tensors {
  Buffer gradient, weight, master, first, second, first_scale, second_scale, rate, share, step, scale, skip;
  int64_t blocks = 0; /* before the table, which counts them */
  Buffer table;

  Tensors(Session &s, const Kind &kind, const Data &data, const Numbers &n, const std::vector<Piece> &pieces, int64_t offset)
      : gradient(s.floats(kind.gradient_dtype, data.gradient, offset)),
        weight(weights_of(s, kind, data.weight, offset, false)),
        master(weights_of(s, kind, data.weight, offset, true)),
        first(data.first.buffer(s, offset)),
        second(data.second.buffer(s, offset)),
        first_scale(s.floats(4, data.first.coded ? data.first.scales : Doubles{0})),
        second_scale(s.floats(4, data.second.coded ? data.second.scales : Doubles{0})),
        rate(floats_of(s, pieces, [](const Piece &p) { return p.rate; })),
        share(floats_of(s, pieces, [](const Piece &p) { return p.share; })),
        step(s.raw(std::vector<int32_t>{n.step})),
        scale(s.floats(4, {static_cast<double>(n.scale)})),
        skip(s.raw(std::vector<int32_t>{n.skip})),
        table(s.raw(ranges(kind, pieces))) {}

  std::vector<OpsStepRange> ranges(const Kind &kind, const std::vector<Piece> &pieces) {
    std::vector<OpsStepRange> all;
    const int64_t state = kind.state_dtype == 0 ? 1 : format_of(kind.state_dtype).size;
    for (const Piece &p : pieces) {
      const auto at = [&](const Buffer &buffer, int64_t size) { return buffer.data<unsigned char>() + p.first * size; };
      const auto index = static_cast<int64_t>(all.size()), place = kind.state_dtype == 0 ? p.first / OPS_SCALED_BLOCK : 0;
      all.push_back({at(gradient, format_of(kind.gradient_dtype).size), at(weight, format_of(kind.weight_dtype).size),
                     kind.masters == OPS_MASTER_NONE ? nullptr : at(master, kind.masters == OPS_MASTER_REMAINDER ? 2 : 4),
                     at(first, state), at(second, state), first_scale.data<float>() + place, second_scale.data<float>() + place,
                     rate.data<float>() + index, share.data<float>() + index, p.count, blocks, p.decay});
      blocks += (p.count + OPS_ADAM_BLOCK - 1) / OPS_ADAM_BLOCK;
    }
    return all;
  }

  std::vector<Buffer *> outputs() { return {&weight, &master, &first, &second, &first_scale, &second_scale}; }

  int call(Session &s, const Kind &kind, const Numbers &n, size_t pieces) {
    return s.ops.optimizer_step(table.data<OpsStepRange>(), static_cast<int64_t>(pieces), blocks, step.data<int32_t>(),
                                scale.data<float>(), skip.data<int32_t>(), kind.method, n.beta1, n.beta2, n.epsilon, n.decoupled,
                                n.bias_correction, kind.gradient_dtype, kind.weight_dtype, kind.state_dtype, kind.masters, s.memory.stream());
  }
};

/* Codes are nearest to the wanted numbers by the wanted scale, to rounding. */
void check_codes(Case &test, const State &before, const Doubles &wanted, const std::vector<Piece> &pieces, size_t output,
                 const char *what) {
  const auto bytes = from_raw<uint8_t>(test.output(output));
  const Doubles scales = test.output(output + 2, 4);
  for (const Piece &piece : pieces)
    for (int64_t begin = piece.first; begin < piece.first + piece.count; begin += OPS_SCALED_BLOCK) {
      const int64_t end = std::min<int64_t>(begin + OPS_SCALED_BLOCK, piece.first + piece.count);
      double largest = 0;
      for (int64_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(wanted[static_cast<size_t>(i)]));
      const double scale = scales[static_cast<size_t>(begin / OPS_SCALED_BLOCK)];
      if (!(std::fabs(scale - largest) <= 1e-5 * largest)) test.fail(std::string(what) + ": a scale is not the largest magnitude");
      for (int64_t i = begin; i < end; ++i) {
        const double want = wanted[static_cast<size_t>(i)], got = scale * before.number(bytes[static_cast<size_t>(i)]);
        double nearest = INFINITY;
        for (double code : before.codes) nearest = std::min(nearest, std::fabs(scale * code - want));
        if (!(std::fabs(got - want) <= nearest + 1e-5 * largest))
          return test.fail(std::string(what) + ": a code is not the nearest, at " + std::to_string(i));
      }
    }
}

void check_states(Case &test, const Kind &kind, const Data &data, const std::vector<Piece> &pieces) {
  const bool two = kind.method == OPS_METHOD_ADAM || is_averaged(kind.method);
  if (kind.state_dtype == 0) {
    check_codes(test, data.first, data.new_first, pieces, 2, "first");
    if (two) check_codes(test, data.second, data.new_second, pieces, 3, "second");
    return;
  }
  test.close(kind.state_dtype, test.output(2, kind.state_dtype), data.new_first, data.first_size, 8, "first");
  test.close(kind.state_dtype, test.output(3, kind.state_dtype), data.new_second, data.second_size, 16, "second");
}

void check_weights(Case &test, const Kind &kind, const Data &data) {
  if (kind.method == OPS_METHOD_AVERAGE && kind.masters == OPS_MASTER_FLOAT32) {
    test.equal(test.output(0, kind.weight_dtype), rounded_to(kind.weight_dtype, data.weight), "weight, which stays");
    test.equal(test.output(1, 4), data.weight, "master, which stays");
  } else if (is_averaged(kind.method)) {
    test.close(4, test.output(1, 4), data.new_weight, data.weight_size, 16, "average");
    test.close(kind.weight_dtype, test.output(0, kind.weight_dtype), data.rounded, data.weight_size, 16, "weight");
  } else if (kind.masters == OPS_MASTER_REMAINDER) {
    const auto upper = from_raw<uint16_t>(test.output(0)), lower = from_raw<uint16_t>(test.output(1));
    test.close(4, joined(upper, lower), data.new_weight, data.weight_size, 16, "FP32 weight");
  } else if (kind.masters == OPS_MASTER_FLOAT32) {
    test.equal(test.output(0, kind.weight_dtype), rounded_to(kind.weight_dtype, test.output(1, 4)), "weight, the rounded master");
    test.close(4, test.output(1, 4), data.new_weight, data.weight_size, 16, "FP32 weight");
  } else {
    test.close(4, test.output(0, 4), data.new_weight, data.weight_size, 16, "FP32 weight");
  }
}

void step_case(Session &session, const Kind &kind, const std::vector<int64_t> &counts, const Numbers &n, int64_t offset = 0) {
  std::vector<Piece> pieces;
  int64_t end = 0;
  for (size_t i = 0; i < counts.size(); ++i) { /* with gaps; of states in numbers every third is off the boundaries of four */
    const int64_t first = (end + 256) / 256 * 256 + (i % 3 == 2 && kind.state_dtype != 0 ? 1 : 0);
    pieces.push_back({first, counts[i], 0.01f * static_cast<float>(1 + i % 5), i % 2 == 0 ? 0.1f : 0, i % 4 == 3 ? 1 : 0.25f});
    end = first + counts[i];
  }
  const bool is_skipped = n.skip == 1;
  Case test(session, "optimizer_step", kind.weight_dtype,
            shape_text({{"method", kind.method}, {"states", kind.state_dtype}, {"masters", kind.masters},
                        {"gradients", kind.gradient_dtype},
                        {"ranges", static_cast<int64_t>(counts.size())}, {"step", n.step}, {"skipped", n.skip}}));
  const Data data(session, kind, end + 5, n, pieces);
  Tensors t(session, kind, data, n, pieces, offset);
  std::vector<Bytes> before;
  for (Buffer *buffer : t.outputs()) before.push_back(buffer->download());
  if (!test.run(t.outputs(), [&] { return t.call(session, kind, n, pieces.size()); })) return;
  if (is_skipped) {
    for (size_t i = 0; i < before.size(); ++i) test.equal_bytes(test.output(i), before[i], "what a skipped step leaves");
    return;
  }
  check_weights(test, kind, data);
  check_states(test, kind, data, pieces);
}

void kind_cases(Session &session, const Kind &kind) {
  const std::vector<int64_t> counts = {4, 0, 1, 7, 255, 256, 257, 0, 1023, 1024, 1025, 5000, 33, 0};
  step_case(session, kind, counts, {});
  Numbers first;
  first.step = 1;
  first.bias_correction = 0;
  first.decoupled = 0;
  step_case(session, kind, {300, 2049}, first, kind.state_dtype == 0 || kind.masters == OPS_MASTER_REMAINDER ? 0 : 1);
  Numbers none;
  none.beta1 = 0;
  step_case(session, kind, {300}, none);
  Numbers skipped;
  skipped.skip = 1;
  step_case(session, kind, {7, 1025}, skipped);
}

void share_case(Session &session, float power, float rate_power, int32_t skip) {
  Case test(session, "average_share", 4, shape_text({{"power", static_cast<int64_t>(power)}, {"skipped", skip}}));
  const Doubles rates = {0, 0.5, 0.25, 0}, sums = {3, 0.5, 7, 0.25, 2, 0.5, 0, 0};
  Doubles new_sums = sums, shares = {9, 9, 9, 9};
  for (size_t i = 0; i < 4 && skip == 0; ++i) {
    new_sums[2 * i + 1] = std::max(sums[2 * i + 1], rates[i]);
    const double weight = std::pow(5.0, static_cast<double>(power)) * std::pow(new_sums[2 * i + 1], static_cast<double>(rate_power));
    new_sums[2 * i] += weight;
    shares[i] = new_sums[2 * i] > 0 ? weight / new_sums[2 * i] : 0;
  }
  Buffer rate = session.floats(4, rates), step = session.raw(std::vector<int32_t>{5}), skipped = session.raw(std::vector<int32_t>{skip});
  Buffer sum = session.floats(4, sums), share = session.floats(4, {9, 9, 9, 9});
  if (!test.run({&sum, &share}, [&] {
        return session.ops.average_share(rate.data<float>(), step.data<int32_t>(), skipped.data<int32_t>(), sum.data<float>(),
                                         share.data<float>(), power, rate_power, 4, session.memory.stream());
      }))
    return;
  test.close(4, test.output(0, 4), new_sums, new_sums, 8, "sums");
  test.close(4, test.output(1, 4), shares, shares, 8, "shares");
}

}  // namespace

void optimizer_step_cases(Session &session) {
  const int kinds[][2] = {{4, OPS_MASTER_NONE}, {5, OPS_MASTER_FLOAT32}, {6, OPS_MASTER_FLOAT32}, {6, OPS_MASTER_REMAINDER}};
  const int methods[][2] = {{OPS_METHOD_SGD, 4}, {OPS_METHOD_NESTEROV, 4}, {OPS_METHOD_LION, 4}, {OPS_METHOD_LION, 6},
                            {OPS_METHOD_LION, 0}, {OPS_METHOD_ADAM, 0}, {OPS_METHOD_AVERAGE, 4}};
  for (const auto &[method, states] : methods)
    for (const auto &[weights, masters] : kinds) kind_cases(session, {method, weights, states, masters});
  for (int method : {OPS_METHOD_SCHEDULE_FREE, OPS_METHOD_SCHEDULE_FREE_POINT})
    for (int weights : {4, 5, 6}) kind_cases(session, {method, weights, 4, OPS_MASTER_FLOAT32});
  for (int gradients : {5, 6})
    for (const Kind &kind : {Kind{OPS_METHOD_SGD, 4, 4, OPS_MASTER_NONE, gradients}, {OPS_METHOD_LION, 6, 6, OPS_MASTER_REMAINDER, gradients},
                             {OPS_METHOD_ADAM, 6, 0, OPS_MASTER_REMAINDER, gradients},
                             {OPS_METHOD_SCHEDULE_FREE, 6, 4, OPS_MASTER_FLOAT32, gradients}})
      kind_cases(session, kind);
  for (float power : {0.0f, 1.0f})
    for (int32_t skip : {0, 1}) share_case(session, power, 2, skip);
  step_case(session, {OPS_METHOD_LION, 4, 4, OPS_MASTER_NONE}, {}, {});
  step_case(session, {OPS_METHOD_ADAM, 4, 0, OPS_MASTER_NONE}, std::vector<int64_t>(4300, 3), {});
}

}  // namespace chagres::tests

/* One step of Adam: every type of weight, moment and master against double precision. */
#include "harness/report.h"

namespace chagres::tests {

namespace {

struct Adam {
  int gradient_dtype, weight_dtype, moment_dtype, masters;
  int64_t count, offset;
  int decoupled;
  int32_t step;
  float beta1;
};

constexpr float kBeta2 = 0.98f, kEpsilon = 1e-6f, kDecay = 0.1f, kRate = 0.01f, kScale = 0.25f;

/* Elements that a step moves, each by the numbers of its range. */
struct Piece {
  int64_t first, count;
  float rate, decay;
};

std::string adam_text(const Adam &adam) {
  return shape_text({{"count", adam.count},
                     {"offset", adam.offset},
                     {"gradients", adam.gradient_dtype},
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
  Doubles new_weight, new_mean, new_square, weight_scale, mean_scale, square_scale;
};

Doubles squares(Doubles values) {
  for (double &value : values) value *= value;
  return values;
}

Doubles rounded(int dtype, Doubles values) {
  for (double &value : values) value = round_to(format_of(dtype), value);
  return values;
}

void move(Numbers &n, const Adam &adam, const Piece &piece) {
  const double b1 = adam.beta1, b2 = kBeta2, c1 = 1 - std::pow(b1, adam.step), c2 = 1 - std::pow(b2, adam.step);
  for (auto i = static_cast<size_t>(piece.first); i < static_cast<size_t>(piece.first + piece.count); ++i) {
    const double w = n.weight[i], coupled = adam.decoupled ? 0 : piece.decay * w, g = kScale * n.gradient[i] + coupled;
    const double m = b1 * n.mean[i] + (1 - b1) * g, v = b2 * n.square[i] + (1 - b2) * g * g;
    const double size = std::fabs(kScale * n.gradient[i]) + std::fabs(coupled);
    const double denominator = std::sqrt(v / c2) + kEpsilon;
    n.new_mean[i] = m;
    n.new_square[i] = v;
    n.square_scale[i] = b2 * n.square[i] + (1 - b2) * size * size;
    n.mean_scale[i] = b1 * std::fabs(n.mean[i]) + (1 - b1) * size;
    n.new_weight[i] = w - piece.rate * (m / c1 / denominator + (adam.decoupled ? piece.decay * w : 0));
    n.weight_scale[i] = std::fabs(w) + 8 * piece.rate * n.mean_scale[i] / c1 / denominator;
  }
}

/* Of `count` elements, of which those outside the pieces stay as they are. */
Numbers make_numbers(Session &session, const Adam &adam, const std::vector<Piece> &pieces) {
  Numbers n;
  n.gradient = session.random.normal(format_of(adam.gradient_dtype), adam.count, 1);
  n.weight = session.random.normal(format_of(adam.masters == OPS_MASTER_NONE ? adam.weight_dtype : 4), adam.count, 2);
  n.mean = session.random.normal(format_of(adam.moment_dtype), adam.count, 0.1);
  n.square = rounded(adam.moment_dtype, squares(session.random.normal(format_of(4), adam.count, 0.3)));
  n.new_weight = n.weight;
  n.new_mean = n.mean;
  n.new_square = n.square;
  n.weight_scale = n.mean_scale = n.square_scale = Doubles(n.weight.size(), 0);
  for (const Piece &piece : pieces) move(n, adam, piece);
  return n;
}

std::vector<float> rates_of(const std::vector<Piece> &pieces) {
  std::vector<float> rates;
  for (const Piece &piece : pieces) rates.push_back(piece.rate);
  return rates;
}

/* The tensors of one call. */
struct Tensors {
  Buffer gradient, weight, mean, square, master, rate, step, scale, skip;

  Tensors(Session &s, const Adam &a, const Numbers &n, const std::vector<Piece> &pieces, int32_t skipped)
      : gradient(s.floats(a.gradient_dtype, n.gradient, a.offset)),
        weight(a.masters == OPS_MASTER_REMAINDER ? Buffer(s.memory, raw_bytes(HalvesOf(n.weight).upper))
                                                 : s.floats(a.weight_dtype, rounded(a.weight_dtype, n.weight), a.offset)),
        mean(s.floats(a.moment_dtype, n.mean, a.offset)),
        square(s.floats(a.moment_dtype, n.square, a.offset)),
        master(a.masters == OPS_MASTER_REMAINDER ? Buffer(s.memory, raw_bytes(HalvesOf(n.weight).lower))
                                                 : s.floats(4, n.weight, a.offset)),
        rate(s.raw(rates_of(pieces))),
        step(s.raw(std::vector<int32_t>{a.step})),
        scale(s.floats(4, {kScale})),
        skip(s.raw(std::vector<int32_t>{skipped})) {}

  std::vector<Buffer *> outputs() { return {&weight, &mean, &square, &master}; }

  OpsAdamRange range(const Adam &a, const Piece &piece, int64_t index, int64_t first_block) const {
    const auto at = [&](const Buffer &buffer, int64_t size) { return buffer.data<unsigned char>() + piece.first * size; };
    const int64_t moment = format_of(a.moment_dtype).size, of_master = a.masters == OPS_MASTER_REMAINDER ? 2 : 4;
    return {at(gradient, format_of(a.gradient_dtype).size), at(weight, format_of(a.weight_dtype).size), at(mean, moment),
            at(square, moment), a.masters == OPS_MASTER_NONE ? nullptr : at(master, of_master), rate.data<float>() + index,
            piece.count, first_block, piece.decay};
  }

  /* One piece by ops_adam. */
  int call(Session &s, const Adam &a, const Piece &piece, int64_t index) {
    const OpsAdamRange r = range(a, piece, index, 0);
    return s.ops.adam(r.gradient, r.weight, r.mean, r.square, r.master, r.rate, step.data<int32_t>(), scale.data<float>(),
                      skip.data<int32_t>(), a.beta1, kBeta2, kEpsilon, r.weight_decay, a.decoupled, 1, r.count,
                      a.gradient_dtype, a.weight_dtype, a.moment_dtype, a.masters, s.memory.stream());
  }

  /* All that the table says, by ops_adam_ranges. */
  int call(Session &s, const Adam &a, const Buffer &table, int64_t count, int64_t blocks) {
    return s.ops.adam_ranges(table.data<OpsAdamRange>(), count, blocks, step.data<int32_t>(), scale.data<float>(),
                             skip.data<int32_t>(), a.beta1, kBeta2, kEpsilon, a.decoupled, 1, a.gradient_dtype, a.weight_dtype,
                             a.moment_dtype, a.masters, s.memory.stream());
  }
};

void check_outputs(Case &test, const Adam &adam, const Numbers &n) {
  test.close(adam.moment_dtype, test.output(1, adam.moment_dtype), n.new_mean, n.mean_scale, 8, "mean");
  test.close(adam.moment_dtype, test.output(2, adam.moment_dtype), n.new_square, n.square_scale, 16, "square");
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

void adam_case(Session &session, const Adam &adam) {
  Case test(session, "adam", adam.weight_dtype, adam_text(adam));
  const std::vector<Piece> pieces = {{0, adam.count, kRate, kDecay}};
  const Numbers n = make_numbers(session, adam, pieces);
  Tensors t(session, adam, n, pieces, 0);
  if (test.run(t.outputs(), [&] { return t.call(session, adam, pieces[0], 0); })) check_outputs(test, adam, n);
}

void skipped_case(Session &session, const Adam &adam) {
  Case test(session, "adam", adam.weight_dtype, adam_text(adam) + " skipped");
  const std::vector<Piece> pieces = {{0, adam.count, kRate, kDecay}};
  const Numbers n = make_numbers(session, adam, pieces);
  Tensors t(session, adam, n, pieces, 1);
  const Bytes before[] = {t.weight.download(), t.mean.download(), t.square.download(), t.master.download()};
  if (!test.run(t.outputs(), [&] { return t.call(session, adam, pieces[0], 0); })) return;
  for (size_t i = 0; i < 4; ++i) test.equal_bytes(test.output(i), before[i], "what a skipped step leaves");
}

/* Pieces with gaps between them, every third one off the boundaries of four; each has a rate and a decay of its own. */
std::vector<Piece> pieces_of(const std::vector<int64_t> &counts) {
  std::vector<Piece> pieces;
  int64_t end = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    const int64_t first = (end + 16) / 16 * 16 + (i % 3 == 2 ? 1 : 0);
    pieces.push_back({first, counts[i], kRate * static_cast<float>(1 + i % 5), i % 2 == 0 ? kDecay : 0});
    end = first + counts[i];
  }
  return pieces;
}

/* Many ranges in one call: what double precision gives, and the bits that a call for each gives. */
void ranges_case(Session &session, Adam adam, const std::vector<int64_t> &counts, int32_t skipped) {
  const std::vector<Piece> pieces = pieces_of(counts);
  adam.count = pieces.empty() ? 1 : pieces.back().first + pieces.back().count + 5;
  Case test(session, "adam_ranges", adam.weight_dtype,
            adam_text(adam) + shape_text({{" ranges", static_cast<int64_t>(counts.size())}, {"skipped", skipped}}));
  const Numbers n = make_numbers(session, adam, skipped ? std::vector<Piece>() : pieces);
  Tensors t(session, adam, n, pieces, skipped), apart(session, adam, n, pieces, skipped);
  std::vector<OpsAdamRange> table;
  int64_t blocks = 0;
  for (const Piece &piece : pieces) {
    table.push_back(t.range(adam, piece, static_cast<int64_t>(table.size()), blocks));
    blocks += (piece.count + OPS_ADAM_BLOCK - 1) / OPS_ADAM_BLOCK;
  }
  const Buffer on_device = session.raw(table);
  const auto count = static_cast<int64_t>(table.size());
  if (!test.run(t.outputs(), [&] { return t.call(session, adam, on_device, count, blocks); })) return;
  check_outputs(test, adam, n);
  for (size_t i = 0; i < pieces.size(); ++i)
    if (apart.call(session, adam, pieces[i], static_cast<int64_t>(i)) != OPS_SUCCESS) test.fail(session.ops.last_error());
  for (size_t i = 0; i < 4; ++i) test.equal_bytes(test.output(i), apart.outputs()[i]->download(), "the bits of ops_adam");
}

}  // namespace

void adam_cases(Session &session) {
  const int kinds[][2] = {{4, OPS_MASTER_NONE}, {5, OPS_MASTER_FLOAT32}, {6, OPS_MASTER_FLOAT32}, {6, OPS_MASTER_REMAINDER}};
  for (const auto &[weights, masters] : kinds)
    for (int moments : {4, 6}) {
      for (int64_t count : {0, 1, 4, 7, 1023, 5000})
        for (int64_t offset : {0, 1}) adam_case(session, {4, weights, moments, masters, count, offset, 1, 3, 0.9f});
      adam_case(session, {4, weights, moments, masters, 100, 0, 0, 1, 0.9f});
      adam_case(session, {4, weights, moments, masters, 100, 0, 1, 100000, 0.999f});
      adam_case(session, {4, weights, moments, masters, 100, 0, 1, 1, 0});
      skipped_case(session, {4, weights, moments, masters, 100, 0, 1, 3, 0.9f});
      const Adam ranges = {4, weights, moments, masters, 0, 0, 1, 3, 0.9f};
      ranges_case(session, ranges, {4, 0, 1, 7, 1023, 1024, 1025, 0, 0, 5000, 33, 0}, 0);
      ranges_case(session, {4, weights, moments, masters, 0, 1, 0, 1, 0.9f}, {2048, 3, 2049}, 0);
      for (int gradients : {5, 6}) {
        for (int64_t offset : {0, 1}) adam_case(session, {gradients, weights, moments, masters, 1023, offset, 1, 3, 0.9f});
        ranges_case(session, {gradients, weights, moments, masters, 0, 0, 0, 3, 0.9f}, {4, 0, 1, 7, 1025, 33}, 0);
      }
      ranges_case(session, ranges, {7, 1025}, 1);
    }
  const Adam remainders = {4, 6, 4, OPS_MASTER_REMAINDER, 0, 0, 1, 3, 0.9f};
  ranges_case(session, remainders, {}, 0);
  ranges_case(session, remainders, {0, 0}, 0);
  ranges_case(session, remainders, std::vector<int64_t>(4300, 3), 0); /* more blocks than a launch has: each takes several */
  if (session.large) ranges_case(session, remainders, {5, 5000000, 1 << 20, 77}, 0);
}

}  // namespace chagres::tests

/* Steps of Adafactor over whole matrices, vectors, and the parts that ranks have of them, against double precision. */
#include <deque>

#include "harness/report.h"

namespace chagres::tests {

namespace {

struct Kind {
  int weight_dtype, masters;
};

struct Numbers {
  float power = 0.8f, epsilon1 = 1e-30f, epsilon2 = 1e-3f, threshold = 1, beta1 = 0, scale = 0.25f, rate = 0.02f, decay = 0.1f;
  int32_t step = 3, skip = 0;
  int relative = OPS_RATE_CAPPED, scaled = 1;
};

/* A rank's elements [first, first + count) of those rows and columns of a matrix that it has; empty: all. */
struct Part {
  int64_t rows, whole_columns, columns, first, count;
  std::vector<int32_t> row_map, column_map;

  size_t place(int64_t row) const { return static_cast<size_t>(row_map.empty() ? row : row_map[static_cast<size_t>(row)]); }
  size_t across(int64_t column) const {
    return static_cast<size_t>(column_map.empty() ? column : column_map[static_cast<size_t>(column)]);
  }
};

Part whole(int64_t rows, int64_t columns) { return {rows, columns, columns, 0, rows * columns, {}, {}}; }

/* What is expected; sums and factors begin with what other ranks and earlier steps have left. */
struct Data {
  Doubles gradient, weight, mean, row_squares, row_weights, row_updates, column_squares, row, column, numbers = {0, 0, 0};
  Doubles new_weight, weight_size, new_mean;
  Doubles first_squares, first_weights, first_updates, first_columns, first_row, first_column;

  static Doubles positive(Session &s, int64_t count, double scale) {
    Doubles values = s.random.normal(format_of(4), count, scale);
    for (double &value : values) value = round_to(format_of(4), value * value + 1e-3 * scale);
    return values;
  }

  Data(Session &s, const Part &part, const Numbers &n)
      : gradient(s.random.normal(format_of(4), part.count, 1)),
        weight(s.random.normal(format_of(4), part.count, 2)),
        mean(s.random.normal(format_of(4), part.count, 0.01)),
        row_squares(positive(s, part.rows, 3)),
        row_weights(positive(s, part.rows, 5)),
        row_updates(positive(s, part.rows, 2)),
        column_squares(positive(s, part.whole_columns, 3)),
        row(positive(s, part.rows, 1)),
        column(positive(s, part.whole_columns, 1)) {
    if (!gradient.empty()) gradient[0] = 0;
    first_squares = row_squares;
    first_weights = row_weights;
    first_updates = row_updates;
    first_columns = column_squares;
    first_row = row;
    first_column = column;
    new_weight = weight;
    new_mean = mean;
    weight_size = Doubles(weight.size(), 0);
    if (n.skip != 1) move(part, n);
  }

  template <class Body>
  static void each(const Part &part, Body &&body) {
    for (int64_t i = 0; i < part.count; ++i) {
      const int64_t element = part.first + i;
      body(static_cast<size_t>(i), part.place(element / part.columns), part.across(element % part.columns));
    }
  }

  void move(const Part &part, const Numbers &n) {
    each(part, [&](size_t, size_t r, size_t c) { row_squares[r] = row_weights[r] = row_updates[r] = column_squares[c] = 0; });
    each(part, [&](size_t i, size_t r, size_t c) {
      const double g = static_cast<double>(n.scale) * gradient[i];
      row_squares[r] += g * g;
      column_squares[c] += g * g;
      if (n.scaled) row_weights[r] += weight[i] * weight[i];
    });
    const double share = std::pow(n.step, -static_cast<double>(n.power)), elements = static_cast<double>(part.rows * part.whole_columns);
    double sum = 0, weights = 0;
    for (size_t r = 0; r < row.size(); ++r) {
      const double average = row_squares[r] / static_cast<double>(part.whole_columns) + static_cast<double>(n.epsilon1);
      if (part.rows > 1) row[r] = (1 - share) * row[r] + share * average;
      sum += part.rows > 1 ? row[r] : 0;
      weights += row_weights[r];
    }
    for (size_t c = 0; c < column.size(); ++c)
      column[c] = (1 - share) * column[c] + share * (column_squares[c] / static_cast<double>(part.rows) + static_cast<double>(n.epsilon1));
    numbers[0] = sum / static_cast<double>(part.rows);
    double rate = n.rate;
    if (n.relative == OPS_RATE_WARM_UP) rate *= n.step / 1e4;
    if (n.relative != OPS_RATE_GIVEN) rate = std::min(rate, 1 / std::sqrt(n.step));
    numbers[1] = rate * (n.scaled ? std::max(static_cast<double>(n.epsilon2), std::sqrt(weights / elements)) : 1);
    Doubles u(gradient.size());
    each(part, [&](size_t i, size_t r, size_t c) {
      u[i] = static_cast<double>(n.scale) * gradient[i] / std::sqrt(column[c]) / (part.rows > 1 ? std::sqrt(row[r] / numbers[0]) : 1);
      row_updates[r] += u[i] * u[i];
    });
    double updates = 0;
    for (double update : row_updates) updates += update;
    numbers[2] = numbers[1] / std::max(1.0, std::sqrt(updates / elements) / static_cast<double>(n.threshold));
    for (size_t i = 0; i < u.size(); ++i) {
      const double b = n.beta1, d = b * (b > 0 ? mean[i] : 0) + (1 - b) * numbers[2] * u[i];
      if (b > 0) new_mean[i] = d;
      new_weight[i] = weight[i] - numbers[1] * static_cast<double>(n.decay) * weight[i] - d;
      weight_size[i] = std::fabs(weight[i]) + 64 * std::fabs(numbers[2] * u[i]);
    }
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

Buffer weights_of(Session &s, const Kind &kind, const Doubles &values, bool master) {
  if (kind.masters == OPS_MASTER_REMAINDER) {
    std::vector<uint16_t> upper, lower;
    halves(values, upper, lower);
    return Buffer(s.memory, raw_bytes(master ? lower : upper));
  }
  Doubles rounded = values;
  for (double &value : rounded) value = round_to(format_of(master ? 4 : kind.weight_dtype), value);
  return s.floats(master ? 4 : kind.weight_dtype, rounded);
}

/* The tensors of one range. */
struct Tensors {
  Buffer gradient, weight, master, mean, row_map, column_map, row_squares, row_weights, row_updates, column_squares, row, column, numbers, rate;

  Tensors(Session &s, const Kind &kind, const Part &part, const Data &data, const Numbers &n)
      : gradient(s.floats(4, data.gradient)), weight(weights_of(s, kind, data.weight, false)), master(weights_of(s, kind, data.weight, true)),
        mean(s.floats(4, data.mean)), row_map(s.raw(part.row_map)), column_map(s.raw(part.column_map)),
        row_squares(s.floats(4, data.first_squares)), row_weights(s.floats(4, data.first_weights)),
        row_updates(s.floats(4, data.first_updates)), column_squares(s.floats(4, data.first_columns)), row(s.floats(4, data.first_row)),
        column(s.floats(4, data.first_column)), numbers(s.floats(4, {0, 0, 0})), rate(s.floats(4, {static_cast<double>(n.rate)})) {}

  OpsAdafactorRange range(const Part &part, const Numbers &n) {
    return {gradient.data<float>(), weight.data(), master.data(), mean.data<float>(),
            part.row_map.empty() ? nullptr : row_map.data<int32_t>(), part.column_map.empty() ? nullptr : column_map.data<int32_t>(),
            row_squares.data<float>(), row_weights.data<float>(), row_updates.data<float>(), column_squares.data<float>(),
            row.data<float>(), column.data<float>(), numbers.data<float>(), rate.data<float>(), part.first, part.count, part.columns,
            part.rows, part.whole_columns, n.decay};
  }

  std::vector<Buffer *> outputs() {
    return {&weight, &master, &mean, &row_squares, &row_weights, &row_updates, &column_squares, &row, &column, &numbers};
  }
};

void check(Case &test, const Kind &kind, const Data &data, size_t first) {
  const auto close = [&](size_t output, const Doubles &wanted, double slack, const char *what) {
    test.close(4, test.output(first + output, 4), wanted, wanted, slack, what);
  };
  if (kind.masters == OPS_MASTER_REMAINDER) {
    const auto upper = from_raw<uint16_t>(test.output(first)), lower = from_raw<uint16_t>(test.output(first + 1));
    test.close(4, joined(upper, lower), data.new_weight, data.weight_size, 16, "FP32 weight");
  } else {
    const bool own = kind.masters == OPS_MASTER_NONE;
    test.close(4, test.output(first + (own ? 0 : 1), 4), data.new_weight, data.weight_size, 16, "FP32 weight");
    if (!own) {
      Doubles rounded = test.output(first + 1, 4);
      for (double &value : rounded) value = round_to(format_of(kind.weight_dtype), value);
      test.equal(test.output(first, kind.weight_dtype), rounded, "weight, the rounded master");
    }
  }
  test.close(4, test.output(first + 2, 4), data.new_mean, data.weight_size, 16, "mean");
  close(3, data.row_squares, 64, "row_squares");
  close(4, data.row_weights, 64, "row_weights");
  close(5, data.row_updates, 128, "row_updates");
  close(6, data.column_squares, 64, "column_squares");
  close(7, data.row, 64, "row");
  close(8, data.column, 64, "column");
  close(9, data.numbers, 128, "numbers");
}

void step_case(Session &s, const Kind &kind, const std::vector<Part> &parts, const Numbers &n) {
  Case test(s, "adafactor", kind.weight_dtype,
            shape_text({{"masters", kind.masters}, {"ranges", static_cast<int64_t>(parts.size())}, {"step", n.step},
                        {"rows", parts.empty() ? 0 : parts[0].rows}, {"columns", parts.empty() ? 0 : parts[0].whole_columns},
                        {"rate", n.relative}, {"skipped", n.skip}}));
  std::vector<Data> data;
  std::deque<Tensors> tensors; /* buffers stay where they are */
  std::vector<OpsAdafactorRange> ranges;
  std::vector<Buffer *> outputs;
  for (const Part &part : parts) {
    data.emplace_back(s, part, n);
    tensors.emplace_back(s, kind, part, data.back(), n);
    ranges.push_back(tensors.back().range(part, n));
    for (Buffer *output : tensors.back().outputs()) outputs.push_back(output);
  }
  Buffer table = s.raw(ranges), step = s.raw(std::vector<int32_t>{n.step}), skip = s.raw(std::vector<int32_t>{n.skip});
  Buffer scale = s.floats(4, {static_cast<double>(n.scale)});
  const bool ran = test.run(outputs, [&] {
    for (int phase = OPS_ADAFACTOR_SUMS; phase <= OPS_ADAFACTOR_STEP; ++phase) {
      const int status = s.ops.adafactor(table.data<OpsAdafactorRange>(), static_cast<int64_t>(ranges.size()), step.data<int32_t>(),
                                         scale.data<float>(), skip.data<int32_t>(), phase, n.power, n.epsilon1, n.epsilon2, n.threshold,
                                         n.beta1, n.relative, n.scaled, kind.weight_dtype, kind.masters, s.memory.stream());
      if (status != OPS_SUCCESS) return status;
    }
    return static_cast<int>(OPS_SUCCESS);
  });
  for (size_t i = 0; ran && i < parts.size(); ++i) check(test, kind, data[i], 10 * i);
}

/* Rows 1, 3 and 4 of five, and of seven columns the last four in another order. */
Part split(int64_t first, int64_t count) { return {5, 7, 4, first, count, {1, 3, 4}, {6, 3, 4, 5}}; }

}  // namespace

void adafactor_cases(Session &session) {
  const int kinds[][2] = {{4, OPS_MASTER_NONE}, {5, OPS_MASTER_FLOAT32}, {6, OPS_MASTER_FLOAT32}, {6, OPS_MASTER_REMAINDER}};
  for (const auto &[weights, masters] : kinds) {
    const Kind kind = {weights, masters};
    step_case(session, kind, {whole(17, 90), whole(1, 33), whole(1, 1), whole(3, 1), whole(1, 700), split(0, 12), split(2, 7), split(5, 0)}, {});
    Numbers other;
    other.beta1 = 0.9f;
    other.step = 1;
    other.relative = OPS_RATE_WARM_UP;
    step_case(session, kind, {whole(40, 33), {9, 31, 31, 40, 100, {}, {}}, {9, 31, 31, 40, 10, {}, {}}}, other);
    other.relative = OPS_RATE_GIVEN;
    other.scaled = 0;
    other.threshold = 100;
    step_case(session, kind, {whole(257, 31), whole(5, 300)}, other);
    other.step = 40000;
    other.relative = OPS_RATE_WARM_UP;
    step_case(session, kind, {whole(8, 8)}, other);
    other.skip = 1;
    step_case(session, kind, {whole(8, 8)}, other);
  }
  step_case(session, {4, OPS_MASTER_NONE}, {}, {});
}

}  // namespace chagres::tests

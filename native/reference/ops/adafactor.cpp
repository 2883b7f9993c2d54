/* Operations: steps of Adafactor. */
#include "../../ops/adafactor_checks.h"

#include <algorithm>
#include <cmath>

#include "cuda/capture.h"
#include "ops/operations.h"
#include "runtime/adam.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

struct Numbers {
  int step;
  float scale, power, epsilon1, epsilon2, threshold, beta1;
  int relative;
  bool scaled;
  int masters;
  NVTEDType weight_dtype;
};

/* The maps are the caller's: a number that is none of a row or column must not reach other memory. */
int64_t mapped(const int32_t *map, int64_t i, int64_t count) {
  return map == nullptr ? i : std::clamp<int64_t>(map[i], 0, count - 1);
}

float weight_of(const OpsAdafactorRange &range, const Numbers &n, int64_t i) {
  if (n.masters == OPS_MASTER_REMAINDER)
    return join(static_cast<const uint16_t *>(range.weight)[i], static_cast<const int16_t *>(range.master)[i]);
  return static_cast<const float *>(n.masters == OPS_MASTER_NONE ? range.weight : range.master)[i];
}

void store_weight(const OpsAdafactorRange &range, const Numbers &n, int64_t i, float value) {
  if (n.masters == OPS_MASTER_REMAINDER) {
    split(value, static_cast<uint16_t *>(range.weight) + i, static_cast<int16_t *>(range.master) + i);
    return;
  }
  from_float(element(range.weight, i, n.weight_dtype), &value, n.weight_dtype, 1);
  if (n.masters == OPS_MASTER_FLOAT32) static_cast<float *>(range.master)[i] = value;
}

/* body(row, begin, end, column): elements of the range from begin on lie in one row, the first in that column. */
template <class Body>
void for_rows(const OpsAdafactorRange &range, Body &&body) {
  const int64_t last = range.first + range.count;
  const int64_t end = (last + range.columns - 1) / range.columns;
  parallel_for(range.first / range.columns, end, grain_for(8 * range.columns), [&](int64_t first, int64_t behind) {
    for (int64_t row = first; row < behind; ++row) {
      const int64_t row_begin = row * range.columns;
      const int64_t begin = std::max(row_begin, range.first), stop = std::min(row_begin + range.columns, last);
      body(mapped(range.row_map, row, range.rows), begin - range.first, stop - range.first, begin - row_begin);
    }
  });
}

float square_of(const OpsAdafactorRange &range, const Numbers &n, int64_t i) {
  const float g = n.scale * range.gradient[i];
  return g * g;
}

void sums(const OpsAdafactorRange &range, const Numbers &n) {
  for_rows(range, [&](int64_t row, int64_t begin, int64_t end, int64_t) {
    float squares = 0, weights = 0;
    for (int64_t i = begin; i < end; ++i) squares += square_of(range, n, i);
    for (int64_t i = begin; n.scaled && i < end; ++i) weights += weight_of(range, n, i) * weight_of(range, n, i);
    range.row_squares[row] = squares;
    range.row_weights[row] = weights;
  });
  const int64_t last = range.first + range.count;
  parallel_for(0, range.columns, kColumns, [&](int64_t first, int64_t behind) {
    for (int64_t column = first; column < behind; ++column) {
      int64_t i = range.first / range.columns * range.columns + column;
      if (i < range.first) i += range.columns;
      if (i >= last) continue;
      float sum = 0;
      for (; i < last; i += range.columns) sum += square_of(range, n, i - range.first);
      range.column_squares[mapped(range.column_map, column, range.whole_columns)] = sum;
    }
  });
}

float moved(float state, float share, float sum, int64_t count, float epsilon) {
  return (1 - share) * state + share * (sum / static_cast<float>(count) + epsilon);
}

float rate_of(const Numbers &n, float rate) {
  if (n.relative == OPS_RATE_GIVEN) return rate;
  const auto step = static_cast<float>(n.step);
  return std::fmin(n.relative == OPS_RATE_WARM_UP ? rate * step / 10000.0f : rate, 1.0f / std::sqrt(step));
}

float count_of(const OpsAdafactorRange &range) { return static_cast<float>(range.rows) * static_cast<float>(range.whole_columns); }

void factors(const OpsAdafactorRange &range, const Numbers &n) {
  const float share = std::pow(static_cast<float>(n.step), -n.power);
  double rows = 0, weights = 0;
  for (int64_t i = 0; i < range.rows; ++i) {
    weights += static_cast<double>(range.row_weights[i]);
    if (range.rows == 1) continue;
    range.row[i] = moved(range.row[i], share, range.row_squares[i], range.whole_columns, n.epsilon1);
    rows += static_cast<double>(range.row[i]);
  }
  for (int64_t i = 0; i < range.whole_columns; ++i)
    range.column[i] = moved(range.column[i], share, range.column_squares[i], range.rows, n.epsilon1);
  range.numbers[0] = static_cast<float>(rows / static_cast<double>(range.rows));
  const float size = n.scaled ? std::fmax(n.epsilon2, std::sqrt(static_cast<float>(weights) / count_of(range))) : 1.0f;
  range.numbers[1] = rate_of(n, *range.rate) * size;
}

float row_factor(const OpsAdafactorRange &range, int64_t row) {
  return range.rows == 1 ? 1.0f : 1.0f / std::sqrt(range.row[row] / range.numbers[0]);
}

float in_column(const OpsAdafactorRange &range, const Numbers &n, int64_t i, int64_t column) {
  return n.scale * range.gradient[i] / std::sqrt(range.column[mapped(range.column_map, column, range.whole_columns)]);
}

void updates(const OpsAdafactorRange &range, const Numbers &n) {
  for_rows(range, [&](int64_t row, int64_t begin, int64_t end, int64_t column) {
    float sum = 0;
    for (int64_t i = begin; i < end; ++i) {
      const float u = in_column(range, n, i, column + i - begin);
      sum += u * u;
    }
    const float factor = row_factor(range, row);
    range.row_updates[row] = factor * factor * sum;
  });
}

void clip(const OpsAdafactorRange &range, const Numbers &n) {
  double sum = 0;
  for (int64_t i = 0; i < range.rows; ++i) sum += static_cast<double>(range.row_updates[i]);
  range.numbers[2] = range.numbers[1] / std::fmax(1.0f, std::sqrt(static_cast<float>(sum) / count_of(range)) / n.threshold);
}

void move(const OpsAdafactorRange &range, const Numbers &n) {
  for_rows(range, [&](int64_t row, int64_t begin, int64_t end, int64_t column) {
    const float factor = row_factor(range, row);
    for (int64_t i = begin; i < end; ++i) {
      float direction = range.numbers[2] * (in_column(range, n, i, column + i - begin) * factor);
      if (n.beta1 > 0) direction = range.mean[i] = n.beta1 * range.mean[i] + (1 - n.beta1) * direction;
      const float w = weight_of(range, n, i);
      store_weight(range, n, i, w - range.numbers[1] * range.weight_decay * w - direction);
    }
  });
}

}  // namespace

int ops_adafactor(const OpsAdafactorRange *ranges, int64_t range_count, const int32_t *step, const float *gradient_scale,
                  const int32_t *skip, int phase, float power, float epsilon1, float epsilon2, float threshold, float beta1,
                  int relative, int scaled, int weight_dtype, int masters, OpsStream stream) try {
  const ops::AdafactorCall call = {ranges, range_count, step, gradient_scale, skip, phase, power, epsilon1,
                                   epsilon2, threshold, beta1, relative, scaled, weight_dtype, masters};
  int status = ops::check_adafactor(call);
  if (status != OPS_SUCCESS || range_count == 0) return status;
  if (recorded_by_value(ops_adafactor, ranges, range_count, step, gradient_scale, skip, phase, power, epsilon1, epsilon2, threshold,
                        beta1, relative, scaled, weight_dtype, masters, stream)) {
    return OPS_SUCCESS;
  }
  status = ops::check_adafactor_table(call);
  if (status != OPS_SUCCESS || *skip == 1) return status;
  const Numbers n = {*step, *gradient_scale, power, epsilon1, epsilon2, threshold, beta1, relative, scaled != 0, masters,
                     as_dtype(weight_dtype)};
  return run("ops_adafactor", [&] {
    for (const OpsAdafactorRange *range = ranges; range < ranges + range_count; ++range) {
      if (phase == OPS_ADAFACTOR_FACTORS) {
        factors(*range, n);
      } else if (phase == OPS_ADAFACTOR_CLIP) {
        clip(*range, n);
      } else if (range->count > 0) {
        phase == OPS_ADAFACTOR_SUMS ? sums(*range, n) : phase == OPS_ADAFACTOR_UPDATES ? updates(*range, n) : move(*range, n);
      }
    }
  });
} OPS_CATCH

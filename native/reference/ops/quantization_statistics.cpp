/* Operations: statistics of the error of FP8 quantization. */
#include <cmath>
#include <limits>

#include "cuda/capture.h"
#include "ops/operations.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Statistics {
  float largest = 0;
  double underflows = 0, overflows = 0, squares = 0;
  float least_scale = kInfinity, most_scale = 0;

  void add(float x, float stored, float s, float beyond) {
    const float magnitude = std::fabs(x);
    least_scale = std::fmin(least_scale, 1 / s);
    most_scale = std::fmax(most_scale, 1 / s);
    if (std::isnan(x)) return;
    if (magnitude > beyond * s) ++overflows;
    if (std::isinf(x)) return;
    largest = std::max(largest, magnitude);
    if (magnitude > 0 && stored == 0) ++underflows;
    const float error = x - stored * s;
    if (error * error < kInfinity) squares += error * error;
  }

  void add(const Statistics &other) {
    largest = std::max(largest, other.largest);
    underflows += other.underflows;
    overflows += other.overflows;
    squares += other.squares;
    least_scale = std::min(least_scale, other.least_scale);
    most_scale = std::max(most_scale, other.most_scale);
  }
};

constexpr int64_t kRows = 64; /* rows of a piece */

}  // namespace

int ops_quantization_statistics(const void *x, const void *q, const float *scale_inverse, float *statistics, int64_t rows,
                                int64_t columns, int64_t stride, int scaling, int dtype, int fp8,
                                OpsStream stream) try {
  const int status =
      ops::check_quantization_statistics(x, q, scale_inverse, statistics, rows, columns, stride, scaling, dtype, fp8);
  if (status != OPS_SUCCESS) return status;
  if (recorded_by_value(ops_quantization_statistics, x, q, scale_inverse, statistics, rows, columns, stride, scaling,
                        dtype, fp8, stream)) {
    return OPS_SUCCESS;
  }
  return run("ops_quantization_statistics", [&] {
    std::fill(statistics, statistics + 6, 0.0f);
    if (rows == 0 || columns == 0) return;
    const float beyond = 1.001f * (fp8 == kNVTEFloat8E4M3 ? 448.0f : 57344.0f);
    const int64_t pieces = (rows + kRows - 1) / kRows;
    std::vector<Statistics> of_piece(static_cast<size_t>(pieces));
    parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
      Scratch values(columns), stored(columns);
      for (int64_t r = first * kRows; r < std::min(last * kRows, rows); ++r) {
        to_float(values.data(), element(x, r * columns, as_dtype(dtype)), as_dtype(dtype), columns);
        to_float(stored.data(), element(q, r * columns, as_dtype(fp8)), as_dtype(fp8), columns);
        for (int64_t c = 0; c < columns; ++c) {
          const int64_t place = scaling == ops::kOneScale    ? 0
                                : scaling == ops::kRowBlocks ? c / ops::kScaleBlock * stride + r
                                                             : r / ops::kScaleBlock * stride + c / ops::kScaleBlock;
          of_piece[static_cast<size_t>(r / kRows)].add(values.data()[c], stored.data()[c], scale_inverse[place], beyond);
        }
      }
    });
    Statistics all;
    for (const Statistics &piece : of_piece) all.add(piece);
    const double count = static_cast<double>(rows) * static_cast<double>(columns);
    const double results[] = {all.largest,         all.underflows / count, all.overflows / count,
                              all.squares / count, all.least_scale,        all.most_scale};
    for (int i = 0; i < 6; ++i) statistics[i] = static_cast<float>(results[i]);
  });
} OPS_CATCH

/* Operations: partial outputs of attention, merged by their log-sum-exp. */
#include "../../ops/attention_merge_checks.h"
#include "cuda/capture.h"
#include "ops/operations.h"

#include <cmath>
#include <limits>

using namespace chagres;
using namespace chagres::reference;

namespace {

constexpr int64_t kRows = 64; /* rows of a piece */
constexpr float kNone = -std::numeric_limits<float>::infinity();

void merge(float *merged, float &log_sum_exp, const float *partial, float own, float before, int64_t columns) {
  const bool empty = own == kNone && before == kNone;
  const float largest = std::fmax(own, before);
  const float kept = before == kNone ? 0.0f : std::exp(before - largest);
  const float added = own == kNone ? 0.0f : std::exp(own - largest);
  const float sum = kept + added;
  for (int64_t c = 0; c < columns; ++c) {
    float value = before == kNone ? 0.0f : merged[c] * (kept / sum);
    if (own != kNone) value = std::fma(added / sum, partial[c], value);
    merged[c] = value;
  }
  log_sum_exp = empty ? kNone : largest + std::log(sum);
}

}  // namespace

int ops_attention_merge(const void *partial, const float *log_sum_exp, float *merged, float *merged_log_sum_exp,
                        int64_t rows, int64_t columns, int first, int dtype, OpsStream stream) try {
  const int status =
      ops::check_attention_merge(partial, log_sum_exp, merged, merged_log_sum_exp, rows, columns, first, dtype);
  if (status != OPS_SUCCESS || rows == 0) return status;
  if (recorded_by_value(ops_attention_merge, partial, log_sum_exp, merged, merged_log_sum_exp, rows, columns, first,
                        dtype, stream)) return OPS_SUCCESS;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_attention_merge", [&] {
    parallel_for(0, rows, kRows, [&](int64_t begin, int64_t end) {
      Scratch row(columns);
      for (int64_t r = begin; r < end; ++r) {
        const float own = log_sum_exp[r];
        if (own != kNone) to_float(row.data(), element(partial, r * columns, type), type, columns);
        merge(merged + r * columns, merged_log_sum_exp[r], row.data(), own, first != 0 ? kNone : merged_log_sum_exp[r],
              columns);
      }
    });
  });
} OPS_CATCH

/* Operations: the gradient of a gated activation in FP8, and its transpose. */
#include <cmath>

#include "cuda/capture.h"
#include "ops/operations.h"
#include "te/activation.h"
#include "te/quantized.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

/* The functions of OpsGate, in its order, but for the last, which is no product of f(a) and b. */
const Activation *const kFunctions[] = {&kGelu, &kSigmoid, &kQgelu, &kRelu, &kSrelu, &kSilu};

/* Where a half of a row of dx goes: its bytes, and of the transpose the first byte of this row's column. */
struct Destination {
  uint8_t *row, *column;
  int64_t rows;
};

/* Rounds half a row to `dtype`, and casts it. Returns its largest magnitude. `dx` and `rounded` are used up. */
float cast_half(float *dx, void *rounded, NVTEDType dtype, NVTEDType fp8, float scale, int64_t count,
                const Destination &to) {
  from_float(rounded, dx, dtype, count);
  to_float(dx, rounded, dtype, count);
  const float largest = largest_magnitude(dx, count);
  scale_floats(dx, dx, scale, count);
  from_float(to.row, dx, fp8, count);
  for (int64_t c = 0; c < count; ++c) to.column[c * to.rows] = to.row[c];
  return largest;
}

}  // namespace

int ops_gated_gradient(const void *dy, const void *x, void *q, void *q_transposed, const float *scale, float *amax,
                       float *scale_inverse, int64_t rows, int64_t columns, int gate, float limit, float alpha,
                       float offset, int dtype, int fp8, OpsStream stream) try {
  const int status = ops::check_gated_gradient(dy, x, q, q_transposed, scale, amax, scale_inverse, rows, columns, gate,
                                               limit, alpha, offset, dtype, fp8);
  if (status != OPS_SUCCESS || rows == 0 || columns == 0) return status;
  if (recorded_by_value(ops_gated_gradient, dy, x, q, q_transposed, scale, amax, scale_inverse, rows, columns, gate, limit,
                        alpha, offset, dtype, fp8, stream)) {
    return OPS_SUCCESS;
  }
  return run("ops_gated_gradient", [&] {
    const NVTEDType type = as_dtype(dtype), cast = as_dtype(fp8);
    Scratch largest(rows);
    parallel_for(0, rows, 4, [&](int64_t first, int64_t last) {
      Scratch a(columns), b(columns), rounded(columns);
      for (int64_t r = first; r < last; ++r) {
        to_float(a.data(), element(x, r * 2 * columns, type), type, columns);
        to_float(b.data(), element(x, r * 2 * columns + columns, type), type, columns);
        const FloatRun slope(element(dy, r * columns, type), type, columns);
        if (gate == OPS_CLAMPED_SWIGLU) {
          ClampedSwiglu{limit, alpha, offset}.gradients(a.data(), b.data(), slope.data(), columns);
        } else {
          Gate{*kFunctions[gate]}.gradients(a.data(), b.data(), slope.data(), columns);
        }
        uint8_t *row = static_cast<uint8_t *>(q) + r * 2 * columns, *column = static_cast<uint8_t *>(q_transposed) + r;
        const float of_a =
            cast_half(b.data(), rounded.data(), type, cast, *scale, columns, Destination{row, column, rows});
        const float of_b = cast_half(a.data(), rounded.data(), type, cast, *scale, columns,
                                     Destination{row + columns, column + columns * rows, rows});
        largest.data()[r] = std::max(of_a, of_b);
      }
    });
    if (amax != nullptr) *amax = std::fmax(*amax, largest_magnitude(largest.data(), rows));
    if (scale_inverse != nullptr) *scale_inverse = 1 / *scale;
  });
} OPS_CATCH

/* Operations: rotary position embedding inside a packed projection. */
#include "cuda/capture.h"
#include "ops/operations.h"
#include "ops/token_layout.h"

#include <cmath>

using namespace chagres;
using namespace chagres::reference;

namespace {

CHAGRES_CLONES void rotate(float *row, const float *cosine, const float *sine, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = row[i], b = row[i + half];
    row[i] = a * cosine[i] - b * sine[i];
    row[i + half] = b * cosine[i] + a * sine[i];
  }
}

}  // namespace

int ops_rotary_packed(void *qkv, const int32_t *cu_seqlens, const float *angles, int direction, int layout,
                      int64_t tokens, int64_t extent, int64_t positions, int64_t heads, int64_t head_dim, int dtype,
                      OpsStream stream) try {
  if (recorded_by_value(ops_rotary_packed, qkv, cu_seqlens, angles, direction, layout, tokens, extent, positions,
                        heads, head_dim, dtype, stream)) return OPS_SUCCESS;
  const int status =
      ops::check_rotary(qkv, cu_seqlens, angles, direction, layout, tokens, extent, positions, heads, head_dim, dtype);
  if (status != OPS_SUCCESS || tokens == 0 || heads == 0 || positions == 0) return status;
  const NVTEDType type = as_dtype(dtype);
  const TokenLayout sequences = {cu_seqlens, layout, extent};
  const int64_t half = head_dim / 2;
  return run("ops_rotary_packed", [&] {
    parallel_for(0, tokens, grain_for(heads * head_dim * 4), [&](int64_t first, int64_t last) {
      Scratch cosine(half), sine(half), row(head_dim);
      for (int64_t t = first; t < last; ++t) {
        const int64_t p = sequences.position(t);
        if (p < 0 || p >= positions) continue;
        for (int64_t i = 0; i < half; ++i) {
          cosine[i] = std::cos(angles[p * head_dim + i]);
          sine[i] = static_cast<float>(direction) * std::sin(angles[p * head_dim + i]);
        }
        for (int64_t head = 0; head < 2 * heads; ++head) {
          void *start = element(qkv, (t * 3 * heads + head) * head_dim, type);
          to_float(row.data(), start, type, head_dim);
          rotate(row.data(), cosine.data(), sine.data(), half);
          from_float(start, row.data(), type, head_dim);
        }
      }
    });
  });
} OPS_CATCH

/* Operations: dropout with residual, and its gradient. */
#include "cuda/capture.h"
#include "ops/operations.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

/* Bit j is set when element first + j is kept; first is a multiple of 8. */
uint32_t keep_bits(uint64_t seed, uint64_t offset, int64_t first, double probability) {
  uint32_t bits = 0;
  for (int half = 0; half < 2; ++half) {
    const Philox4 random = philox(seed, 0, offset + static_cast<uint64_t>(first / 4 + half));
    for (int j = 0; j < 4; ++j) bits |= (random.word[j] * 0x1p-32 >= probability ? 1u : 0u) << (4 * half + j);
  }
  return bits;
}

void dropout_block(float *y, const float *x, uint8_t *mask, const int64_t *rng_state, float probability, int64_t first,
                   int64_t count) {
  const float scale = 1.0f / (1.0f - probability);
  const auto seed = static_cast<uint64_t>(rng_state[0]), offset = static_cast<uint64_t>(rng_state[1]);
  for (int64_t i = 0; i < count; i += 8) {
    uint32_t bits = keep_bits(seed, offset, first + i, probability);
    if (count - i < 8) bits &= (1u << (count - i)) - 1;
    for (int64_t j = i; j < std::min(i + 8, count); ++j)
      if (bits >> (j - i) & 1) y[j] += x[j] * scale;
    mask[(first + i) / 8] = static_cast<uint8_t>(bits);
  }
}

}  // namespace

int ops_dropout_add(const void *x, const void *residual, void *y, uint8_t *mask, const int64_t *rng_state,
                    float probability, int64_t count, int dtype, OpsStream stream) try {
  const int status = ops::check_dropout_add(x, residual, y, mask, rng_state, probability, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_dropout_add, x, residual, y, mask, rng_state, probability, count, dtype,
                        stream)) return OPS_SUCCESS;
  const NVTEDType type = as_dtype(dtype);
  return run("ops_dropout_add", [&] {
    for_each_block(count, [&](int64_t first, int64_t length) {
      float in[kBlock], sum[kBlock];
      to_float(in, element(x, first, type), type, length);
      to_float(sum, element(residual, first, type), type, length);
      dropout_block(sum, in, mask, rng_state, probability, first, length);
      from_float(element(y, first, type), sum, type, length);
    });
  });
} OPS_CATCH

int ops_dropout_backward(const void *dy, const uint8_t *mask, void *dx, float probability, int64_t count, int dtype,
                         OpsStream stream) try {
  const int status = ops::check_dropout_backward(dy, mask, dx, probability, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_dropout_backward, dy, mask, dx, probability, count, dtype, stream)) return OPS_SUCCESS;
  const NVTEDType type = as_dtype(dtype);
  const float scale = 1.0f / (1.0f - probability);
  return run("ops_dropout_backward", [&] {
    for_each_block(count, [&](int64_t first, int64_t length) {
      float slope[kBlock];
      to_float(slope, element(dy, first, type), type, length);
      for (int64_t i = 0; i < length; ++i)
        slope[i] = mask[(first + i) / 8] >> ((first + i) % 8) & 1 ? slope[i] * scale : 0.0f;
      from_float(element(dx, first, type), slope, type, length);
    });
  });
} OPS_CATCH

/* Operations: drop path. */
#include "cuda/capture.h"
#include "ops/operations.h"
#include "ops/token_layout.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

CHAGRES_CLONES void scale_onto_floats(float *y, const float *x, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = x[i] * factor + y[i];
}

}  // namespace

int ops_drop_path_factors(const int64_t *rng_state, float probability, float *factors, int64_t sequences,
                          OpsStream stream) try {
  const int status = ops::check_drop_path_factors(rng_state, probability, factors, sequences);
  if (status != OPS_SUCCESS || sequences == 0) return status;
  if (recorded_by_value(ops_drop_path_factors, rng_state, probability, factors, sequences, stream)) return OPS_SUCCESS;
  const auto seed = static_cast<uint64_t>(rng_state[0]), offset = static_cast<uint64_t>(rng_state[1]);
  const float scale = 1.0f / (1.0f - probability);
  for (int64_t b = 0; b < sequences; ++b) {
    const Philox4 random = philox(seed, 0, offset + static_cast<uint64_t>(b / 4));
    factors[b] = random.word[b % 4] * 0x1p-32 >= double{probability} ? scale : 0.0f;
  }
  return OPS_SUCCESS;
} OPS_CATCH

int ops_scale_sequences_add(const void *x, const void *residual, void *y, const float *factors,
                            const int32_t *cu_seqlens, int layout, int64_t first, int64_t tokens, int64_t whole,
                            int64_t extent, int64_t columns, int dtype, OpsStream stream) try {
  const int status = ops::check_scale_sequences_add(x, residual, y, factors, cu_seqlens, layout, first, tokens, whole,
                                                    extent, columns, dtype);
  if (status != OPS_SUCCESS || tokens == 0 || columns == 0) return status;
  if (recorded_by_value(ops_scale_sequences_add, x, residual, y, factors, cu_seqlens, layout, first, tokens, whole,
                        extent, columns, dtype, stream)) return OPS_SUCCESS;
  const NVTEDType type = as_dtype(dtype);
  const TokenLayout sequences = {cu_seqlens, layout, extent};
  return run("ops_scale_sequences_add", [&] {
    parallel_for(0, tokens, grain_for(columns), [&](int64_t begin, int64_t end) {
      Scratch term(columns), sum(columns);
      for (int64_t t = begin; t < end; ++t) {
        const int64_t sequence = sequences.sequence(first + t);
        const float factor = sequence < 0 ? 0.0f : factors[sequence];
        if (residual == nullptr) std::fill(sum.data(), sum.data() + columns, 0.0f);
        else to_float(sum.data(), element(residual, t * columns, type), type, columns);
        if (factor != 0) {
          to_float(term.data(), element(x, t * columns, type), type, columns);
          (residual == nullptr ? scale_floats : scale_onto_floats)(sum.data(), term.data(), factor, columns);
        }
        from_float(element(y, t * columns, type), sum.data(), type, columns);
      }
    });
  });
} OPS_CATCH

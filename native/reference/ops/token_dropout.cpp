/* Operations: token dropout. */
#include "cuda/capture.h"
#include "ops/operations.h"
#include "ops/token_layout.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

void write_factors(const TokenPlaces &sequences, int64_t b, const int32_t *ids, float *factors, float kept, int32_t mask) {
  const int64_t start = sequences.start(b), size = sequences.size(b), step = sequences.step();
  const int64_t length = sequences.length(b);
  int64_t masked = 0;
  for (int64_t i = 0; i < length; ++i) masked += ids[start + i * step] == mask ? 1 : 0;
  const float factor =
      masked == length ? 0.0f : kept * (static_cast<float>(length) / static_cast<float>(length - masked));
  for (int64_t i = 0; i < size; ++i) {
    const int64_t t = start + i * step;
    factors[t] = i < length && ids[t] != mask ? factor : 0.0f;
  }
}

}  // namespace

int ops_token_dropout_factors(const int32_t *ids, const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded,
                              float *factors, float kept, int32_t mask, int layout, int64_t tokens, int64_t sequences,
                              OpsStream stream) try {
  const int status =
      ops::check_token_dropout_factors(ids, cu_seqlens, cu_seqlens_padded, factors, kept, layout, tokens, sequences);
  if (status != OPS_SUCCESS || tokens == 0) return status;
  if (recorded_by_value(ops_token_dropout_factors, ids, cu_seqlens, cu_seqlens_padded, factors, kept, mask, layout, tokens,
                        sequences, stream)) return OPS_SUCCESS;
  const TokenPlaces all = {cu_seqlens, cu_seqlens_padded == nullptr ? cu_seqlens : cu_seqlens_padded, layout, tokens, sequences};
  if (layout == OPS_THD) std::fill(factors, factors + all.start(0), 0.0f);
  for (int64_t b = 0; b < sequences; ++b) write_factors(all, b, ids, factors, kept, mask);
  return OPS_SUCCESS;
} OPS_CATCH

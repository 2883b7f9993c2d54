#include "checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {
Kernel kernel("token_dropout.cu", "token_dropout_factors");
}  // namespace

int ops_token_dropout_factors(const int32_t *ids, const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded,
                              float *factors, float kept, int32_t mask, int layout, int64_t tokens, int64_t sequences,
                              OpsStream stream) try {
  const int status = check_token_dropout_factors(ids, cu_seqlens, cu_seqlens_padded, factors, kept, layout, tokens, sequences);
  if (status != OPS_SUCCESS || tokens == 0) return status;
  return launch("ops_token_dropout_factors", kernel, grid_for(sequences, 32), stream, ids, cu_seqlens, cu_seqlens_padded,
                factors, kept, mask, layout, tokens, sequences);
} OPS_CATCH

#include <algorithm>

#include "checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {
Kernel packed[] = FLOAT_KERNELS("rotary.cu", "rotary");
Kernel scalar[] = FLOAT_KERNELS("rotary.cu", "rotary_scalar");
constexpr int kRotaryThreads = 128;
constexpr int kMostTokens = 8; /* as in rotary.cu */
}  // namespace

int ops_rotary_packed(void *qkv, const int32_t *cu_seqlens, const float *angles, int direction, int layout,
                      int64_t tokens, int64_t extent, int64_t positions, int64_t heads, int64_t head_dim, int dtype,
                      OpsStream stream) try {
  const int status =
      check_rotary(qkv, cu_seqlens, angles, direction, layout, tokens, extent, positions, heads, head_dim, dtype);
  if (status != OPS_SUCCESS || tokens == 0 || heads == 0 || positions == 0) return status;
  const int half = static_cast<int>(head_dim / 2);
  const bool fits = aligned(qkv) && half * size_of(dtype) % 16 == 0;
  Kernel &kernel = (fits ? packed : scalar)[float_index(dtype)];
  /* As many tokens as give each thread an angle. */
  const int block_tokens = std::min(std::max(kRotaryThreads / half, 1), kMostTokens);
  Grid grid;
  grid.x = static_cast<unsigned>(divide_up(tokens, block_tokens));
  grid.threads = kRotaryThreads;
  grid.shared_bytes = sizeof(float) * 2 * static_cast<size_t>(block_tokens * half);
  return launch("ops_rotary_packed", kernel, grid, stream, qkv, cu_seqlens, angles, static_cast<float>(direction),
                layout, tokens, extent, positions, static_cast<int>(heads), static_cast<int>(head_dim), block_tokens);
} OPS_CATCH

#include <algorithm>
#include <cstdint>

#include "checks.h"
#include "kernel.h"
#include "rotary_arguments.cuh"

using namespace chagres::ops;

namespace {

Kernel packed[] = FLOAT_KERNELS("rotary.cu", "rotary");
Kernel scalar[] = FLOAT_KERNELS("rotary.cu", "rotary_scalar");
Kernel packed_copy[] = FLOAT_KERNELS("rotary.cu", "rotary_copy");
Kernel scalar_copy[] = FLOAT_KERNELS("rotary.cu", "rotary_copy_scalar");
constexpr int kRotaryThreads = 128;
constexpr int kMostTokens = 8; /* as in rotary.cu */

/* Heads that begin `heads` heads behind the start of each token of a buffer. */
RotaryHeads part_of(const void *qkv, int64_t heads, const OpsRotary &rotary) {
  const int64_t bytes = heads * rotary.head_dim * size_of(rotary.dtype);
  return {static_cast<char *>(const_cast<void *>(qkv)) + bytes, (rotary.heads + 2 * rotary.kv_heads) * rotary.head_dim};
}

RotaryHeads alone(const void *data, int64_t heads, const OpsRotary &rotary) {
  return {const_cast<void *>(data), heads * rotary.head_dim};
}

RotaryArguments arguments_of(const OpsRotary &rotary) {
  RotaryArguments arguments = {};
  arguments.cu_seqlens = rotary.cu_seqlens;
  arguments.start_positions = rotary.start_positions;
  arguments.angles = rotary.angles;
  arguments.tokens = rotary.tokens;
  arguments.extent = rotary.extent;
  arguments.positions = rotary.positions;
  arguments.heads = static_cast<int>(rotary.heads);
  arguments.kv_heads = static_cast<int>(rotary.kv_heads);
  arguments.head_dim = static_cast<int>(rotary.head_dim);
  arguments.rotated_dim = rotary.positions == 0 ? 0 : static_cast<int>(rotary.rotated_dim);
  arguments.layout = rotary.layout;
  arguments.direction = static_cast<float>(rotary.direction);
  arguments.interleaved = rotary.pairing == OPS_INTERLEAVED;
  return arguments;
}

/* As many tokens a block as give each thread a pair. */
int launch_rotary(const char *function, Kernel &kernel, int pairs, RotaryArguments &arguments, OpsStream stream) {
  arguments.block_tokens = std::min(std::max(kRotaryThreads / pairs, 1), kMostTokens);
  Grid grid;
  grid.x = static_cast<unsigned>(divide_up(arguments.tokens, arguments.block_tokens));
  grid.threads = kRotaryThreads;
  grid.shared_bytes = sizeof(float) * static_cast<size_t>(arguments.block_tokens * arguments.rotated_dim);
  return launch(function, kernel, grid, stream, arguments);
}

/* Whether each half of what is rotated, and of what is not, is whole packs. */
bool fits_packs(const OpsRotary &rotary, int64_t rotated_dim) {
  const int64_t size = size_of(rotary.dtype);
  return rotated_dim / 2 * size % 16 == 0 && (rotary.head_dim - rotated_dim) / 2 * size % 16 == 0;
}

/* Between one buffer and three. */
int launch_copy(const char *function, const OpsRotary &rotary, RotaryArguments &arguments, bool are_aligned,
                OpsStream stream) {
  const bool fits = are_aligned && fits_packs(rotary, arguments.rotated_dim);
  Kernel &kernel = (fits ? packed_copy : scalar_copy)[float_index(rotary.dtype)];
  return launch_rotary(function, kernel, arguments.head_dim / 2, arguments, stream);
}

}  // namespace

int ops_rotary_packed(void *qkv, const OpsRotary *rotary, OpsStream stream) try {
  const char *function = "ops_rotary_packed";
  const int status = check_rotary(function, rotary, {qkv, false, nullptr, nullptr, nullptr});
  if (status != OPS_SUCCESS || rotates_nothing(*rotary)) return status;
  RotaryArguments arguments = arguments_of(*rotary);
  if (arguments.rotated_dim == 0) return status;
  arguments.to_query = part_of(qkv, 0, *rotary);
  const bool fits = aligned(qkv) && fits_packs(*rotary, arguments.rotated_dim);
  Kernel &kernel = (fits ? packed : scalar)[float_index(rotary->dtype)];
  return launch_rotary(function, kernel, arguments.rotated_dim / 2, arguments, stream);
} OPS_CATCH

int ops_rotary_split(const void *qkv, void *q, void *k, void *v, const OpsRotary *rotary, OpsStream stream) try {
  const char *function = "ops_rotary_split";
  const int status = check_rotary(function, rotary, {qkv, true, q, k, v});
  if (status != OPS_SUCCESS || rotates_nothing(*rotary)) return status;
  RotaryArguments arguments = arguments_of(*rotary);
  arguments.from_query = part_of(qkv, 0, *rotary);
  arguments.from_key = part_of(qkv, rotary->heads, *rotary);
  arguments.from_value = part_of(qkv, rotary->heads + rotary->kv_heads, *rotary);
  arguments.to_query = alone(q, rotary->heads, *rotary);
  arguments.to_key = alone(k, rotary->kv_heads, *rotary);
  arguments.to_value = alone(v, rotary->kv_heads, *rotary);
  return launch_copy(function, *rotary, arguments, aligned(qkv, q, k, v), stream);
} OPS_CATCH

int ops_rotary_join(const void *q, const void *k, const void *v, void *qkv, const OpsRotary *rotary,
                    OpsStream stream) try {
  const char *function = "ops_rotary_join";
  const int status = check_rotary(function, rotary, {qkv, true, q, k, v});
  if (status != OPS_SUCCESS || rotates_nothing(*rotary)) return status;
  RotaryArguments arguments = arguments_of(*rotary);
  arguments.from_query = alone(q, rotary->heads, *rotary);
  arguments.from_key = alone(k, rotary->kv_heads, *rotary);
  arguments.from_value = alone(v, rotary->kv_heads, *rotary);
  arguments.to_query = part_of(qkv, 0, *rotary);
  arguments.to_key = part_of(qkv, rotary->heads, *rotary);
  arguments.to_value = part_of(qkv, rotary->heads + rotary->kv_heads, *rotary);
  return launch_copy(function, *rotary, arguments, aligned(qkv, q, k, v), stream);
} OPS_CATCH

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attention_arguments.cuh"
#include "attention_checks.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {

constexpr int kAttentionThreads = 128; /* as in attention.cuh; so the next two */
constexpr int kTile = 64;
constexpr int kPad = 4;

/* Bytes of a block's shared memory: `own` matrices of its own rows, a slice of the other side's, the tile. */
constexpr int shared_bytes(int width, int rows, int own) {
  const int slice = std::min(width, 64);
  return static_cast<int>(sizeof(float)) *
         (own * rows * (width + kPad) + kTile * (slice + kPad) + rows * (kTile + kPad));
}

/* One kernel for each dtype, and the rows that its blocks own. */
struct Family {
  int rows;
  int bytes;
  Kernel kernels[3];
};

#define ATTENTION_FAMILY(source, name, width, rows, own)       \
  {rows,                                                       \
   shared_bytes(width, rows, own),                             \
   {{source, name "_float32", shared_bytes(width, rows, own)}, \
    {source, name "_float16", shared_bytes(width, rows, own)}, \
    {source, name "_bfloat16", shared_bytes(width, rows, own)}}}

/* Kernels of heads of up to `width` columns; rows as in the .cu file. */
struct Width {
  int width;
  Family forward, dq, dkv;
};

#define ATTENTION_WIDTH(source, width, forward_rows, dq_rows, dkv_rows)   \
  {width,                                                                 \
   ATTENTION_FAMILY(source, "attention_forward", width, forward_rows, 1), \
   ATTENTION_FAMILY(source, "attention_dq", width, dq_rows, 2),           \
   ATTENTION_FAMILY(source, "attention_dkv", width, dkv_rows, 2)}

Width widths[] = {ATTENTION_WIDTH("attention_16.cu", 16, 64, 64, 64),
                  ATTENTION_WIDTH("attention_32.cu", 32, 64, 64, 64),
                  ATTENTION_WIDTH("attention_64.cu", 64, 64, 64, 64),
                  ATTENTION_WIDTH("attention_128.cu", 128, 64, 64, 32),
                  ATTENTION_WIDTH("attention_256.cu", 256, 32, 32, 32)};

Width &width_of(int64_t head_dim) {
  Width *width = widths;
  while (width->width < head_dim) ++width;
  return *width;
}

AttentionStrides strides_of(const OpsStrides &strides) { return {strides.sequence, strides.token, strides.head}; }

/* Whether four neighbouring columns, from a multiple of four on, always lie on a boundary of their bytes. */
bool fits_vectors(const OpsAttention &attention, bool backward) {
  uintptr_t steps = 0;
  const auto add = [&](const OpsStrides &strides) {
    steps |= static_cast<uintptr_t>(attention.packed != 0 ? 0 : strides.sequence) |
             static_cast<uintptr_t>(strides.token) | static_cast<uintptr_t>(strides.head);
  };
  uintptr_t starts = 0;
  const auto start = [&](const void *pointer) { starts |= reinterpret_cast<uintptr_t>(pointer); };
  add(attention.qkv);
  add(attention.output);
  for (const void *pointer : {attention.q, attention.k, attention.v, static_cast<const void *>(attention.o)})
    start(pointer);
  if (backward) {
    add(attention.gradients);
    start(attention.d_o);
    for (const void *pointer : {attention.dq, attention.dk, attention.dv}) start(pointer);
  }
  return steps % 4 == 0 && starts % (4 * static_cast<uintptr_t>(size_of(attention.dtype))) == 0;
}

/* A window at least as long as the sequences is no window. */
int side_of(int64_t window, int64_t length) { return static_cast<int>(window >= length ? -1 : window); }

AttentionArguments arguments_of(const OpsAttention &attention, bool backward) {
  AttentionArguments arguments = {};
  arguments.q = attention.q;
  arguments.k = attention.k;
  arguments.v = attention.v;
  arguments.o = attention.o;
  arguments.log_sum_exp = attention.log_sum_exp;
  if (backward) {
    arguments.d_o = attention.d_o;
    arguments.dq = attention.dq;
    arguments.dk = attention.dk;
    arguments.dv = attention.dv;
    arguments.delta = attention.delta;
    arguments.gradient = strides_of(attention.gradients);
  }
  arguments.cu_seqlens = attention.cu_seqlens;
  arguments.rng_state = attention.rng_state;
  arguments.qkv = strides_of(attention.qkv);
  arguments.output = strides_of(attention.output);
  arguments.statistics = strides_of(attention.statistics);
  arguments.heads = static_cast<int>(attention.heads);
  arguments.head_dim = static_cast<int>(attention.head_dim);
  arguments.length = static_cast<int>(attention.length);
  arguments.left = side_of(attention.window_left, attention.length);
  arguments.right = side_of(attention.window_right, attention.length);
  arguments.scale = attention.scale;
  arguments.log2_scale = static_cast<float>(attention.scale * 1.4426950408889634);
  arguments.kept = 1.0f / (1.0f - attention.dropout);
  /* word * 2^-32 >= p in integers, exactly: a float times 2^32 is exact in double, and here below 2^32. */
  arguments.threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(attention.dropout) * 4294967296.0));
  arguments.packed = attention.packed != 0;
  arguments.vector = fits_vectors(attention, backward);
  return arguments;
}

int launch_blocks(const char *function, Family &family, const OpsAttention &attention, AttentionArguments &arguments,
                  OpsStream stream) {
  const int64_t blocks = divide_up(attention.length, family.rows);
  arguments.blocks = static_cast<int>(blocks);
  Grid grid;
  grid.x = static_cast<unsigned>(blocks * attention.heads * attention.sequences);
  grid.threads = kAttentionThreads;
  grid.shared_bytes = static_cast<size_t>(family.bytes);
  return launch(function, family.kernels[float_index(attention.dtype)], grid, stream, arguments);
}

}  // namespace

int ops_attention_forward(const OpsAttention *attention, OpsStream stream) try {
  const char *function = "ops_attention_forward";
  const int status = check_attention(function, attention, false);
  if (status != OPS_SUCCESS || attends_to_nothing(*attention)) return status;
  AttentionArguments arguments = arguments_of(*attention, false);
  return launch_blocks(function, width_of(attention->head_dim).forward, *attention, arguments, stream);
} OPS_CATCH

int ops_attention_backward(const OpsAttention *attention, OpsStream stream) try {
  const char *function = "ops_attention_backward";
  int status = check_attention(function, attention, true);
  if (status != OPS_SUCCESS || attends_to_nothing(*attention)) return status;
  AttentionArguments arguments = arguments_of(*attention, true);
  Width &width = width_of(attention->head_dim);
  status = launch_blocks(function, width.dq, *attention, arguments, stream); /* writes delta */
  if (status != OPS_SUCCESS) return status;
  return launch_blocks(function, width.dkv, *attention, arguments, stream);
} OPS_CATCH

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
constexpr int kMmaRows = 64; /* as in attention_mma.cuh */

constexpr int kDropoutFloats = 7; /* attention_dropout.cuh's Dropout */

/* Bytes of a block's shared memory: `own` matrices of its own rows, a slice of the other side's, the tile, and what
 * dropout draws by. */
constexpr int shared_bytes(int width, int rows, int own) {
  const int slice = std::min(width, 64);
  return static_cast<int>(sizeof(float)) *
         (own * rows * (width + kPad) + kTile * (slice + kPad) + rows * (kTile + kPad) + kDropoutFloats);
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

Width &width_of(const OpsAttention &attention) {
  Width *width = widths;
  while (width->width < std::max(attention.head_dim, attention.value_dim)) ++width;
  return *width;
}

/* Kernels with modified scores for heads of up to `width` columns: blocks own 32 rows, for the bias rows of queries. */
struct ChangedWidth {
  Width kernels;
  Family d_bias;
};

#define CHANGED_WIDTH(source, width) \
  {ATTENTION_WIDTH(source, width, 32, 32, 32), ATTENTION_FAMILY(source, "attention_d_bias", width, 32, 2)}

ChangedWidth changed_widths[] = {CHANGED_WIDTH("attention_scores_64.cu", 64),
                                 CHANGED_WIDTH("attention_scores_128.cu", 128),
                                 CHANGED_WIDTH("attention_scores_256.cu", 256)};

ChangedWidth &changed_width_of(const OpsAttention &attention) {
  ChangedWidth *width = changed_widths;
  while (width->kernels.width < std::max(attention.head_dim, attention.value_dim)) ++width;
  return *width;
}

constexpr int kSinkBytes = kAttentionThreads * static_cast<int>(sizeof(float));
Kernel sink_kernel("attention_sinks.cu", "attention_d_sinks", kSinkBytes);

/* Bytes of a block's shared memory on tensor cores (attention_mma.cuh): two tiles of each side's tensors, and two times
 * `statistics` numbers for each row of a tile. */
constexpr int mma_shared_bytes(int width, int statistics) {
  return static_cast<int>(sizeof(float)) * (4 * kTile * (width / 2 + 4) + 2 * statistics * kTile);
}

/* One kernel for each dtype of 16 bits. */
struct MmaFamily {
  int bytes;
  Kernel kernels[2];
};

#define MMA_FAMILY(source, name, bytes) \
  {bytes, {{source, name "_float16", bytes}, {source, name "_bfloat16", bytes}}}

/* Kernels on tensor cores of heads of up to `width` columns. */
struct MmaWidth {
  int width;
  MmaFamily forward, dq, dkv;
};

#define MMA_WIDTH(source, width)                                                        \
  {width, MMA_FAMILY(source, "attention_mma_forward", mma_shared_bytes(width, 0)), \
   MMA_FAMILY(source, "attention_mma_dq", mma_shared_bytes(width, 0)),             \
   MMA_FAMILY(source, "attention_mma_dkv", mma_shared_bytes(width, 2))}

MmaWidth mma_widths[] = {MMA_WIDTH("attention_mma_16.cu", 16), MMA_WIDTH("attention_mma_32.cu", 32)};

/* Whether `pack` neighbouring columns, from a multiple of `pack` on, always lie on a boundary of their bytes. */
bool fits_vectors(const OpsAttention &attention, bool backward, int pack) {
  const AttentionOperands operands = operands_of(attention, backward);
  return std::all_of(operands.begin(), operands.end(), [pack](const AttentionOperand &operand) {
    if (operand.columns <= 1) return true; /* statistics, or no tensor */
    const uintptr_t steps = static_cast<uintptr_t>(operand.extent.packed ? 0 : operand.strides.sequence) |
                            static_cast<uintptr_t>(operand.strides.token) |
                            static_cast<uintptr_t>(operand.strides.head);
    const auto bytes = static_cast<uintptr_t>(pack * operand.element_size);
    return steps % static_cast<uintptr_t>(pack) == 0 && reinterpret_cast<uintptr_t>(operand.data) % bytes == 0;
  });
}

/* The kernels on tensor cores that take the call; null when none do. */
MmaWidth *mma_width_of(const OpsAttention &attention, bool backward) {
  if (attention.dtype == kFloat32 || attention.dropout > 0 || attention.head_dim != attention.value_dim ||
      attention.head_dim > 32 || changes_scores(attention) || !fits_vectors(attention, backward, 8))
    return nullptr;
  return &mma_widths[attention.head_dim > 16 ? 1 : 0];
}

/* Null pointers to no rows must not be moved. */
AttentionStrides strides_of(const OpsStrides &strides, int64_t length) {
  return length == 0 ? AttentionStrides{} : AttentionStrides{strides.sequence, strides.token, strides.head};
}

/* A window at least as long as the sequences is no window. */
int side_of(int64_t window, const OpsAttention &attention) {
  const bool by_place = attention.alignment == OPS_BY_PLACE; /* then queries may stand far from the keys */
  const int64_t longest = by_place ? INT32_MAX / 4 : std::max(attention.length, attention.kv_length);
  return static_cast<int>(window >= longest ? -1 : window);
}

void describe_sides(const OpsAttention &attention, AttentionArguments &arguments) {
  const int32_t *const starts = starts_of(attention, false), *const kv_starts = starts_of(attention, true);
  arguments.queries = {attention.cu_seqlens_q, starts == nullptr ? attention.cu_seqlens_q : starts, static_cast<int>(attention.heads),
                       static_cast<int>(attention.length), attention.packed != 0};
  arguments.keys = {attention.cu_seqlens_kv, kv_starts == nullptr ? attention.cu_seqlens_kv : kv_starts,
                    static_cast<int>(attention.kv_heads),
                    static_cast<int>(attention.kv_length), attention.kv_packed != 0};
  arguments.sequences = static_cast<int>(attention.sequences);
  arguments.query = strides_of(attention.query, attention.length);
  arguments.key = strides_of(attention.key, attention.kv_length);
  arguments.value = strides_of(attention.value, attention.kv_length);
  arguments.output = strides_of(attention.output, attention.length);
  arguments.statistics = strides_of(attention.statistics, attention.length);
  arguments.d_query = strides_of(attention.d_query, attention.length);
  arguments.d_key = strides_of(attention.d_key, attention.kv_length);
  arguments.d_value = strides_of(attention.d_value, attention.kv_length);
  arguments.group = attention.kv_heads == 0 ? 0 : static_cast<int>(attention.heads / attention.kv_heads);
}

PlaceArguments place_of(const OpsAttention &attention) {
  const OpsPlace &place = attention.place;
  return {place.sequences, place.first_queries, place.first_keys,
          static_cast<int>(place.heads == 0 ? attention.heads : place.heads), static_cast<int>(place.first_head)};
}

ScoreTensor tensor_of(const OpsScoreShape &shape) {
  const int64_t head = shape.queries * shape.keys;
  return {shape.sequences == 1 ? 0 : shape.heads * head, shape.heads == 1 ? 0 : head, shape.keys,
          static_cast<int>(shape.sequences), static_cast<int>(shape.heads), static_cast<int>(shape.queries),
          static_cast<int>(shape.keys)};
}

ScoreArguments scores_of(const OpsAttention &attention) {
  const OpsScores &scores = attention.scores;
  ScoreArguments arguments = {};
  arguments.alibi_slopes = scores.alibi_slopes;
  arguments.bias = scores.bias;
  arguments.d_bias = scores.d_bias;
  arguments.mask = scores.mask;
  arguments.sinks = scores.softmax_type == OPS_SOFTMAX_LEARNABLE ? scores.sinks : nullptr;
  arguments.d_sinks = scores.d_sinks;
  arguments.bias_tensor = tensor_of(scores.bias_shape);
  arguments.mask_tensor = tensor_of(scores.mask_shape);
  arguments.alibi_sequence = scores.alibi_sequences == 1 ? 0 : static_cast<int>(attention.heads);
  arguments.softcap = scores.softcap;
  arguments.alibi_bottom_right = scores.alibi_alignment == OPS_BOTTOM_RIGHT;
  arguments.bias_before_scale = scores.bias != nullptr && scores.bias_type == OPS_PRE_SCALE_BIAS;
  arguments.has_sink = scores.softmax_type != OPS_SOFTMAX_VANILLA;
  return arguments;
}

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
  }
  arguments.rng_state = attention.rng_state;
  describe_sides(attention, arguments);
  arguments.head_dim = static_cast<int>(attention.head_dim);
  arguments.value_dim = static_cast<int>(attention.value_dim);
  arguments.left = side_of(attention.window_left, attention);
  arguments.right = side_of(attention.window_right, attention);
  arguments.scale = attention.scale;
  arguments.log2_scale = static_cast<float>(attention.scale * 1.4426950408889634);
  arguments.kept = 1.0f / (1.0f - attention.dropout);
  /* word * 2^-32 >= p in integers, exactly: a float times 2^32 is exact in double, and here below 2^32. */
  arguments.threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(attention.dropout) * 4294967296.0));
  arguments.bottom_right = attention.alignment == OPS_BOTTOM_RIGHT;
  arguments.by_place = attention.alignment == OPS_BY_PLACE;
  arguments.place = place_of(attention);
  arguments.vector = fits_vectors(attention, backward, 4);
  if (changes_scores(attention)) arguments.scores = scores_of(attention);
  return arguments;
}

/* One block for `rows` rows of each head and sequence of the side that the kernel owns. */
int launch_blocks(const char *function, Kernel &kernel, int rows, int bytes, const OpsAttention &attention,
                  const AttentionSide &own, AttentionArguments &arguments, OpsStream stream) {
  const int64_t blocks = divide_up(own.length, rows);
  arguments.blocks = static_cast<int>(blocks);
  Grid grid;
  grid.x = static_cast<unsigned>(blocks * own.heads * attention.sequences);
  if (grid.x == 0) return OPS_SUCCESS;
  grid.threads = kAttentionThreads;
  grid.shared_bytes = static_cast<size_t>(bytes);
  return launch(function, kernel, grid, stream, arguments);
}

int launch_blocks(const char *function, Family &family, const OpsAttention &attention, const AttentionSide &own,
                  AttentionArguments &arguments, OpsStream stream) {
  return launch_blocks(function, family.kernels[float_index(attention.dtype)], family.rows, family.bytes, attention,
                       own, arguments, stream);
}

int launch_blocks(const char *function, MmaFamily &family, const OpsAttention &attention, const AttentionSide &own,
                  AttentionArguments &arguments, OpsStream stream) {
  return launch_blocks(function, family.kernels[float_index(attention.dtype) - 1], kMmaRows, family.bytes, attention,
                       own, arguments, stream);
}

template <class Width>
int launch_backward(const char *function, Width &width, const OpsAttention &attention, AttentionArguments &arguments,
                    OpsStream stream) {
  const int status = launch_blocks(function, width.dq, attention, arguments.queries, arguments, stream);
  if (status != OPS_SUCCESS) return status; /* the first one writes delta */
  return launch_blocks(function, width.dkv, attention, arguments.keys, arguments, stream);
}

/* The gradients of bias and sinks that the call asks for. */
int launch_score_gradients(const char *function, const OpsAttention &attention, AttentionArguments &arguments,
                           OpsStream stream) {
  Grid grid;
  grid.threads = kAttentionThreads;
  if (wants_d_bias(attention, true)) {
    Family &family = changed_width_of(attention).d_bias;
    const OpsScoreShape &shape = attention.scores.bias_shape;
    grid.x = static_cast<unsigned>(shape.sequences * shape.heads * divide_up(shape.queries, family.rows) *
                                   divide_up(shape.keys, kTile));
    grid.shared_bytes = static_cast<size_t>(family.bytes);
    const int status =
        grid.x == 0 ? OPS_SUCCESS
                    : launch(function, family.kernels[float_index(attention.dtype)], grid, stream, arguments);
    if (status != OPS_SUCCESS) return status;
  }
  if (!wants_d_sinks(attention, true)) return OPS_SUCCESS;
  grid.x = static_cast<unsigned>(attention.heads);
  grid.shared_bytes = kSinkBytes;
  return launch(function, sink_kernel, grid, stream, arguments);
}

}  // namespace

int ops_attention_forward(const OpsAttention *attention, OpsStream stream) try {
  const char *function = "ops_attention_forward";
  const int status = check_attention(function, attention, false);
  if (status != OPS_SUCCESS || attends_to_nothing(*attention, false)) return status;
  AttentionArguments arguments = arguments_of(*attention, false);
  if (MmaWidth *width = mma_width_of(*attention, false))
    return launch_blocks(function, width->forward, *attention, arguments.queries, arguments, stream);
  Width &width = changes_scores(*attention) ? changed_width_of(*attention).kernels : width_of(*attention);
  return launch_blocks(function, width.forward, *attention, arguments.queries, arguments, stream);
} OPS_CATCH

int ops_attention_backward(const OpsAttention *attention, OpsStream stream) try {
  const char *function = "ops_attention_backward";
  const int status = check_attention(function, attention, true);
  if (status != OPS_SUCCESS || attends_to_nothing(*attention, true)) return status;
  AttentionArguments arguments = arguments_of(*attention, true);
  if (MmaWidth *width = mma_width_of(*attention, true))
    return launch_backward(function, *width, *attention, arguments, stream);
  if (!changes_scores(*attention))
    return launch_backward(function, width_of(*attention), *attention, arguments, stream);
  const int launched =
      launch_backward(function, changed_width_of(*attention).kernels, *attention, arguments, stream);
  return launched != OPS_SUCCESS ? launched : launch_score_gradients(function, *attention, arguments, stream);
} OPS_CATCH

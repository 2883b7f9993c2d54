#include <algorithm>
#include <cmath>
#include <cstdint>

#include "attention_arguments.cuh"
#include "attention_checks.h"
#include "attention_families.h"
#include "kernel.h"

using namespace chagres::ops;

namespace {

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

/* Whether kernels on tensor cores take the call. */
bool fits_mma(const OpsAttention &attention, bool backward) {
  return attention.dtype != kFloat32 && attention.dropout == 0 && attention.head_dim == attention.value_dim &&
         attention.head_dim <= 128 && fits_vectors(attention, backward, 8);
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

/* One block for the rows that it owns of each head and sequence of that side. */
template <class AnyFamily>
int launch_blocks(const char *function, AnyFamily &family, const OpsAttention &attention, const AttentionSide &own,
                  AttentionArguments &arguments, OpsStream stream) {
  const int64_t blocks = divide_up(own.length, family.rows);
  arguments.blocks = static_cast<int>(blocks);
  Grid grid;
  grid.x = static_cast<unsigned>(blocks * own.heads * attention.sequences);
  if (grid.x == 0) return OPS_SUCCESS;
  grid.threads = kAttentionThreads;
  grid.shared_bytes = static_cast<size_t>(family.bytes);
  return launch(function, family.of(attention.dtype), grid, stream, arguments);
}

template <class AnyWidth>
int launch_backward(const char *function, AnyWidth &width, const OpsAttention &attention,
                    AttentionArguments &arguments, OpsStream stream) {
  const int status = launch_blocks(function, width.dq, attention, arguments.queries, arguments, stream);
  if (status != OPS_SUCCESS) return status; /* the first one writes delta */
  return launch_blocks(function, width.dkv, attention, arguments.keys, arguments, stream);
}

template <class AnyFamily>
int launch_d_bias(const char *function, AnyFamily &family, const OpsAttention &attention,
                  const AttentionArguments &arguments, OpsStream stream) {
  const OpsScoreShape &shape = attention.scores.bias_shape;
  Grid grid;
  grid.threads = kAttentionThreads;
  grid.x = static_cast<unsigned>(shape.sequences * shape.heads * divide_up(shape.queries, family.rows) *
                                 divide_up(shape.keys, kTile));
  grid.shared_bytes = static_cast<size_t>(family.bytes);
  return grid.x == 0 ? OPS_SUCCESS : launch(function, family.of(attention.dtype), grid, stream, arguments);
}

int launch_d_sinks(const char *function, const OpsAttention &attention, const AttentionArguments &arguments,
                   OpsStream stream) {
  Grid grid;
  grid.threads = kAttentionThreads;
  grid.x = static_cast<unsigned>(attention.heads);
  grid.shared_bytes = kSinkBytes;
  return launch(function, sink_kernel, grid, stream, arguments);
}

/* Backward with modified scores, and the gradients of bias and sinks that the call asks for. */
template <class AnyWidth>
int launch_changed_backward(const char *function, AnyWidth &width, const OpsAttention &attention,
                            AttentionArguments &arguments, OpsStream stream) {
  int status = launch_backward(function, width, attention, arguments, stream);
  if (status == OPS_SUCCESS && wants_d_bias(attention, true))
    status = launch_d_bias(function, width.d_bias, attention, arguments, stream);
  if (status == OPS_SUCCESS && wants_d_sinks(attention, true))
    status = launch_d_sinks(function, attention, arguments, stream);
  return status;
}

}  // namespace

int ops_attention_forward(const OpsAttention *attention, OpsStream stream) try {
  const char *function = "ops_attention_forward";
  const int status = check_attention(function, attention, false);
  if (status != OPS_SUCCESS || attends_to_nothing(*attention, false)) return status;
  AttentionArguments arguments = arguments_of(*attention, false);
  const auto forward = [&](auto &any_widths) {
    return launch_blocks(function, width_of(any_widths, *attention).forward, *attention, arguments.queries, arguments,
                         stream);
  };
  const bool mma = fits_mma(*attention, false);
  if (changes_scores(*attention))
    return mma ? forward(changed_mma_widths) : forward(changed_widths);
  return mma ? forward(mma_widths) : forward(widths);
} OPS_CATCH

int ops_attention_backward(const OpsAttention *attention, OpsStream stream) try {
  const char *function = "ops_attention_backward";
  const int status = check_attention(function, attention, true);
  if (status != OPS_SUCCESS || attends_to_nothing(*attention, true)) return status;
  AttentionArguments arguments = arguments_of(*attention, true);
  const auto backward = [&](auto &any_widths) {
    return launch_backward(function, width_of(any_widths, *attention), *attention, arguments, stream);
  };
  const auto changed_backward = [&](auto &any_widths) {
    return launch_changed_backward(function, width_of(any_widths, *attention), *attention, arguments, stream);
  };
  const bool mma = fits_mma(*attention, true);
  if (changes_scores(*attention))
    return mma ? changed_backward(changed_mma_widths) : changed_backward(changed_widths);
  return mma ? backward(mma_widths) : backward(widths);
} OPS_CATCH

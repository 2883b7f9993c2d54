/* The checks of attention, shared by both libraries that export it; as checks.h. */
#ifndef CHAGRES_OPS_ATTENTION_CHECKS_H
#define CHAGRES_OPS_ATTENTION_CHECKS_H

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "arguments.h"
#include "attention_score_checks.h"

namespace chagres::ops {

/* Where packed sequences start; null where they do not lie packed. */
inline const int32_t *starts_of(const OpsAttention &attention, bool of_keys) {
  const int32_t *padded = of_keys ? attention.cu_seqlens_kv_padded : attention.cu_seqlens_q_padded;
  if ((of_keys ? attention.kv_packed : attention.packed) == 0) return nullptr;
  return padded != nullptr ? padded : of_keys ? attention.cu_seqlens_kv : attention.cu_seqlens_q;
}

/* What all tensors of queries, or all of keys and values, have in common. */
struct AttentionExtent {
  int64_t length, heads;
  bool packed;

  bool is_empty() const { return length == 0 || heads == 0; }
};

inline AttentionExtent queries_of(const OpsAttention &attention) {
  return {attention.length, attention.heads, attention.packed != 0};
}

inline AttentionExtent keys_of(const OpsAttention &attention) {
  return {attention.kv_length, attention.kv_heads, attention.kv_packed != 0};
}

/* One tensor of a call. */
struct AttentionOperand {
  const char *name, *strides_name;
  const void *data;
  OpsStrides strides;
  AttentionExtent extent;
  bool of_keys; /* else of queries */
  int64_t columns, element_size;
};

/* The tensors that forward looks at come first: without backward the others are empty. */
using AttentionOperands = std::array<AttentionOperand, 10>;

inline AttentionOperands operands_of(const OpsAttention &attention, bool backward) {
  const AttentionExtent queries = queries_of(attention), keys = keys_of(attention);
  const int64_t dim = attention.head_dim, value_dim = attention.value_dim, size = size_of(attention.dtype);
  AttentionOperands operands = {};
  operands[0] = {"q", "query", attention.q, attention.query, queries, false, dim, size};
  operands[1] = {"k", "key", attention.k, attention.key, keys, true, dim, size};
  operands[2] = {"v", "value", attention.v, attention.value, keys, true, value_dim, size};
  operands[3] = {"o", "output", attention.o, attention.output, queries, false, value_dim, size};
  operands[4] = {"log_sum_exp", "statistics", attention.log_sum_exp, attention.statistics, queries, false, 1, 4};
  if (!backward) return operands;
  operands[5] = {"d_o", "output", attention.d_o, attention.output, queries, false, value_dim, size};
  operands[6] = {"dq", "d_query", attention.dq, attention.d_query, queries, false, dim, size};
  operands[7] = {"dk", "d_key", attention.dk, attention.d_key, keys, true, dim, size};
  operands[8] = {"dv", "d_value", attention.dv, attention.d_value, keys, true, value_dim, size};
  operands[9] = {"delta", "statistics", attention.delta, attention.statistics, queries, false, 1, 4};
  return operands;
}

/* Whether a valid call writes nothing. */
inline bool attends_to_nothing(const OpsAttention &attention, bool backward) {
  if (wants_d_bias(attention, backward) || wants_d_sinks(attention, backward)) return false;
  return attention.sequences == 0 ||
         (queries_of(attention).is_empty() && (!backward || keys_of(attention).is_empty()));
}

/* Each step of the strides within a tensor must be countable in bytes. */
inline void check_strides(Arguments &arguments, const AttentionOperand &operand, int64_t sequences) {
  const std::string name = operand.strides_name;
  const std::string sequence = name + ".sequence", token = name + ".token", head = name + ".head";
  constexpr int64_t kParts = 4; /* start of the sequence, token, head, column: each at most a fourth */
  const bool packed = operand.extent.packed;
  const int64_t tokens = packed ? INT32_MAX : operand.extent.length;
  if (!packed) arguments.between(sequence.c_str(), operand.strides.sequence, 0);
  arguments.between(token.c_str(), operand.strides.token, 0).between(head.c_str(), operand.strides.head, 0);
  if (arguments.wrong()) return;
  if (!packed)
    arguments.countable(sequence.c_str(), {operand.strides.sequence, sequences, operand.element_size, kParts});
  arguments.countable(token.c_str(), {operand.strides.token, tokens, operand.element_size, kParts})
      .countable(head.c_str(), {operand.strides.head, operand.extent.heads, operand.element_size, kParts});
}

inline void check_head_dim(Arguments &arguments, const char *name, int64_t value) {
  arguments.between(name, value, 8, 256);
  if (value % 8 != 0) arguments.refuse(name, format("%lld", static_cast<long long>(value)), "a multiple of 8");
}

/* One block of threads for 32 or more rows of each head of each sequence, in one dimension of a grid. */
inline void check_blocks(Arguments &arguments, const char *names, const AttentionExtent &extent, int64_t sequences) {
  int64_t blocks = divide_up(extent.length, 32);
  if (__builtin_mul_overflow(blocks, extent.heads, &blocks) || __builtin_mul_overflow(blocks, sequences, &blocks) ||
      blocks > INT32_MAX)
    arguments.refuse(names, "too large", "at most 2147483647");
}

/* The heads of the call must be some of the whole. */
inline void check_place(Arguments &arguments, const OpsAttention &attention) {
  const OpsPlace &place = attention.place;
  if (place.heads != 0) arguments.between("place.heads", place.heads, attention.heads, INT32_MAX);
  if (arguments.wrong()) return;
  arguments.between("place.first_head", place.first_head, 0, place.heads == 0 ? 0 : place.heads - attention.heads);
  const auto numbers = [&](const char *name, const int32_t *given) {
    if (given != nullptr) arguments.pointer(name, given, 4);
  };
  numbers("place.sequences", place.sequences);
  numbers("place.first_queries", place.first_queries);
  numbers("place.first_keys", place.first_keys);
}

inline void check_attention_sizes(Arguments &arguments, const OpsAttention &attention) {
  constexpr int64_t kLongest = INT32_MAX / 4; /* kernels add three of them */
  arguments.float_dtype("dtype", attention.dtype)
      .between("packed", attention.packed, 0, 1)
      .between("kv_packed", attention.kv_packed, 0, 1)
      .between("alignment", attention.alignment, OPS_TOP_LEFT, OPS_BY_PLACE)
      .between("sequences", attention.sequences, 0, INT32_MAX)
      .between("length", attention.length, 0, kLongest)
      .between("kv_length", attention.kv_length, 0, kLongest)
      .between("heads", attention.heads, 0, INT32_MAX)
      .between("kv_heads", attention.kv_heads, attention.heads > 0 ? 1 : 0, INT32_MAX);
  if (!arguments.wrong() && attention.kv_heads > 0 && attention.heads % attention.kv_heads != 0)
    arguments.refuse("heads", format("%lld", static_cast<long long>(attention.heads)),
                     format("a multiple of kv_heads %lld", static_cast<long long>(attention.kv_heads)));
  check_place(arguments, attention);
  check_head_dim(arguments, "head_dim", attention.head_dim);
  check_head_dim(arguments, "value_dim", attention.value_dim);
  arguments.between("window_left", attention.window_left, -1)
      .between("window_right", attention.window_right, -1)
      .probability("dropout", attention.dropout);
  if (!(attention.scale > 0) || std::isinf(attention.scale))
    arguments.refuse("scale", format("%g", attention.scale), "a finite number above 0");
  if (arguments.wrong()) return;
  check_blocks(arguments, "sequences * heads * length / 32", queries_of(attention), attention.sequences);
  check_blocks(arguments, "sequences * kv_heads * kv_length / 32", keys_of(attention), attention.sequences);
}

inline int check_attention(const char *function, const OpsAttention *given, bool backward) {
  Arguments arguments(function);
  if (given == nullptr) return arguments.refuse("attention", "null", "a host struct").status();
  const OpsAttention &attention = *given;
  check_attention_sizes(arguments, attention);
  if (!arguments.wrong()) check_scores(arguments, attention, backward);
  if (arguments.wrong() || attends_to_nothing(attention, backward)) return arguments.status();
  const AttentionOperands operands = operands_of(attention, backward);
  for (const AttentionOperand &operand : operands)
    if (!operand.extent.is_empty()) check_strides(arguments, operand, attention.sequences);
  for (const AttentionOperand &operand : operands)
    if (!operand.extent.is_empty()) arguments.pointer(operand.name, operand.data, operand.element_size);
  arguments.pointer("cu_seqlens_q", attention.cu_seqlens_q, 4).pointer("cu_seqlens_kv", attention.cu_seqlens_kv, 4);
  const auto padded = [&](const char *name, const int32_t *starts, int32_t packed) {
    if (packed != 0 && starts != nullptr) arguments.pointer(name, starts, 4);
  };
  padded("cu_seqlens_q_padded", attention.cu_seqlens_q_padded, attention.packed);
  padded("cu_seqlens_kv_padded", attention.cu_seqlens_kv_padded, attention.kv_packed);
  if (attention.dropout > 0) arguments.pointer("rng_state", attention.rng_state, 8);
  return arguments.status();
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_ATTENTION_CHECKS_H */

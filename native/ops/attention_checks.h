/* The checks of attention, shared by both libraries that export it; as checks.h. */
#ifndef CHAGRES_OPS_ATTENTION_CHECKS_H
#define CHAGRES_OPS_ATTENTION_CHECKS_H

#include <algorithm>
#include <cmath>
#include <string>

#include "arguments.h"

namespace chagres::ops {

inline bool attends_to_nothing(const OpsAttention &attention) {
  return attention.sequences == 0 || attention.length == 0 || attention.heads == 0;
}

/* Each step of the strides within a tensor must be countable in bytes. */
inline void check_strides(Arguments &arguments, const std::string &name, const OpsStrides &strides,
                          const OpsAttention &attention, int64_t element_size) {
  const std::string sequence = name + ".sequence", token = name + ".token", head = name + ".head";
  constexpr int64_t kParts = 4; /* start of the sequence, token, head, column: each at most a fourth */
  const int64_t tokens = attention.packed != 0 ? INT32_MAX : attention.length;
  if (attention.packed == 0) arguments.between(sequence.c_str(), strides.sequence, 0);
  arguments.between(token.c_str(), strides.token, 0).between(head.c_str(), strides.head, 0);
  if (arguments.wrong()) return;
  if (attention.packed == 0)
    arguments.countable(sequence.c_str(), {strides.sequence, attention.sequences, element_size, kParts});
  arguments.countable(token.c_str(), {strides.token, tokens, element_size, kParts})
      .countable(head.c_str(), {strides.head, attention.heads, element_size, kParts});
}

inline void check_attention_sizes(Arguments &arguments, const OpsAttention &attention) {
  arguments.float_dtype("dtype", attention.dtype)
      .between("packed", attention.packed, 0, 1)
      .between("sequences", attention.sequences, 0, INT32_MAX)
      .between("length", attention.length, 0, INT32_MAX / 4) /* kernels add three of them */
      .between("heads", attention.heads, 0, INT32_MAX)
      .between("head_dim", attention.head_dim, 8, 256);
  if (attention.head_dim % 8 != 0)
    arguments.refuse("head_dim", format("%d", static_cast<int>(attention.head_dim)), "a multiple of 8");
  arguments.between("window_left", attention.window_left, -1)
      .between("window_right", attention.window_right, -1)
      .probability("dropout", attention.dropout);
  if (!(attention.scale > 0) || std::isinf(attention.scale))
    arguments.refuse("scale", format("%g", attention.scale), "a finite number above 0");
  if (arguments.wrong()) return;
  /* One block of threads for 32 or more rows of each head of each sequence, in one dimension of a grid. */
  int64_t blocks = divide_up(attention.length, 32);
  if (__builtin_mul_overflow(blocks, attention.heads, &blocks) ||
      __builtin_mul_overflow(blocks, attention.sequences, &blocks) || blocks > INT32_MAX)
    arguments.refuse("sequences * heads * length / 32", "too large", "at most 2147483647");
}

inline int check_attention(const char *function, const OpsAttention *given, bool backward) {
  Arguments arguments(function);
  if (given == nullptr) return arguments.refuse("attention", "null", "a host struct").status();
  const OpsAttention &attention = *given;
  check_attention_sizes(arguments, attention);
  if (arguments.wrong() || attends_to_nothing(attention)) return arguments.status();
  const int64_t size = size_of(attention.dtype);
  check_strides(arguments, "qkv", attention.qkv, attention, size);
  check_strides(arguments, "output", attention.output, attention, size);
  check_strides(arguments, "statistics", attention.statistics, attention, 4);
  if (backward) check_strides(arguments, "gradients", attention.gradients, attention, size);
  arguments.pointer("q", attention.q, size)
      .pointer("k", attention.k, size)
      .pointer("v", attention.v, size)
      .pointer("o", attention.o, size)
      .pointer("log_sum_exp", attention.log_sum_exp, 4)
      .pointer("cu_seqlens", attention.cu_seqlens, 4);
  if (attention.dropout > 0) arguments.pointer("rng_state", attention.rng_state, 8);
  if (backward)
    arguments.pointer("d_o", attention.d_o, size)
        .pointer("dq", attention.dq, size)
        .pointer("dk", attention.dk, size)
        .pointer("dv", attention.dv, size)
        .pointer("delta", attention.delta, 4);
  return arguments.status();
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_ATTENTION_CHECKS_H */

/* The checks of modifications of attention's scores, shared by both libraries that export it; as checks.h. */
#ifndef CHAGRES_OPS_ATTENTION_SCORE_CHECKS_H
#define CHAGRES_OPS_ATTENTION_SCORE_CHECKS_H

#include <cmath>
#include <string>

#include "arguments.h"

namespace chagres::ops {

/* Whether something is done with scores. */
inline bool changes_scores(const OpsAttention &attention) {
  const OpsScores &scores = attention.scores;
  return scores.softcap > 0 || scores.alibi_slopes != nullptr || scores.bias != nullptr || scores.mask != nullptr ||
         scores.softmax_type != OPS_SOFTMAX_VANILLA;
}

inline bool wants_d_bias(const OpsAttention &attention, bool backward) {
  return backward && attention.scores.bias != nullptr && attention.scores.d_bias != nullptr;
}

inline bool wants_d_sinks(const OpsAttention &attention, bool backward) {
  return backward && attention.scores.softmax_type == OPS_SOFTMAX_LEARNABLE && attention.scores.d_sinks != nullptr &&
         attention.heads > 0;
}

/* Bytes of a checked tensor with an element for each score. */
inline int64_t bytes_of(const OpsScoreShape &shape, int64_t element_size) {
  return shape.sequences * shape.heads * shape.queries * shape.keys * element_size;
}

/* 1, or as many as `names` are: `all`. */
inline void check_shared(Arguments &arguments, const std::string &name, int64_t value, int64_t all, const char *names) {
  if (value != 1 && value != all)
    arguments.refuse(name.c_str(), format("%lld", static_cast<long long>(value)),
                     format("1 or %s %lld", names, static_cast<long long>(all)));
}

inline void check_score_shape(Arguments &arguments, const char *name, const OpsScoreShape &shape,
                              const OpsAttention &attention, int64_t element_size) {
  constexpr int64_t kLongest = INT32_MAX / 4; /* as of lengths */
  const std::string prefix = std::string("scores.") + name + '.';
  check_shared(arguments, prefix + "sequences", shape.sequences, attention.sequences, "sequences");
  check_shared(arguments, prefix + "heads", shape.heads, attention.heads, "heads");
  arguments.between((prefix + "queries").c_str(), shape.queries, attention.length, kLongest)
      .between((prefix + "keys").c_str(), shape.keys, attention.kv_length, kLongest)
      .countable((std::string("scores.") + name).c_str(),
                 {shape.sequences, shape.heads, shape.queries, shape.keys, element_size});
  if (arguments.wrong()) return;
  const int64_t blocks = divide_up(shape.queries, 32) * divide_up(shape.keys, 64); /* as d_bias is cut */
  if (overflows({shape.sequences, shape.heads, blocks}) || shape.sequences * shape.heads * blocks > INT32_MAX)
    arguments.refuse((std::string("scores.") + name).c_str(), "too large",
                     "at most 2147483647 blocks of 32 queries by 64 keys");
}

/* Checks for forward and backward; sizes of the attention were checked before. */
inline void check_scores(Arguments &arguments, const OpsAttention &attention, bool backward) {
  const OpsScores &scores = attention.scores;
  if (!(scores.softcap >= 0) || std::isinf(scores.softcap))
    arguments.refuse("scores.softcap", format("%g", scores.softcap), "0 or a finite number above 0");
  arguments.between("scores.alibi_alignment", scores.alibi_alignment, OPS_TOP_LEFT, OPS_BOTTOM_RIGHT)
      .between("scores.softmax_type", scores.softmax_type, OPS_SOFTMAX_VANILLA, OPS_SOFTMAX_LEARNABLE);
  if (scores.alibi_slopes != nullptr) {
    check_shared(arguments, "scores.alibi_sequences", scores.alibi_sequences, attention.sequences, "sequences");
    arguments.pointer("scores.alibi_slopes", scores.alibi_slopes, 4);
  }
  if (scores.bias != nullptr) {
    const int64_t size = size_of(attention.dtype);
    arguments.between("scores.bias_type", scores.bias_type, OPS_POST_SCALE_BIAS, OPS_PRE_SCALE_BIAS);
    check_score_shape(arguments, "bias_shape", scores.bias_shape, attention, size);
    arguments.pointer("scores.bias", scores.bias, size);
    if (wants_d_bias(attention, backward)) arguments.pointer("scores.d_bias", scores.d_bias, size);
  }
  if (scores.mask != nullptr) check_score_shape(arguments, "mask_shape", scores.mask_shape, attention, 1);
  if (scores.softmax_type != OPS_SOFTMAX_LEARNABLE || attention.heads == 0) return;
  arguments.pointer("scores.sinks", scores.sinks, 4);
  if (wants_d_sinks(attention, backward)) arguments.pointer("scores.d_sinks", scores.d_sinks, 4);
}

/* Checks that the memory is large enough, if the library knows its memory. */
inline void check_score_memory(Arguments &arguments, const OpsAttention &attention, bool backward) {
  const OpsScores &scores = attention.scores;
  const int64_t size = size_of(attention.dtype), row = 4 * attention.heads;
  if (scores.alibi_slopes != nullptr)
    arguments.pointer("scores.alibi_slopes", scores.alibi_slopes, 4, row * scores.alibi_sequences);
  if (scores.bias != nullptr)
    arguments.pointer("scores.bias", scores.bias, size, bytes_of(scores.bias_shape, size));
  if (wants_d_bias(attention, backward))
    arguments.pointer("scores.d_bias", scores.d_bias, size, bytes_of(scores.bias_shape, size));
  if (scores.mask != nullptr) arguments.pointer("scores.mask", scores.mask, 1, bytes_of(scores.mask_shape, 1));
  if (scores.softmax_type == OPS_SOFTMAX_LEARNABLE && row > 0)
    arguments.pointer("scores.sinks", scores.sinks, 4, row);
  if (wants_d_sinks(attention, backward)) arguments.pointer("scores.d_sinks", scores.d_sinks, 4, row);
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_ATTENTION_SCORE_CHECKS_H */

/* Modifications of scores before the softmax: soft cap, ALiBi, bias, mask by element, a sink in the softmax's
 * denominator. Kernels for plain scores are compiled without them; kernels for modified scores are in separate files;
 * those of tiles of FP32 own 32 rows, which leaves registers for the derivatives.
 */
#pragma once

#include <attention.cuh>

enum class ScoreKind { kPlain, kChanged };

/* The factor that turns a kernel's score into an exponent of two; modified ones are exponents already. */
template <ScoreKind kind>
__device__ inline float exponent_scale(const AttentionArguments &a) {
  return kind == ScoreKind::kChanged ? 1.0f : a.log2_scale;
}

/* A score as an exponent of two, and its derivative by the plain score. */
struct Score {
  float exponent, derivative;
};

/* The data of one head of one sequence that modify its scores. */
template <class T>
struct ScoreRules {
  const T *bias;
  const uint8_t *mask;
  float slope;
  int diagonal; /* of ALiBi */
};

template <class T>
__device__ inline ScoreRules<T> rules_of(const AttentionArguments &a, const Place &place) {
  const ScoreArguments &scores = a.scores;
  ScoreRules<T> rules = {nullptr, nullptr, 0.0f, 0};
  if (scores.bias != nullptr)
    rules.bias = static_cast<const T *>(scores.bias) + place.sequence * scores.bias_tensor.sequence +
                 place.head * scores.bias_tensor.head;
  if (scores.mask != nullptr)
    rules.mask = scores.mask + place.sequence * scores.mask_tensor.sequence + place.head * scores.mask_tensor.head;
  if (scores.alibi_slopes != nullptr)
    rules.slope = scores.alibi_slopes[place.sequence * scores.alibi_sequence + place.head];
  if (scores.alibi_bottom_right) rules.diagonal = place.keys.length - place.queries.length;
  return rules;
}

/* Of a query and a key that meet. */
template <class T>
__device__ inline Score score_of(float product, int query, int key, const ScoreRules<T> &rules,
                                 const AttentionArguments &a) {
  const ScoreArguments &scores = a.scores;
  if (rules.mask != nullptr && rules.mask[query * scores.mask_tensor.query + key] != 0)
    return {minus_infinity(), 0.0f};
  const float bias = rules.bias == nullptr ? 0.0f : to_float(rules.bias[query * scores.bias_tensor.query + key]);
  float score = (scores.bias_before_scale ? product + bias : product) * a.scale, derivative = 1.0f;
  if (scores.softcap > 0) {
    const float part = tanhf(score / scores.softcap);
    score = scores.softcap * part;
    derivative = 1.0f - part * part;
  }
  const int distance = query + rules.diagonal - key;
  score -= rules.slope * static_cast<float>(distance < 0 ? -distance : distance);
  if (!scores.bias_before_scale) score += bias;
  return {score * kLog2E, derivative};
}

/* Products of own rows from `first` and tile rows from `other` become exponents, -infinity where `seen` has no bit. */
template <class T, class S, Own own>
__device__ inline void change_scores(float (&score)[S::kOwn][4], float (&derivative)[S::kOwn][4], uint32_t seen,
                                     int other, const Place &place, const AttentionArguments &a) {
  const ScoreRules<T> rules = rules_of<T>(a, place);
#pragma unroll
  for (int r = 0; r < S::kOwn; ++r)
#pragma unroll
    for (int u = 0; u < 4; ++u) {
      const int row = place.first + row_of(r), column = other + 4 * lane() + u;
      Score changed = {minus_infinity(), 0.0f};
      if (bit(seen, r, u))
        changed = own == Own::kQueries ? score_of(score[r][u], row, column, rules, a)
                                       : score_of(score[r][u], column, row, rules, a);
      score[r][u] = changed.exponent;
      derivative[r][u] = changed.derivative;
    }
}

/* The exponent of the softmax's extra term, which exists. */
__device__ inline float sink_of(const AttentionArguments &a, const Place &place) {
  return a.scores.sinks == nullptr ? 0.0f : a.scores.sinks[place.head] * kLog2E;
}

/* The part of the bias whose gradient a block sums: a number of queries from `first` by 64 keys from `key`, for the
 * sequences and heads that share it. */
struct BiasBlock {
  int first, key;
  Range sequences, heads;
};

__device__ inline BiasBlock bias_block_of(const AttentionArguments &a, int rows) {
  const ScoreTensor &bias = a.scores.bias_tensor;
  const int row_blocks = (bias.queries + rows - 1) / rows, key_blocks = (bias.keys + kTile - 1) / kTile;
  const int item = blockIdx.x, rest = item / key_blocks, pair = rest / row_blocks;
  const int sequence = pair / bias.heads, head = pair % bias.heads;
  return {rest % row_blocks * rows,
          item % key_blocks * kTile,
          {sequence, bias.sequence == 0 ? a.sequences : sequence + 1},
          {head, bias.head == 0 ? a.queries.heads : head + 1}};
}

/* Writes an element of a block's part of the bias gradient, if there is one. */
template <class T>
__device__ inline void store_d_bias(float value, const BiasBlock &block, int query, int key,
                                    const AttentionArguments &a) {
  const ScoreTensor &bias = a.scores.bias_tensor;
  if (query >= bias.queries || key >= bias.keys) return;
  const int64_t head = static_cast<int64_t>(block.sequences.first) * bias.heads + block.heads.first;
  from_float(value, static_cast<T *>(a.scores.d_bias)[(head * bias.queries + query) * bias.keys + key]);
}

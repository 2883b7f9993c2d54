/* Attention in double precision, and how a test arranges its tokens. */
#ifndef CHAGRES_TESTS_OPS_ATTENTION_DOUBLE_H
#define CHAGRES_TESTS_OPS_ATTENTION_DOUBLE_H

#include <string>
#include <vector>

#include "chagres/ops.h"
#include "harness/numbers.h"

namespace chagres::tests {

enum class TokenOrder { kPacked, kBshd, kSbhd };

/* Queries, or keys and values: how many, where. */
struct AttentionSide {
  TokenOrder order = TokenOrder::kPacked;
  int64_t heads = 1;
  std::vector<int64_t> lengths;
  int64_t length = 0;      /* padded; packed: upper bound, longer sequences are cut to it */
  int64_t tokens_past = 0; /* packed: tokens after the last sequence */
  int64_t gap = 0;         /* packed: tokens after each sequence that belong to it as padding */

  bool packed() const { return order == TokenOrder::kPacked; }
  int64_t batch() const { return static_cast<int64_t>(lengths.size()); }
  int64_t tokens() const;
  int64_t rows() const { return tokens() * heads; } /* of all heads */
  int64_t valid(int64_t sequence) const { return std::min(lengths[static_cast<size_t>(sequence)], length); }
  int64_t token(int64_t sequence, int64_t row) const;
  bool is_row(int64_t token) const; /* whether the operation writes it */
  bool is_gap(int64_t token) const; /* whether it is written as padding of a packed sequence */
  std::vector<int32_t> cu_seqlens() const;
  std::vector<int32_t> starts() const; /* of packed sequences with their gaps */
  OpsStrides strides(int64_t token_width, int64_t head_width) const;
  std::string text() const;
};

/* Which of query, key and value lie side by side in each token, all heads of one before those of the next. */
enum class Together { kNone, kKeyValue, kAll };

/* What a shape does with its scores. Sequences and heads of a tensor: 1 where they share, 0 where there is no tensor. */
struct ScoreChange {
  float softcap = 0;
  int64_t alibi_sequences = 0;
  OpsAlignment alibi_alignment = OPS_TOP_LEFT;
  int64_t bias_sequences = 0, bias_heads = 0, mask_sequences = 0, mask_heads = 0;
  int64_t past = 0; /* queries and keys of bias and mask past the longest */
  OpsSoftmax softmax = OPS_SOFTMAX_VANILLA;
  OpsBiasType bias_type = OPS_POST_SCALE_BIAS;

  std::string text() const;
};

/* Where a call stands among the whole: nothing, or a number for each sequence. */
struct WholePlace {
  std::vector<int32_t> sequences, first_queries, first_keys;
  int64_t heads = 0, first_head = 0;

  static int64_t at(const std::vector<int32_t> &numbers, int64_t sequence, int64_t otherwise) {
    return numbers.empty() ? otherwise : numbers[static_cast<size_t>(sequence)];
  }
};

struct AttentionShape {
  int dtype = 4;
  AttentionSide queries, keys;
  int64_t head_dim = 8, value_dim = 8;
  Together inputs = Together::kNone, gradients = Together::kNone;
  int64_t left = -1, right = -1;
  OpsAlignment alignment = OPS_TOP_LEFT;
  float dropout = 0;
  std::vector<int64_t> rng_state = {0x123456789abcdef, 77};
  ScoreChange change;
  WholePlace place;
  int64_t offset = 0; /* elements by which pointers are off a multiple of 256 bytes */

  double scale() const { return static_cast<double>(static_cast<float>(1 / std::sqrt(static_cast<double>(head_dim)))); }
  int64_t group() const { return queries.heads / keys.heads; }
  int64_t diagonal(int64_t sequence) const; /* the key on which query 0 stands */
  OpsStrides statistics() const;
  OpsScoreShape bias() const;
  OpsScoreShape mask() const;
  std::string text() const;
};

/* Elements of a tensor with one for each score, and the place of one of them. */
size_t elements(const OpsScoreShape &shape);
size_t element_at(const OpsScoreShape &shape, int64_t sequence, int64_t head, int64_t query, int64_t key);

/* Values are [tokens, heads, columns] in the order of their side's tokens; log_sum_exp in the order of
 * AttentionShape::statistics. `_scale` is the sum of the absolute terms that rounding is relative to. */
class AttentionDouble {
 public:
  explicit AttentionDouble(const AttentionShape &shape) : shape_(shape) {}

  void forward();  /* q, k, v to o, log_sum_exp and their scales; packed rows of no sequence get `kUntouched` */
  void backward(); /* with d_o and o to dq, dk, dv and their scales */

  static constexpr double kUntouched = 7;

  Doubles q, k, v, d_o, o, o_scale, log_sum_exp, sum_scale, dq, dk, dv, dq_scale, dk_scale, dv_scale;
  Doubles slopes, bias, mask, sinks; /* what `change` of the shape wants; mask: 0 or 1 */
  Doubles dbias, dbias_scale, dsinks, dsinks_scale;

 private:
  /* What one query sees. */
  struct Weights {
    Doubles probability, factor; /* of each key; factor: what dropout makes of it */
    Doubles derivative;          /* of the score by the plain score */
    double log_sum_exp;
    double slack; /* relative error of a probability, in roundings: the absolute error of its score */
  };

  /* Of column 0. */
  size_t query_at(int64_t sequence, int64_t head, int64_t row, int64_t columns) const;
  size_t key_at(int64_t sequence, int64_t head, int64_t row, int64_t columns) const; /* `head` is the query's */
  size_t statistic(int64_t sequence, int64_t head, int64_t row) const;
  bool sees(int64_t sequence, int64_t query, int64_t key) const;
  double kept(int64_t sequence, int64_t head, int64_t query, int64_t key) const;
  Weights weights(int64_t sequence, int64_t head, int64_t query) const;
  double sink(int64_t head) const; /* -infinity: none */
  void change(int64_t sequence, int64_t head, int64_t query, int64_t key, double &score, double &derivative,
              double &size) const;
  void forward_row(int64_t sequence, int64_t head, int64_t row);
  void backward_row(int64_t sequence, int64_t head, int64_t row);

  const AttentionShape &shape_;
};

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_ATTENTION_DOUBLE_H */

/* Attention over scores that are changed before the softmax, and over packed sequences with gaps. */
#include "attention.h"

namespace chagres::tests {

namespace {

/* Every change of scores alone, then all together. */
std::vector<ScoreChange> changes(int64_t sequences, int64_t heads) {
  ScoreChange cap, alibi, bias, mask, off_by_one, sinks, all;
  cap.softcap = 1.5f;
  alibi.alibi_sequences = 1;
  bias.bias_sequences = bias.bias_heads = 1;
  mask.mask_sequences = mask.mask_heads = 1;
  off_by_one.softmax = OPS_SOFTMAX_OFF_BY_ONE;
  sinks.softmax = OPS_SOFTMAX_LEARNABLE;
  all.softcap = 4;
  all.alibi_sequences = sequences;
  all.alibi_alignment = OPS_BOTTOM_RIGHT;
  all.bias_sequences = sequences;
  all.bias_heads = heads;
  all.mask_sequences = sequences;
  all.past = 3;
  all.mask_heads = heads;
  all.softmax = OPS_SOFTMAX_LEARNABLE;
  std::vector<ScoreChange> changes = {cap, alibi, bias, mask, off_by_one, sinks, all};
  bias.bias_heads = heads;
  alibi.alibi_alignment = OPS_BOTTOM_RIGHT;
  mask.mask_sequences = bias.bias_sequences = sequences;
  changes.insert(changes.end(), {bias, alibi, mask});
  bias.bias_sequences = 1;
  bias.past = 40;
  changes.push_back(bias);
  bias.bias_type = all.bias_type = OPS_PRE_SCALE_BIAS;
  changes.insert(changes.end(), {bias, all});
  return changes;
}

void score_cases(Session &session, int dtype) {
  int64_t turn = 0;
  for (const ScoreChange &change : changes(5, 4)) {
    AttentionShape shape = packed(dtype, 4, 24, {65, 0, 1, 40, 70});
    shape.change = change;
    attention_case(session, shape);
    shape.keys = side(turn % 2 == 0 ? TokenOrder::kPacked : TokenOrder::kBshd, 2, {10, 70, 129, 0, 64});
    shape.alignment = turn % 3 == 0 ? OPS_TOP_LEFT : OPS_BOTTOM_RIGHT;
    shape.right = turn % 3 == 1 ? 0 : 7;
    shape.left = turn % 3 == 2 ? 40 : -1;
    shape.dropout = turn % 2 == 0 ? 0.25f : 0;
    attention_case(session, shape);
    shape = dense(dtype, turn % 2 == 0 ? TokenOrder::kBshd : TokenOrder::kSbhd, 4, turn % 2 == 0 ? 128 : 200, 70,
                  {70, 33, 0, 1, 64});
    shape.change = change;
    shape.keys.heads = turn % 4 < 2 ? 4 : 1;
    attention_case(session, shape);
    ++turn;
  }
  AttentionShape shape = packed(dtype, 2, 16, {0, 0}); /* nothing adds to the gradients */
  shape.keys = side(TokenOrder::kPacked, 1, {3, 0});
  shape.change = changes(2, 2)[6];
  attention_case(session, shape);
  std::swap(shape.queries.lengths, shape.keys.lengths);
  std::swap(shape.queries.length, shape.keys.length);
  attention_case(session, shape);
}

/* Packed sequences with gaps between them, plain and with changed scores; tensor cores, too. */
void gap_cases(Session &session, int dtype) {
  for (int64_t head_dim : {16, 32, 64, 128})
    for (int64_t gap : {1, 70}) {
      AttentionShape shape = packed(dtype, 2, head_dim, {63, 0, 1, 65});
      shape.queries.gap = shape.keys.gap = gap;
      shape.queries.length += gap;
      shape.keys.length += gap;
      shape.inputs = shape.gradients = Together::kAll;
      shape.queries.tokens_past = shape.keys.tokens_past = 5;
      attention_case(session, shape);
      shape.inputs = shape.gradients = Together::kNone;
      shape.keys = side(TokenOrder::kPacked, 1, {70, 2, 0, 64});
      shape.alignment = OPS_BOTTOM_RIGHT;
      shape.right = 0;
      if (gap > 1) shape.change = changes(4, 2)[6];
      attention_case(session, shape);
    }
}

/* Both widths of kernels on tensor cores, with every tensor that they read and write. */
void wide_cases(Session &session, int dtype) {
  for (int64_t head_dim : {64, 128})
    for (size_t change : {2, 6}) {
      AttentionShape shape = packed(dtype, 4, head_dim, {65, 0, 1, 40, 70});
      shape.keys.heads = 2;
      shape.change = changes(5, 4)[change];
      attention_case(session, shape);
    }
}

}  // namespace

void attention_score_cases(Session &session) {
  for (const Format &format : kFormats) {
    wide_cases(session, format.dtype);
    if (format.dtype == 5 && !session.large) continue;
    score_cases(session, format.dtype);
    gap_cases(session, format.dtype);
  }
}

}  // namespace chagres::tests

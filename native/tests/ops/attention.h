/* One call of attention in each direction against double precision, and shapes to make such calls of. */
#ifndef CHAGRES_TESTS_OPS_ATTENTION_H
#define CHAGRES_TESTS_OPS_ATTENTION_H

#include "attention_triple.h"

namespace chagres::tests {

/* Doubles that the operation is given or must give, and the buffers that hold them. */
class AttentionCase {
 public:
  AttentionCase(Session &session, const AttentionShape &shape)
      : session_(session), shape_(shape), format_(format_of(shape.dtype)), wanted_(shape) {
    const int64_t queries = shape.queries.rows(), keys = shape.keys.rows();
    wanted_.q = session.random.normal(format_, queries * shape.head_dim);
    wanted_.k = session.random.normal(format_, keys * shape.head_dim);
    wanted_.v = session.random.normal(format_, keys * shape.value_dim);
    wanted_.d_o = session.random.normal(format_, queries * shape.value_dim);
    draw_scores();
    wanted_.forward();
  }

  void forward() {
    Case test(session_, "attention_forward", shape_.dtype, shape_.text());
    const Triple inputs(session_, shape_, shape_.inputs, {&wanted_.q, &wanted_.k, &wanted_.v});
    Buffer o = session_.floats(shape_.dtype, untouched(wanted_.o), shape_.offset);
    Buffer sums = session_.floats(4, untouched(wanted_.log_sum_exp));
    const Common common(session_, shape_, wanted_);
    OpsAttention attention = describe(inputs, o, sums, common);
    if (!test.run({&o, &sums}, [&] { return session_.ops.attention_forward(&attention, session_.memory.stream()); }))
      return;
    test.close(shape_.dtype, test.output(0, shape_.dtype), expected(shape_.queries, wanted_.o), wanted_.o_scale, slack(),
               "o");
    test.close(4, test.output(1, 4), wanted_.log_sum_exp, wanted_.sum_scale, kExact, "log_sum_exp");
  }

  /* Given o and log_sum_exp as exactly as they can be stored. */
  void backward() {
    Case test(session_, "attention_backward", shape_.dtype, shape_.text());
    for (double &value : wanted_.o) value = round_to(format_, value);
    wanted_.backward();
    Doubles stored = wanted_.log_sum_exp;
    for (double &value : stored) value = round_to(kFormats[0], value);
    const Triple inputs(session_, shape_, shape_.inputs, {&wanted_.q, &wanted_.k, &wanted_.v});
    const Doubles dq = untouched(wanted_.dq), dk = untouched(wanted_.dk), dv = untouched(wanted_.dv);
    const Triple gradients(session_, shape_, shape_.gradients, {&dq, &dk, &dv});
    Buffer o = session_.floats(shape_.dtype, wanted_.o, shape_.offset);
    Buffer d_o = session_.floats(shape_.dtype, wanted_.d_o, shape_.offset);
    Buffer sums = session_.floats(4, stored), delta = session_.floats(4, Doubles(stored.size(), 0));
    const Common common(session_, shape_, wanted_);
    Buffer dbias = session_.floats(shape_.dtype, untouched(wanted_.dbias)), dsinks = session_.floats(4, untouched(wanted_.dsinks));
    OpsAttention attention = describe(inputs, o, sums, common);
    if (!wanted_.dbias.empty()) attention.scores.d_bias = dbias.data();
    attention.scores.d_sinks = dsinks.data<float>();
    attention.d_o = d_o.data();
    attention.dq = gradients.data[0];
    attention.dk = gradients.data[1];
    attention.dv = gradients.data[2];
    attention.d_query = gradients.strides[0];
    attention.d_key = gradients.strides[1];
    attention.d_value = gradients.strides[2];
    attention.delta = delta.data<float>();
    std::vector<Buffer *> outputs;
    for (const auto &buffer : gradients.buffers) outputs.push_back(buffer.get());
    outputs.push_back(&dbias);
    outputs.push_back(&dsinks);
    if (!test.run(outputs, [&] { return session_.ops.attention_backward(&attention, session_.memory.stream()); }))
      return;
    const Doubles wanted_dq = expected(shape_.queries, wanted_.dq), wanted_dk = expected(shape_.keys, wanted_.dk),
                  wanted_dv = expected(shape_.keys, wanted_.dv);
    gradients.compare(test, {&wanted_dq, &wanted_dk, &wanted_dv},
                      {&wanted_.dq_scale, &wanted_.dk_scale, &wanted_.dv_scale}, slack(), "dq, dk, dv");
    const size_t of_scores = gradients.buffers.size();
    test.close(shape_.dtype, test.output(of_scores, shape_.dtype), wanted_.dbias, wanted_.dbias_scale, kExact,
               "d_bias");
    if (shape_.change.softmax != OPS_SOFTMAX_LEARNABLE) wanted_.dsinks = untouched(wanted_.dsinks);
    test.close(4, test.output(of_scores + 1, 4), wanted_.dsinks, wanted_.dsinks_scale, kExact, "d_sinks");
  }

 private:
  /* What forward and backward are given alike. */
  struct Common {
    Common(Session &session, const AttentionShape &shape, const AttentionDouble &wanted)
        : queries(session.raw(shape.queries.cu_seqlens())),
          keys(session.raw(shape.keys.cu_seqlens())),
          query_starts(session.raw(shape.queries.starts())),
          key_starts(session.raw(shape.keys.starts())),
          state(session.raw(shape.rng_state)),
          sequences(session.raw(shape.place.sequences)),
          first_queries(session.raw(shape.place.first_queries)),
          first_keys(session.raw(shape.place.first_keys)),
          slopes(session.floats(4, wanted.slopes)),
          bias(session.floats(shape.dtype, wanted.bias)),
          mask(session.raw(std::vector<uint8_t>(wanted.mask.begin(), wanted.mask.end()))),
          sinks(session.floats(4, wanted.sinks)) {}
    Buffer queries, keys, query_starts, key_starts, state, sequences, first_queries, first_keys, slopes, bias, mask, sinks;
  };

  /* Numbers for what the shape does with its scores: some keys far away, some masked, all of a query now and then. */
  void draw_scores() {
    const ScoreChange &change = shape_.change;
    Random &random = session_.random;
    wanted_.slopes = random.normal(kFormats[0], change.alibi_sequences * shape_.queries.heads);
    for (double &slope : wanted_.slopes) slope /= 16; /* far keys then do not underflow */
    wanted_.bias = random.normal(format_, static_cast<int64_t>(elements(shape_.bias())));
    if (!wanted_.bias.empty()) wanted_.bias[wanted_.bias.size() / 3] = -INFINITY;
    const OpsScoreShape mask = shape_.mask();
    for (size_t i = 0; i < elements(mask); ++i) {
      const int64_t query = static_cast<int64_t>(i) / mask.keys % mask.queries;
      wanted_.mask.push_back(query % 7 == 3 || random.below(3) == 0 ? 1 : 0);
    }
    wanted_.sinks = random.normal(kFormats[0], shape_.queries.heads);
  }

  static constexpr double kExact = 8; /* FP32 roundings of the terms */

  /* Of sums of weighted rows: tensor cores multiply weights that were rounded to 16 bits, or to two numbers of 16 bits. */
  double slack() const {
    const bool mma = shape_.dtype != 4 && shape_.dropout == 0 && shape_.head_dim == shape_.value_dim &&
                     shape_.head_dim <= 128;
    const bool one = shape_.head_dim <= 32 && !changes_scores();
    const double rounding = (one ? 1 : format_.roundoff()) * format_.roundoff() / kFormats[0].roundoff();
    return mma ? kExact + 1.5 * rounding : kExact;
  }

  bool changes_scores() const {
    const ScoreChange &change = shape_.change;
    return change.softcap > 0 || change.alibi_sequences + change.bias_sequences + change.mask_sequences > 0 ||
           change.softmax != OPS_SOFTMAX_VANILLA;
  }

  static Doubles untouched(const Doubles &like) { return Doubles(like.size(), AttentionDouble::kUntouched); }

  /* What must be there in the end: elements of tokens that belong to no row keep what they had. */
  static Doubles expected(const AttentionSide &side, const Doubles &values) {
    Doubles all = untouched(values);
    const size_t width = side.tokens() == 0 ? 1 : values.size() / static_cast<size_t>(side.tokens());
    for (size_t i = 0; i < values.size(); ++i)
      if (side.is_row(static_cast<int64_t>(i / width))) all[i] = values[i];
    return all;
  }

  OpsAttention describe(const Triple &inputs, const Buffer &o, const Buffer &sums, const Common &common) const {
    OpsAttention attention = {};
    attention.q = inputs.data[0];
    attention.k = inputs.data[1];
    attention.v = inputs.data[2];
    attention.o = o.data();
    attention.log_sum_exp = sums.data<float>();
    attention.cu_seqlens_q = common.queries.data<int32_t>();
    attention.cu_seqlens_kv = common.keys.data<int32_t>();
    attention.rng_state = shape_.dropout > 0 ? common.state.data<int64_t>() : nullptr;
    attention.query = inputs.strides[0];
    attention.key = inputs.strides[1];
    attention.value = inputs.strides[2];
    attention.output = shape_.queries.strides(shape_.queries.heads * shape_.value_dim, shape_.value_dim);
    attention.statistics = shape_.statistics();
    attention.sequences = shape_.queries.batch();
    attention.length = shape_.queries.length;
    attention.kv_length = shape_.keys.length;
    attention.heads = shape_.queries.heads;
    attention.kv_heads = shape_.keys.heads;
    attention.head_dim = shape_.head_dim;
    attention.value_dim = shape_.value_dim;
    attention.window_left = shape_.left;
    attention.window_right = shape_.right;
    attention.scale = static_cast<float>(shape_.scale());
    attention.dropout = shape_.dropout;
    attention.alignment = shape_.alignment;
    attention.dtype = shape_.dtype;
    attention.packed = shape_.queries.packed();
    attention.kv_packed = shape_.keys.packed();
    if (shape_.queries.gap > 0) attention.cu_seqlens_q_padded = common.query_starts.data<int32_t>();
    if (shape_.keys.gap > 0) attention.cu_seqlens_kv_padded = common.key_starts.data<int32_t>();
    describe_scores(attention.scores, common);
    describe_place(attention.place, common);
    return attention;
  }

  void describe_place(OpsPlace &place, const Common &common) const {
    const WholePlace &whole = shape_.place;
    place.heads = whole.heads;
    place.first_head = whole.first_head;
    if (!whole.sequences.empty()) place.sequences = common.sequences.data<int32_t>();
    if (!whole.first_queries.empty()) place.first_queries = common.first_queries.data<int32_t>();
    if (!whole.first_keys.empty()) place.first_keys = common.first_keys.data<int32_t>();
  }

  void describe_scores(OpsScores &scores, const Common &common) const {
    const ScoreChange &change = shape_.change;
    scores.softcap = change.softcap;
    scores.alibi_slopes = change.alibi_sequences > 0 ? common.slopes.data<float>() : nullptr;
    scores.alibi_sequences = change.alibi_sequences;
    scores.alibi_alignment = change.alibi_alignment;
    scores.bias = change.bias_sequences > 0 ? common.bias.data() : nullptr;
    scores.bias_shape = shape_.bias();
    scores.bias_type = change.bias_type;
    scores.mask = change.mask_sequences > 0 ? common.mask.data<uint8_t>() : nullptr;
    scores.mask_shape = shape_.mask();
    scores.softmax_type = change.softmax;
    scores.sinks = change.softmax == OPS_SOFTMAX_LEARNABLE ? common.sinks.data<float>() : nullptr;
  }

  Session &session_;
  const AttentionShape &shape_;
  const Format &format_;
  AttentionDouble wanted_;
};

inline void attention_case(Session &session, const AttentionShape &shape) {
  if (session.attention_cases++ % session.every != 0) return;
  AttentionCase both(session, shape);
  both.forward();
  both.backward();
}

inline AttentionSide side(TokenOrder order, int64_t heads, std::vector<int64_t> lengths) {
  AttentionSide result;
  result.order = order;
  result.heads = heads;
  result.lengths = std::move(lengths);
  for (int64_t length : result.lengths) result.length = std::max(result.length, length);
  return result;
}

/* Keys as many and in the same places as queries. */
inline AttentionShape packed(int dtype, int64_t heads, int64_t head_dim, std::vector<int64_t> lengths) {
  AttentionShape shape;
  shape.dtype = dtype;
  shape.queries = shape.keys = side(TokenOrder::kPacked, heads, std::move(lengths));
  shape.head_dim = shape.value_dim = head_dim;
  return shape;
}

inline AttentionShape dense(int dtype, TokenOrder order, int64_t heads, int64_t head_dim, int64_t length,
                     std::vector<int64_t> lengths) {
  AttentionShape shape = packed(dtype, heads, head_dim, std::move(lengths));
  shape.queries.order = shape.keys.order = order;
  shape.queries.length = shape.keys.length = length;
  return shape;
}

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_ATTENTION_H */

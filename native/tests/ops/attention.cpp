/* Attention, forward and backward, against double precision. */
#include "attention_triple.h"

namespace chagres::tests {

namespace {

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
    wanted_.forward();
  }

  void forward() {
    Case test(session_, "attention_forward", shape_.dtype, shape_.text());
    const Triple inputs(session_, shape_, shape_.inputs, {&wanted_.q, &wanted_.k, &wanted_.v});
    Buffer o = session_.floats(shape_.dtype, untouched(wanted_.o), shape_.offset);
    Buffer sums = session_.floats(4, untouched(wanted_.log_sum_exp));
    const Common common(session_, shape_);
    OpsAttention attention = describe(inputs, o, sums, common);
    if (!test.run({&o, &sums}, [&] { return session_.ops.attention_forward(&attention, session_.memory.stream()); }))
      return;
    test.close(shape_.dtype, test.output(0, shape_.dtype), expected(shape_.queries, wanted_.o), wanted_.o_scale, slack(),
               "o");
    test.close(4, test.output(1, 4), wanted_.log_sum_exp, wanted_.sum_scale, 8, "log_sum_exp");
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
    const Common common(session_, shape_);
    OpsAttention attention = describe(inputs, o, sums, common);
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
    if (!test.run(outputs, [&] { return session_.ops.attention_backward(&attention, session_.memory.stream()); }))
      return;
    const Doubles wanted_dq = expected(shape_.queries, wanted_.dq), wanted_dk = expected(shape_.keys, wanted_.dk),
                  wanted_dv = expected(shape_.keys, wanted_.dv);
    gradients.compare(test, {&wanted_dq, &wanted_dk, &wanted_dv},
                      {&wanted_.dq_scale, &wanted_.dk_scale, &wanted_.dv_scale}, slack(), "dq, dk, dv");
  }

 private:
  /* What forward and backward are given alike. */
  struct Common {
    Common(Session &session, const AttentionShape &shape)
        : queries(session.raw(shape.queries.cu_seqlens())),
          keys(session.raw(shape.keys.cu_seqlens())),
          state(session.raw(shape.rng_state)) {}
    Buffer queries, keys, state;
  };

  /* In FP32 roundings of the terms. Tensor cores multiply weights that were rounded to 16 bits. */
  double slack() const {
    const bool narrow = shape_.dtype != 4 && shape_.dropout == 0 && shape_.head_dim == shape_.value_dim &&
                        shape_.head_dim <= 32;
    return narrow ? 8 + 1.5 * format_.roundoff() / kFormats[0].roundoff() : 8;
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
    return attention;
  }

  Session &session_;
  const AttentionShape &shape_;
  const Format &format_;
  AttentionDouble wanted_;
};

void attention_case(Session &session, const AttentionShape &shape) {
  AttentionCase both(session, shape);
  both.forward();
  both.backward();
}

AttentionSide side(TokenOrder order, int64_t heads, std::vector<int64_t> lengths) {
  AttentionSide result;
  result.order = order;
  result.heads = heads;
  result.lengths = std::move(lengths);
  for (int64_t length : result.lengths) result.length = std::max(result.length, length);
  return result;
}

/* Keys as many and in the same places as queries. */
AttentionShape packed(int dtype, int64_t heads, int64_t head_dim, std::vector<int64_t> lengths) {
  AttentionShape shape;
  shape.dtype = dtype;
  shape.queries = shape.keys = side(TokenOrder::kPacked, heads, std::move(lengths));
  shape.head_dim = shape.value_dim = head_dim;
  return shape;
}

AttentionShape dense(int dtype, TokenOrder order, int64_t heads, int64_t head_dim, int64_t length,
                     std::vector<int64_t> lengths) {
  AttentionShape shape = packed(dtype, heads, head_dim, std::move(lengths));
  shape.queries.order = shape.keys.order = order;
  shape.queries.length = shape.keys.length = length;
  return shape;
}

/* Every head dimension's kernel at its edges. */
void head_cases(Session &session, int dtype) {
  for (int64_t head_dim : {8, 16, 24, 32, 40, 64, 72, 128, 200, 256}) {
    AttentionShape shape = packed(dtype, 2, head_dim, {63, 0, 1, 65});
    shape.inputs = shape.gradients = head_dim % 16 == 0 ? Together::kAll : Together::kNone;
    attention_case(session, shape);
    shape.left = 5;
    shape.right = 0;
    shape.dropout = 0.25f;
    attention_case(session, shape);
  }
}

void length_cases(Session &session, int dtype) {
  for (int64_t length : {1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 200}) {
    AttentionShape shape = packed(dtype, 1, 16, {length});
    attention_case(session, shape);
    shape.right = 0;
    attention_case(session, shape);
  }
  attention_case(session, packed(dtype, 3, 16, {0, 5, 0, 0, 70, 0}));
  attention_case(session, packed(dtype, 2, 8, {0}));
  AttentionShape shape = packed(dtype, 2, 24, {70, 40});
  shape.queries.length = shape.keys.length = 300; /* an upper bound, with tokens past the last sequence */
  shape.queries.tokens_past = shape.keys.tokens_past = 9;
  shape.inputs = shape.gradients = Together::kAll;
  attention_case(session, shape);
  shape.queries.length = shape.keys.length = 40; /* longer sequences are cut */
  attention_case(session, shape);
}

void window_cases(Session &session, int dtype) {
  for (const auto &[left, right] : std::vector<std::pair<int64_t, int64_t>>{
           {0, 0}, {3, 5}, {-1, 5}, {3, -1}, {64, 64}, {63, 0}, {200, 1}, {INT64_MAX, 0}}) {
    AttentionShape shape = packed(dtype, 1, 32, {129, 10, 64});
    shape.left = left;
    shape.right = right;
    attention_case(session, shape);
    shape = dense(dtype, TokenOrder::kSbhd, 2, 40, 70, {70, 33});
    shape.left = left;
    shape.right = right;
    shape.dropout = 0.5f;
    attention_case(session, shape);
  }
}

void dense_cases(Session &session, int dtype) {
  for (TokenOrder order : {TokenOrder::kBshd, TokenOrder::kSbhd})
    for (Together together : {Together::kNone, Together::kAll}) {
      for (AttentionShape shape :
           {dense(dtype, order, 2, 16, 1, {1, 1, 0}), dense(dtype, order, 3, 24, 65, {65, 1, 0, 64}),
            dense(dtype, order, 1, 128, 140, {3, 139}), dense(dtype, order, 1, 264 - 8, 70, {33, 70})}) {
        shape.inputs = shape.gradients = together;
        shape.right = shape.queries.heads == 3 ? 0 : -1;
        attention_case(session, shape);
      }
    }
}

void odd_cases(Session &session, int dtype) {
  AttentionShape shape = packed(dtype, 2, 40, {70, 7});
  shape.offset = 1; /* no 16-byte boundaries */
  attention_case(session, shape);
  shape.inputs = shape.gradients = Together::kAll;
  shape.dropout = 0.1f;
  shape.rng_state = {-1, (int64_t{1} << 40) - 3}; /* all bits of the seed, both words of the offset */
  attention_case(session, shape);
}

/* Heads that share keys: in one buffer as a grouped projection has them, key and value together, apart. */
void group_cases(Session &session, int dtype) {
  for (const auto &[heads, kv_heads] : std::vector<std::pair<int64_t, int64_t>>{{4, 1}, {6, 2}, {3, 3}})
    for (Together together : {Together::kNone, Together::kKeyValue, Together::kAll}) {
      AttentionShape shape = packed(dtype, heads, 24, {65, 0, 1, 40});
      shape.keys.heads = kv_heads;
      shape.inputs = together;
      shape.gradients = together == Together::kAll ? Together::kNone : Together::kAll; /* other strides */
      shape.right = 0;
      shape.dropout = together == Together::kKeyValue ? 0.25f : 0;
      attention_case(session, shape);
    }
  for (int64_t head_dim : {8, 64, 128, 256}) {
    AttentionShape shape = dense(dtype, TokenOrder::kSbhd, 4, head_dim, 70, {70, 33});
    shape.keys.heads = 2;
    shape.inputs = shape.gradients = Together::kKeyValue;
    attention_case(session, shape);
  }
}

/* Keys of other lengths and places than queries, under every mask; some queries see no key, some keys have no query. */
void cross_cases(Session &session, int dtype) {
  const std::vector<int64_t> queries = {63, 0, 1, 70, 20, 130}, keys = {10, 70, 129, 0, 64, 65};
  const std::vector<std::pair<TokenOrder, TokenOrder>> orders = {{TokenOrder::kPacked, TokenOrder::kPacked},
                                                                 {TokenOrder::kPacked, TokenOrder::kBshd},
                                                                 {TokenOrder::kSbhd, TokenOrder::kPacked},
                                                                 {TokenOrder::kBshd, TokenOrder::kSbhd}};
  const std::vector<std::pair<int64_t, int64_t>> windows = {{-1, -1}, {-1, 0}, {0, 0}, {3, 5}, {-1, 70}, {64, -1}};
  for (OpsAlignment alignment : {OPS_TOP_LEFT, OPS_BOTTOM_RIGHT})
    for (const auto &[left, right] : windows) {
      AttentionShape shape;
      shape.dtype = dtype;
      const auto &[query_order, key_order] = orders[static_cast<size_t>(left + right + 2) % orders.size()];
      shape.queries = side(query_order, 4, queries);
      shape.keys = side(key_order, left == 3 ? 4 : 2, keys);
      shape.head_dim = shape.value_dim = 16;
      shape.left = left;
      shape.right = right;
      shape.alignment = alignment;
      attention_case(session, shape);
      shape.inputs = Together::kKeyValue;
      shape.dropout = 0.3f;
      attention_case(session, shape);
    }
}

/* Values of another width than keys: the wider one chooses the kernel. */
void value_cases(Session &session, int dtype) {
  for (const auto &[head_dim, value_dim] : std::vector<std::pair<int64_t, int64_t>>{
           {8, 16}, {40, 16}, {16, 72}, {128, 64}, {192, 128}, {8, 256}, {256, 8}}) {
    AttentionShape shape = packed(dtype, 4, head_dim, {63, 2, 65});
    shape.keys.heads = 2;
    shape.value_dim = value_dim;
    shape.inputs = shape.gradients = value_dim % 64 == 0 ? Together::kAll : Together::kNone;
    shape.left = 40;
    shape.right = 7;
    attention_case(session, shape);
  }
}

/* No queries, or no keys, in all sequences or by a length of 0: zeros. */
void empty_cases(Session &session, int dtype) {
  for (TokenOrder order : {TokenOrder::kPacked, TokenOrder::kBshd}) {
    AttentionShape shape;
    shape.dtype = dtype;
    shape.queries = side(order, 2, {0, 0});
    shape.keys = side(order, 2, {5, 70});
    attention_case(session, shape);
    shape.keys.tokens_past = 3;
    std::swap(shape.queries, shape.keys);
    attention_case(session, shape);
    shape.queries.length = 10; /* longer than the queries, and shorter than some */
    shape.keys.length = 20;
    shape.alignment = OPS_BOTTOM_RIGHT;
    shape.right = 0;
    attention_case(session, shape);
  }
}

}  // namespace

void attention_cases(Session &session) {
  for (const Format &format : kFormats) {
    head_cases(session, format.dtype);
    odd_cases(session, format.dtype);
    value_cases(session, format.dtype);
    if (format.dtype == 5 && !session.large) continue; /* what follows does not depend on how 16 bits are read */
    length_cases(session, format.dtype);
    window_cases(session, format.dtype);
    dense_cases(session, format.dtype);
    group_cases(session, format.dtype);
    cross_cases(session, format.dtype);
    empty_cases(session, format.dtype);
  }
  if (!session.large) return;
  std::vector<int64_t> lengths;
  for (int i = 0; i < 40; ++i) lengths.push_back(session.random.below(500));
  for (int64_t head_dim : {16, 64, 128}) {
    AttentionShape shape = packed(4, 4, head_dim, lengths);
    shape.inputs = shape.gradients = Together::kAll;
    shape.dropout = 0.1f;
    attention_case(session, shape);
    shape.keys.heads = 2;
    shape.keys.lengths.clear();
    for (int i = 0; i < 40; ++i) shape.keys.lengths.push_back(session.random.below(500));
    shape.keys.length = 500;
    shape.inputs = shape.gradients = Together::kKeyValue;
    shape.alignment = OPS_BOTTOM_RIGHT;
    shape.right = 0;
    attention_case(session, shape);
  }
}

}  // namespace chagres::tests

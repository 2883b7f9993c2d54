/* Attention, forward and backward, against double precision. */
#include "attention_double.h"
#include "harness/report.h"

namespace chagres::tests {

namespace {

/* Doubles that the operation is given or must give, and the buffers that hold them. */
class AttentionCase {
 public:
  AttentionCase(Session &session, const AttentionShape &shape)
      : session_(session), shape_(shape), format_(format_of(shape.dtype)), wanted_(shape) {
    for (Doubles *values : {&wanted_.q, &wanted_.k, &wanted_.v, &wanted_.d_o})
      *values = session.random.normal(format_, shape.elements());
    wanted_.forward();
  }

  void forward() {
    Case test(session_, "attention_forward", shape_.dtype, shape_.text());
    Buffer inputs = session_.floats(shape_.dtype, together(wanted_.q, wanted_.k, wanted_.v), shape_.offset);
    Buffer o = session_.floats(shape_.dtype, untouched(shape_.elements()), shape_.offset);
    Buffer sums = session_.floats(4, untouched(shape_.rows()));
    Buffer lengths = session_.raw(shape_.cu_seqlens()), state = session_.raw(shape_.rng_state);
    OpsAttention attention = describe(inputs, o, sums, lengths, state);
    if (!test.run({&o, &sums}, [&] { return session_.ops.attention_forward(&attention, session_.memory.stream()); }))
      return;
    test.close(shape_.dtype, test.output(0, shape_.dtype), expected(wanted_.o), wanted_.o_scale, 8, "o");
    test.close(4, test.output(1, 4), wanted_.log_sum_exp, wanted_.sum_scale, 8, "log_sum_exp");
  }

  /* Given o and log_sum_exp as exactly as they can be stored. */
  void backward() {
    Case test(session_, "attention_backward", shape_.dtype, shape_.text());
    for (double &value : wanted_.o) value = round_to(format_, value);
    wanted_.backward();
    Doubles stored = wanted_.log_sum_exp;
    for (double &value : stored) value = round_to(kFormats[0], value);
    Buffer inputs = session_.floats(shape_.dtype, together(wanted_.q, wanted_.k, wanted_.v), shape_.offset);
    Buffer gradients =
        session_.floats(shape_.dtype, together(untouched(shape_.elements()), untouched(shape_.elements()),
                                               untouched(shape_.elements())), shape_.offset);
    Buffer o = session_.floats(shape_.dtype, wanted_.o, shape_.offset);
    Buffer d_o = session_.floats(shape_.dtype, wanted_.d_o, shape_.offset);
    Buffer sums = session_.floats(4, stored), delta = session_.floats(4, Doubles(stored.size(), 0));
    Buffer lengths = session_.raw(shape_.cu_seqlens()), state = session_.raw(shape_.rng_state);
    OpsAttention attention = describe(inputs, o, sums, lengths, state);
    attention.d_o = d_o.data();
    attention.dq = part(gradients, 0);
    attention.dk = part(gradients, 1);
    attention.dv = part(gradients, 2);
    attention.delta = delta.data<float>();
    if (!test.run({&gradients}, [&] { return session_.ops.attention_backward(&attention, session_.memory.stream()); }))
      return;
    const Doubles got = test.output(0, shape_.dtype);
    test.close(shape_.dtype, got, together(expected(wanted_.dq), expected(wanted_.dk), expected(wanted_.dv)),
               together(wanted_.dq_scale, wanted_.dk_scale, wanted_.dv_scale), 8, "dq, dk, dv");
  }

 private:
  Doubles untouched(int64_t count) const { return Doubles(static_cast<size_t>(count), AttentionDouble::kUntouched); }

  /* What must be there in the end: elements of tokens that belong to no row keep what they had. */
  Doubles expected(const Doubles &values) const {
    Doubles all = untouched(shape_.elements());
    for (size_t i = 0; i < values.size(); ++i)
      if (shape_.is_row(static_cast<int64_t>(i) / (shape_.heads * shape_.head_dim))) all[i] = values[i];
    return all;
  }

  /* Query, key and value (or their gradients): one after the other, or side by side in each token. */
  Doubles together(const Doubles &a, const Doubles &b, const Doubles &c) const {
    Doubles all;
    const int64_t width = shape_.one_buffer ? shape_.heads * shape_.head_dim : shape_.elements();
    for (int64_t first = 0; width > 0 && first < shape_.elements(); first += width)
      for (const Doubles *values : {&a, &b, &c})
        all.insert(all.end(), values->begin() + first, values->begin() + first + width);
    return all;
  }

  void *part(const Buffer &all, int64_t index) const {
    const int64_t width = shape_.one_buffer ? shape_.heads * shape_.head_dim : shape_.elements();
    return all.data<char>() + index * width * format_.size;
  }

  OpsAttention describe(const Buffer &inputs, const Buffer &o, const Buffer &sums, const Buffer &lengths,
                        const Buffer &state) const {
    OpsAttention attention = {};
    attention.q = part(inputs, 0);
    attention.k = part(inputs, 1);
    attention.v = part(inputs, 2);
    attention.o = o.data();
    attention.log_sum_exp = sums.data<float>();
    attention.cu_seqlens = lengths.data<int32_t>();
    attention.rng_state = shape_.dropout > 0 ? state.data<int64_t>() : nullptr;
    attention.qkv = attention.gradients = shape_.strides(shape_.one_buffer ? 3 : 1);
    attention.output = shape_.strides(1);
    attention.statistics = shape_.statistics();
    attention.sequences = static_cast<int64_t>(shape_.lengths.size());
    attention.length = shape_.length;
    attention.heads = shape_.heads;
    attention.head_dim = shape_.head_dim;
    attention.window_left = shape_.left;
    attention.window_right = shape_.right;
    attention.scale = static_cast<float>(shape_.scale());
    attention.dropout = shape_.dropout;
    attention.dtype = shape_.dtype;
    attention.packed = shape_.order == TokenOrder::kPacked;
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

AttentionShape packed(int dtype, int64_t heads, int64_t head_dim, std::vector<int64_t> lengths) {
  AttentionShape shape;
  shape.dtype = dtype;
  shape.heads = heads;
  shape.head_dim = head_dim;
  shape.lengths = std::move(lengths);
  for (int64_t length : shape.lengths) shape.length = std::max(shape.length, length);
  return shape;
}

AttentionShape dense(int dtype, TokenOrder order, int64_t heads, int64_t head_dim, int64_t length,
                     std::vector<int64_t> lengths) {
  AttentionShape shape = packed(dtype, heads, head_dim, std::move(lengths));
  shape.order = order;
  shape.length = length;
  return shape;
}

/* Every head dimension's kernel at its edges. */
void head_cases(Session &session, int dtype) {
  for (int64_t head_dim : {8, 16, 24, 32, 40, 64, 72, 128, 200, 256}) {
    AttentionShape shape = packed(dtype, 2, head_dim, {63, 0, 1, 65});
    shape.one_buffer = head_dim % 16 == 0;
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
  shape.length = 300; /* an upper bound of the lengths, with tokens past the last sequence */
  shape.tokens_past = 9;
  shape.one_buffer = true;
  attention_case(session, shape);
  shape.length = 40; /* longer sequences are cut */
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
    for (bool one_buffer : {false, true}) {
      for (AttentionShape shape :
           {dense(dtype, order, 2, 16, 1, {1, 1, 0}), dense(dtype, order, 3, 24, 65, {65, 1, 0, 64}),
            dense(dtype, order, 1, 128, 140, {3, 139}), dense(dtype, order, 1, 264 - 8, 70, {33, 70})}) {
        shape.one_buffer = one_buffer;
        shape.right = shape.heads == 3 ? 0 : -1;
        attention_case(session, shape);
      }
    }
}

void odd_cases(Session &session, int dtype) {
  AttentionShape shape = packed(dtype, 2, 40, {70, 7});
  shape.offset = 1; /* no 16-byte boundaries */
  attention_case(session, shape);
  shape.one_buffer = true;
  shape.dropout = 0.1f;
  shape.rng_state = {-1, (int64_t{1} << 40) - 3}; /* all bits of the seed, both words of the offset */
  attention_case(session, shape);
}

}  // namespace

void attention_cases(Session &session) {
  for (const Format &format : kFormats) {
    head_cases(session, format.dtype);
    odd_cases(session, format.dtype);
    if (format.dtype != 4 && !session.large) continue; /* what follows does not depend on how 16 bits are read */
    length_cases(session, format.dtype);
    window_cases(session, format.dtype);
    dense_cases(session, format.dtype);
  }
  if (!session.large) return;
  std::vector<int64_t> lengths;
  for (int i = 0; i < 40; ++i) lengths.push_back(session.random.below(500));
  for (int64_t head_dim : {16, 64, 128}) {
    AttentionShape shape = packed(4, 4, head_dim, lengths);
    shape.one_buffer = true;
    shape.dropout = 0.1f;
    attention_case(session, shape);
  }
}

}  // namespace chagres::tests

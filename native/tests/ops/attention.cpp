/* Attention, forward and backward, against double precision. */
#include "attention.h"

namespace chagres::tests {

namespace {

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
  AttentionShape shape = packed(dtype, 2, 16, {5, 70});
  shape.queries.heads = 0; /* no head reads the keys */
  attention_case(session, shape);
}

/* Some of a whole: dropout draws by the numbers of the whole, and a mask may count from them. */
void place_cases(Session &session, int dtype) {
  for (int64_t head_dim : {16, 128}) {
    AttentionShape shape = packed(dtype, 2, head_dim, {70, 5, 0, 33});
    shape.dropout = 0.3f;
    shape.place.heads = 7;
    shape.place.first_head = 4;
    attention_case(session, shape); /* heads alone */
    shape.keys = side(TokenOrder::kPacked, 1, {100, 9, 3, 66});
    shape.place.sequences = {3, 4, 9, 10};
    shape.place.first_queries = {0, 41, 7, 65};
    shape.place.first_keys = {1, 38, 4, 131};
    attention_case(session, shape);
    shape.alignment = OPS_BY_PLACE;
    for (const auto &[left, right] : std::vector<std::pair<int64_t, int64_t>>{{-1, 0}, {5, 3}, {90, -1}, {INT64_MAX, 0}}) {
      shape.left = left;
      shape.right = right;
      attention_case(session, shape);
    }
    shape.dropout = 0; /* 16-bit heads then run on tensor cores */
    shape.place.first_keys.clear();
    shape.place.first_queries = {30, 4, 0, 33};
    attention_case(session, shape);
    shape.place.first_queries.clear();
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
    place_cases(session, format.dtype);
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

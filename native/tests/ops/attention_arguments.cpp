/* Bad arguments of attention: status and text, nothing written; and sizes of zero, which are no error. */
#include <cstring>
#include <functional>

#include "harness/report.h"

namespace chagres::tests {

namespace {

/* Arguments that are right, with pointers that nothing gets to follow. */
OpsAttention good() {
  void *const p = reinterpret_cast<void *>(uintptr_t{0x1000});
  OpsAttention attention = {};
  attention.q = attention.k = attention.v = attention.d_o = p;
  attention.o = attention.dq = attention.dk = attention.dv = p;
  attention.log_sum_exp = attention.delta = static_cast<float *>(p);
  attention.cu_seqlens_q = attention.cu_seqlens_kv = static_cast<int32_t *>(p);
  attention.rng_state = static_cast<int64_t *>(p);
  attention.query = attention.key = attention.value = attention.output = {256, 16, 8};
  attention.d_query = attention.d_key = attention.d_value = attention.query;
  attention.statistics = {32, 1, 16};
  attention.sequences = 3;
  attention.length = attention.kv_length = 16;
  attention.heads = attention.kv_heads = 2;
  attention.head_dim = attention.value_dim = 8;
  attention.window_left = attention.window_right = -1;
  attention.scale = 1;
  attention.dropout = 0.5f;
  attention.dtype = 4;
  return attention;
}

struct Mistake {
  std::function<void(OpsAttention &)> make;
  const char *text; /* after the function's name */
};

template <class T>
T *odd() {
  return reinterpret_cast<T *>(uintptr_t{0x1002});
}

/* Gives `a` a bias; the shape may be changed. */
OpsScoreShape &with_bias(OpsAttention &a) {
  a.scores.bias = a.q;
  a.scores.bias_shape = {1, 1, 16, 16};
  return a.scores.bias_shape;
}

const Mistake kOfBoth[] = {
    {[](OpsAttention &a) { a.dtype = 2; }, "dtype is 2; expected 4 (float32), 5 (float16) or 6 (bfloat16)"},
    {[](OpsAttention &a) { a.packed = 2; }, "packed is 2; expected 0 to 1"},
    {[](OpsAttention &a) { a.kv_packed = -1; }, "kv_packed is -1; expected 0 to 1"},
    {[](OpsAttention &a) { a.alignment = 3; }, "alignment is 3; expected 0 to 2"},
    {[](OpsAttention &a) { a.place.heads = 1; }, "place.heads is 1; expected 2 to 2147483647"},
    {[](OpsAttention &a) { a.place.first_head = 1; }, "place.first_head is 1; expected 0 to 0"},
    {[](OpsAttention &a) { a.place.heads = 8, a.place.first_head = 7; }, "place.first_head is 7; expected 0 to 6"},
    {[](OpsAttention &a) { a.place.sequences = odd<int32_t>(); },
     "place.sequences is 0x1002; expected a multiple of 4 bytes"},
    {[](OpsAttention &a) { a.place.first_queries = odd<int32_t>(); },
     "place.first_queries is 0x1002; expected a multiple of 4 bytes"},
    {[](OpsAttention &a) { a.place.first_keys = odd<int32_t>(); },
     "place.first_keys is 0x1002; expected a multiple of 4 bytes"},
    {[](OpsAttention &a) { a.sequences = -1; }, "sequences is -1; expected 0 to 2147483647"},
    {[](OpsAttention &a) { a.length = -1; }, "length is -1; expected 0 to 536870911"},
    {[](OpsAttention &a) { a.kv_length = INT32_MAX; }, "kv_length is 2147483647; expected 0 to 536870911"},
    {[](OpsAttention &a) { a.heads = -2; }, "heads is -2; expected 0 to 2147483647"},
    {[](OpsAttention &a) { a.kv_heads = 0; }, "kv_heads is 0; expected 1 to 2147483647"},
    {[](OpsAttention &a) { a.heads = 5; }, "heads is 5; expected a multiple of kv_heads 2"},
    {[](OpsAttention &a) { a.heads = 1; }, "heads is 1; expected a multiple of kv_heads 2"},
    {[](OpsAttention &a) { a.head_dim = 0; }, "head_dim is 0; expected 8 to 256"},
    {[](OpsAttention &a) { a.head_dim = 264; }, "head_dim is 264; expected 8 to 256"},
    {[](OpsAttention &a) { a.head_dim = 12; }, "head_dim is 12; expected a multiple of 8"},
    {[](OpsAttention &a) { a.value_dim = 512; }, "value_dim is 512; expected 8 to 256"},
    {[](OpsAttention &a) { a.value_dim = 20; }, "value_dim is 20; expected a multiple of 8"},
    {[](OpsAttention &a) { a.window_left = -2; }, "window_left is -2; expected -1 or more"},
    {[](OpsAttention &a) { a.window_right = -9; }, "window_right is -9; expected -1 or more"},
    {[](OpsAttention &a) { a.dropout = 1; }, "dropout is 1; expected at least 0 and below 1"},
    {[](OpsAttention &a) { a.dropout = std::nanf(""); }, "dropout is nan; expected at least 0 and below 1"},
    {[](OpsAttention &a) { a.scale = 0; }, "scale is 0; expected a finite number above 0"},
    {[](OpsAttention &a) { a.scale = INFINITY; }, "scale is inf; expected a finite number above 0"},
    {[](OpsAttention &a) { a.scale = std::nanf(""); }, "scale is nan; expected a finite number above 0"},
    {[](OpsAttention &a) { a.heads = a.sequences = INT32_MAX - 1; },
     "sequences * heads * length / 32 is too large; expected at most 2147483647"},
    {[](OpsAttention &a) { a.kv_length = INT32_MAX / 4, a.sequences = 100; },
     "sequences * kv_heads * kv_length / 32 is too large; expected at most 2147483647"},
    {[](OpsAttention &a) { a.query.sequence = -1; }, "query.sequence is -1; expected 0 or more"},
    {[](OpsAttention &a) { a.key.token = -1; }, "key.token is -1; expected 0 or more"},
    {[](OpsAttention &a) { a.value.head = -1; }, "value.head is -1; expected 0 or more"},
    {[](OpsAttention &a) { a.output.token = -1; }, "output.token is -1; expected 0 or more"},
    {[](OpsAttention &a) { a.statistics.head = -1; }, "statistics.head is -1; expected 0 or more"},
    {[](OpsAttention &a) { a.query.token = INT64_MAX / 64; },
     "query.token is too large; expected a product of sizes in bytes below 2^63"},
    {[](OpsAttention &a) { a.q = nullptr; }, "q is null; expected a device pointer"},
    {[](OpsAttention &a) { a.k = nullptr; }, "k is null; expected a device pointer"},
    {[](OpsAttention &a) { a.v = reinterpret_cast<void *>(uintptr_t{0x1002}); },
     "v is 0x1002; expected a multiple of 4 bytes"},
    {[](OpsAttention &a) { a.o = nullptr; }, "o is null; expected a device pointer"},
    {[](OpsAttention &a) { a.log_sum_exp = nullptr; }, "log_sum_exp is null; expected a device pointer"},
    {[](OpsAttention &a) { a.cu_seqlens_q = nullptr; }, "cu_seqlens_q is null; expected a device pointer"},
    {[](OpsAttention &a) { a.cu_seqlens_kv = nullptr; }, "cu_seqlens_kv is null; expected a device pointer"},
    {[](OpsAttention &a) { a.rng_state = nullptr; }, "rng_state is null; expected a device pointer"},
    {[](OpsAttention &a) { a.packed = 1, a.cu_seqlens_q_padded = odd<int32_t>(); },
     "cu_seqlens_q_padded is 0x1002; expected a multiple of 4 bytes"},
    {[](OpsAttention &a) { a.kv_packed = 1, a.cu_seqlens_kv_padded = odd<int32_t>(); },
     "cu_seqlens_kv_padded is 0x1002; expected a multiple of 4 bytes"},
    {[](OpsAttention &a) { a.scores.softcap = -1; }, "scores.softcap is -1; expected 0 or a finite number above 0"},
    {[](OpsAttention &a) { a.scores.softcap = INFINITY; },
     "scores.softcap is inf; expected 0 or a finite number above 0"},
    {[](OpsAttention &a) { a.scores.softcap = std::nanf(""); },
     "scores.softcap is nan; expected 0 or a finite number above 0"},
    {[](OpsAttention &a) { a.scores.alibi_alignment = 2; }, "scores.alibi_alignment is 2; expected 0 to 1"},
    {[](OpsAttention &a) { a.scores.softmax_type = 3; }, "scores.softmax_type is 3; expected 0 to 2"},
    {[](OpsAttention &a) { a.scores.softmax_type = OPS_SOFTMAX_LEARNABLE; },
     "scores.sinks is null; expected a device pointer"},
    {[](OpsAttention &a) { a.scores.alibi_slopes = odd<float>(), a.scores.alibi_sequences = 2; },
     "scores.alibi_sequences is 2; expected 1 or sequences 3"},
    {[](OpsAttention &a) { a.scores.alibi_slopes = odd<float>(), a.scores.alibi_sequences = 3; },
     "scores.alibi_slopes is 0x1002; expected a multiple of 4 bytes"},
    {[](OpsAttention &a) { with_bias(a), a.scores.bias_type = 2; }, "scores.bias_type is 2; expected 0 to 1"},
    {[](OpsAttention &a) { with_bias(a).sequences = 2; },
     "scores.bias_shape.sequences is 2; expected 1 or sequences 3"},
    {[](OpsAttention &a) { with_bias(a).heads = 0; }, "scores.bias_shape.heads is 0; expected 1 or heads 2"},
    {[](OpsAttention &a) { with_bias(a).queries = 15; },
     "scores.bias_shape.queries is 15; expected 16 to 536870911"},
    {[](OpsAttention &a) { with_bias(a).keys = 0; }, "scores.bias_shape.keys is 0; expected 16 to 536870911"},
    {[](OpsAttention &a) { with_bias(a) = {1, 1, INT32_MAX / 4, INT32_MAX / 4}; },
     "scores.bias_shape is too large; expected at most 2147483647 blocks of 32 queries by 64 keys"},
    {[](OpsAttention &a) { with_bias(a), a.scores.bias = odd<void>(); },
     "scores.bias is 0x1002; expected a multiple of 4 bytes"},
    {[](OpsAttention &a) { a.scores.mask = odd<uint8_t>(), a.scores.mask_shape = {1, 1, 16, 9}; },
     "scores.mask_shape.keys is 9; expected 16 to 536870911"}};

const Mistake kOfBackward[] = {
    {[](OpsAttention &a) { a.d_query.head = -1; }, "d_query.head is -1; expected 0 or more"},
    {[](OpsAttention &a) { a.d_key.token = -1; }, "d_key.token is -1; expected 0 or more"},
    {[](OpsAttention &a) { a.d_value.sequence = -1; }, "d_value.sequence is -1; expected 0 or more"},
    {[](OpsAttention &a) { a.d_o = nullptr; }, "d_o is null; expected a device pointer"},
    {[](OpsAttention &a) { a.dq = nullptr; }, "dq is null; expected a device pointer"},
    {[](OpsAttention &a) { a.dk = nullptr; }, "dk is null; expected a device pointer"},
    {[](OpsAttention &a) { a.dv = nullptr; }, "dv is null; expected a device pointer"},
    {[](OpsAttention &a) { a.delta = nullptr; }, "delta is null; expected a device pointer"},
    {[](OpsAttention &a) { with_bias(a), a.scores.d_bias = odd<void>(); },
     "scores.d_bias is 0x1002; expected a multiple of 4 bytes"},
    {[](OpsAttention &a) {
       a.scores.softmax_type = OPS_SOFTMAX_LEARNABLE, a.scores.sinks = static_cast<float *>(a.dq);
       a.scores.d_sinks = odd<float>();
     },
     "scores.d_sinks is 0x1002; expected a multiple of 4 bytes"}};

using Call = decltype(&ops_attention_forward);

void refused(Session &session, Call call, const char *function, const Mistake &mistake) {
  const std::string text = std::string(function) + ": " + mistake.text;
  Case test(session, "arguments", 4, text);
  OpsAttention attention = good();
  mistake.make(attention);
  const int status = call(&attention, nullptr);
  if (status != OPS_INVALID_ARGUMENT) test.fail("status " + std::to_string(status));
  if (text != session.ops.last_error()) test.fail(std::string("the text is: ") + session.ops.last_error());
}

/* No tensors, and sizes that leave nothing to write. */
void nothing(Session &session, Call call, const std::function<void(OpsAttention &)> &shrink) {
  Case test(session, "arguments", 4, "attention to nothing");
  OpsAttention attention = {};
  attention.head_dim = attention.value_dim = 8;
  attention.scale = 1;
  attention.dtype = 4;
  attention.sequences = attention.length = attention.kv_length = attention.heads = attention.kv_heads = 2;
  shrink(attention);
  if (call(&attention, nullptr) != OPS_SUCCESS) test.fail(std::string("refused: ") + session.ops.last_error());
}

/* One side is empty: its tensors may be null, those of the other side may not. */
void one_empty_side(Session &session) {
  const auto told = [&](Call call, const std::string &function, int64_t length, int64_t kv_length) {
    const std::string text = function + ": cu_seqlens_q is null; expected a device pointer";
    Case test(session, "arguments", 4, text);
    OpsAttention attention = good();
    attention.length = length;
    attention.kv_length = kv_length;
    (length == 0 ? attention.q : attention.k) = nullptr;
    attention.cu_seqlens_q = nullptr;
    const int status = call(&attention, nullptr);
    if (status != OPS_INVALID_ARGUMENT) test.fail("status " + std::to_string(status));
    if (text != session.ops.last_error()) test.fail(std::string("the text is: ") + session.ops.last_error());
  };
  told(session.ops.attention_forward, "ops_attention_forward", 16, 0);
  told(session.ops.attention_backward, "ops_attention_backward", 0, 16);
}

/* Without heads nothing adds to the gradient of a bias that all heads share. */
void no_heads(Session &session) {
  Case test(session, "attention_backward", 4, "no heads, d_bias");
  Buffer offsets = session.raw(std::vector<int32_t>{0, 8, 16, 16});
  Buffer bias = session.floats(4, Doubles(256, 1)), gradient = session.floats(4, Doubles(256, NAN));
  OpsAttention attention = good();
  attention.heads = attention.kv_heads = 0;
  attention.dropout = 0;
  attention.cu_seqlens_q = attention.cu_seqlens_kv = offsets.data<int32_t>();
  with_bias(attention);
  attention.scores.bias = bias.data();
  attention.scores.d_bias = gradient.data();
  if (test.run({&gradient}, [&] { return session.ops.attention_backward(&attention, session.memory.stream()); }))
    test.equal(test.output(0, 4), Doubles(256, 0), "d_bias");
}

}  // namespace

void attention_argument_cases(Session &session) {
  const Ops &ops = session.ops;
  for (const Mistake &mistake : kOfBoth) {
    refused(session, ops.attention_forward, "ops_attention_forward", mistake);
    refused(session, ops.attention_backward, "ops_attention_backward", mistake);
  }
  for (const Mistake &mistake : kOfBackward)
    refused(session, ops.attention_backward, "ops_attention_backward", mistake);
  Case test(session, "arguments", 4, "no struct");
  if (ops.attention_forward(nullptr, nullptr) != OPS_INVALID_ARGUMENT ||
      strcmp(ops.last_error(), "ops_attention_forward: attention is null; expected a host struct") != 0)
    test.fail(ops.last_error());
  for (const Call call : {ops.attention_forward, ops.attention_backward}) {
    nothing(session, call, [](OpsAttention &a) { a.sequences = 0; });
    nothing(session, call, [](OpsAttention &a) { a.length = a.kv_length = 0; });
    nothing(session, call, [](OpsAttention &a) { a.heads = a.kv_heads = 0; });
  }
  nothing(session, ops.attention_forward, [](OpsAttention &a) { a.length = 0; });
  one_empty_side(session);
  no_heads(session);
}

}  // namespace chagres::tests

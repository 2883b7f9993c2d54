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
  attention.cu_seqlens = static_cast<int32_t *>(p);
  attention.rng_state = static_cast<int64_t *>(p);
  attention.qkv = attention.output = attention.gradients = {256, 16, 8};
  attention.statistics = {32, 1, 16};
  attention.sequences = 3;
  attention.length = 16;
  attention.heads = 2;
  attention.head_dim = 8;
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

const Mistake kOfBoth[] = {
    {[](OpsAttention &a) { a.dtype = 2; }, "dtype is 2; expected 4 (float32), 5 (float16) or 6 (bfloat16)"},
    {[](OpsAttention &a) { a.packed = 2; }, "packed is 2; expected 0 to 1"},
    {[](OpsAttention &a) { a.sequences = -1; }, "sequences is -1; expected 0 to 2147483647"},
    {[](OpsAttention &a) { a.length = -1; }, "length is -1; expected 0 to 536870911"},
    {[](OpsAttention &a) { a.heads = -2; }, "heads is -2; expected 0 to 2147483647"},
    {[](OpsAttention &a) { a.head_dim = 0; }, "head_dim is 0; expected 8 to 256"},
    {[](OpsAttention &a) { a.head_dim = 264; }, "head_dim is 264; expected 8 to 256"},
    {[](OpsAttention &a) { a.head_dim = 12; }, "head_dim is 12; expected a multiple of 8"},
    {[](OpsAttention &a) { a.window_left = -2; }, "window_left is -2; expected -1 or more"},
    {[](OpsAttention &a) { a.window_right = -9; }, "window_right is -9; expected -1 or more"},
    {[](OpsAttention &a) { a.dropout = 1; }, "dropout is 1; expected at least 0 and below 1"},
    {[](OpsAttention &a) { a.dropout = std::nanf(""); }, "dropout is nan; expected at least 0 and below 1"},
    {[](OpsAttention &a) { a.scale = 0; }, "scale is 0; expected a finite number above 0"},
    {[](OpsAttention &a) { a.scale = INFINITY; }, "scale is inf; expected a finite number above 0"},
    {[](OpsAttention &a) { a.scale = std::nanf(""); }, "scale is nan; expected a finite number above 0"},
    {[](OpsAttention &a) { a.heads = a.sequences = INT32_MAX; },
     "sequences * heads * length / 32 is too large; expected at most 2147483647"},
    {[](OpsAttention &a) { a.qkv.sequence = -1; }, "qkv.sequence is -1; expected 0 or more"},
    {[](OpsAttention &a) { a.output.token = -1; }, "output.token is -1; expected 0 or more"},
    {[](OpsAttention &a) { a.statistics.head = -1; }, "statistics.head is -1; expected 0 or more"},
    {[](OpsAttention &a) { a.qkv.token = INT64_MAX / 64; },
     "qkv.token is too large; expected a product of sizes in bytes below 2^63"},
    {[](OpsAttention &a) { a.q = nullptr; }, "q is null; expected a device pointer"},
    {[](OpsAttention &a) { a.k = nullptr; }, "k is null; expected a device pointer"},
    {[](OpsAttention &a) { a.v = reinterpret_cast<void *>(uintptr_t{0x1002}); },
     "v is 0x1002; expected a multiple of 4 bytes"},
    {[](OpsAttention &a) { a.o = nullptr; }, "o is null; expected a device pointer"},
    {[](OpsAttention &a) { a.log_sum_exp = nullptr; }, "log_sum_exp is null; expected a device pointer"},
    {[](OpsAttention &a) { a.cu_seqlens = nullptr; }, "cu_seqlens is null; expected a device pointer"},
    {[](OpsAttention &a) { a.rng_state = nullptr; }, "rng_state is null; expected a device pointer"}};

const Mistake kOfBackward[] = {
    {[](OpsAttention &a) { a.gradients.head = -1; }, "gradients.head is -1; expected 0 or more"},
    {[](OpsAttention &a) { a.d_o = nullptr; }, "d_o is null; expected a device pointer"},
    {[](OpsAttention &a) { a.dq = nullptr; }, "dq is null; expected a device pointer"},
    {[](OpsAttention &a) { a.dk = nullptr; }, "dk is null; expected a device pointer"},
    {[](OpsAttention &a) { a.dv = nullptr; }, "dv is null; expected a device pointer"},
    {[](OpsAttention &a) { a.delta = nullptr; }, "delta is null; expected a device pointer"}};

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

void nothing(Session &session, Call call) {
  Case test(session, "arguments", 4, "attention to nothing");
  for (int i = 0; i < 3; ++i) {
    OpsAttention attention = {};
    attention.head_dim = 8;
    attention.scale = 1;
    attention.dtype = 4;
    attention.sequences = i == 0 ? 0 : 2;
    attention.length = i == 1 ? 0 : 2;
    attention.heads = i == 2 ? 0 : 2;
    if (call(&attention, nullptr) != OPS_SUCCESS) test.fail(std::string("refused: ") + session.ops.last_error());
  }
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
  nothing(session, ops.attention_forward);
  nothing(session, ops.attention_backward);
}

}  // namespace chagres::tests

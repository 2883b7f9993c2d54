/* Operations: attention, over the mathematics that fused attention has. */
#include "../ops/attention_checks.h"
#include "attention.h"
#include "operations.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

AttentionTensor tensor_of(const void *data, int dtype, const OpsStrides &strides, const OpsAttention &attention) {
  AttentionTensor tensor;
  tensor.data = const_cast<void *>(data);
  tensor.dtype = as_dtype(dtype);
  tensor.sequence_stride = strides.sequence;
  tensor.token_stride = strides.token;
  tensor.head_stride = strides.head;
  tensor.first_token = attention.packed != 0 ? attention.cu_seqlens : nullptr;
  return tensor;
}

AttentionProblem problem_of(const OpsAttention &attention) {
  AttentionProblem problem;
  problem.heads = problem.kv_heads = attention.heads;
  problem.dim_qk = problem.dim_v = attention.head_dim;
  for (int64_t b = 0; b < attention.sequences; ++b) {
    const int64_t tokens = int64_t{attention.cu_seqlens[b + 1]} - attention.cu_seqlens[b];
    const int64_t length = std::clamp<int64_t>(tokens, 0, attention.length);
    const int64_t rows = attention.packed != 0 ? length : attention.length;
    problem.lengths.push_back({length, length, rows, rows});
  }
  /* A window at least as long as the sequences is no window. */
  const auto side = [&](int64_t window) { return window >= attention.length ? -1 : window; };
  problem.band = {side(attention.window_left), side(attention.window_right), false};
  problem.scale = attention.scale;
  if (attention.dropout > 0)
    problem.dropout = {attention.dropout, static_cast<uint64_t>(attention.rng_state[0]),
                       static_cast<uint64_t>(attention.rng_state[1])};
  problem.q = tensor_of(attention.q, attention.dtype, attention.qkv, attention);
  problem.k = tensor_of(attention.k, attention.dtype, attention.qkv, attention);
  problem.v = tensor_of(attention.v, attention.dtype, attention.qkv, attention);
  problem.o = tensor_of(attention.o, attention.dtype, attention.output, attention);
  problem.stats = tensor_of(attention.log_sum_exp, ops::kFloat32, attention.statistics, attention);
  return problem;
}

}  // namespace

int ops_attention_forward(const OpsAttention *attention, OpsStream) {
  const int status = ops::check_attention("ops_attention_forward", attention, false);
  if (status != OPS_SUCCESS || ops::attends_to_nothing(*attention)) return status;
  return run("ops_attention_forward", [&] { attention_forward(problem_of(*attention)); });
}

int ops_attention_backward(const OpsAttention *attention, OpsStream) {
  const int status = ops::check_attention("ops_attention_backward", attention, true);
  if (status != OPS_SUCCESS || ops::attends_to_nothing(*attention)) return status;
  return run("ops_attention_backward", [&] {
    AttentionProblem problem = problem_of(*attention);
    problem.d_o = tensor_of(attention->d_o, attention->dtype, attention->output, *attention);
    problem.dq = tensor_of(attention->dq, attention->dtype, attention->gradients, *attention);
    problem.dk = tensor_of(attention->dk, attention->dtype, attention->gradients, *attention);
    problem.dv = tensor_of(attention->dv, attention->dtype, attention->gradients, *attention);
    attention_backward(problem);
  });
}

/* Operations: attention, over the mathematics that fused attention has. */
#include "../../ops/attention_checks.h"
#include "te/attention.h"
#include "ops/operations.h"

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

/* A GPU's kernels trust the offsets and the lengths of buffers; a process on the CPU must not read astray. */
int check_memory(const char *function, const OpsAttention &attention, bool backward) {
  ops::Arguments arguments(function);
  arguments.pointer("cu_seqlens", attention.cu_seqlens, 4, ops::bytes_of({attention.sequences + 1, 4}));
  if (arguments.status() != OPS_SUCCESS) return arguments.status();
  const int32_t *const offsets = attention.cu_seqlens;
  const bool packed = attention.packed != 0;
  if (packed && (offsets[0] != 0 || !std::is_sorted(offsets, offsets + attention.sequences + 1)))
    return arguments.refuse("cu_seqlens", "decreasing or not from 0 on", "offsets that start at 0 and do not decrease")
        .status();
  const int64_t rows = packed ? offsets[attention.sequences] : attention.length;
  /* To the end of the last row; every product was checked to be countable. */
  const auto bytes = [&](const OpsStrides &strides, int64_t columns, int64_t element) {
    const int64_t start = packed ? 0 : (attention.sequences - 1) * strides.sequence;
    return rows == 0 ? 0 : (start + (rows - 1) * strides.token + (attention.heads - 1) * strides.head + columns) * element;
  };
  const int64_t size = ops::size_of(attention.dtype);
  const int64_t inputs = bytes(attention.qkv, attention.head_dim, size);
  const int64_t outputs = bytes(attention.output, attention.head_dim, size);
  const int64_t statistics = bytes(attention.statistics, 1, 4);
  arguments.pointer("q", attention.q, size, inputs)
      .pointer("k", attention.k, size, inputs)
      .pointer("v", attention.v, size, inputs)
      .pointer("o", attention.o, size, outputs)
      .pointer("log_sum_exp", attention.log_sum_exp, 4, statistics);
  if (attention.dropout > 0) arguments.pointer("rng_state", attention.rng_state, 8, 16);
  if (!backward) return arguments.status();
  const int64_t gradients = bytes(attention.gradients, attention.head_dim, size);
  return arguments.pointer("d_o", attention.d_o, size, outputs)
      .pointer("dq", attention.dq, size, gradients)
      .pointer("dk", attention.dk, size, gradients)
      .pointer("dv", attention.dv, size, gradients)
      .pointer("delta", attention.delta, 4, statistics)
      .status();
}

/* The status of a call's arguments; `nothing` says that a good call has nothing to do. */
int check(const char *function, const OpsAttention *attention, bool backward, bool *nothing) {
  const int status = ops::check_attention(function, attention, backward);
  *nothing = status == OPS_SUCCESS && ops::attends_to_nothing(*attention);
  return status != OPS_SUCCESS || *nothing ? status : check_memory(function, *attention, backward);
}

}  // namespace

int ops_attention_forward(const OpsAttention *attention, OpsStream) try {
  bool nothing;
  const int status = check("ops_attention_forward", attention, false, &nothing);
  if (status != OPS_SUCCESS || nothing) return status;
  return run("ops_attention_forward", [&] { attention_forward(problem_of(*attention)); });
} OPS_CATCH

int ops_attention_backward(const OpsAttention *attention, OpsStream) try {
  bool nothing;
  const int status = check("ops_attention_backward", attention, true, &nothing);
  if (status != OPS_SUCCESS || nothing) return status;
  return run("ops_attention_backward", [&] {
    AttentionProblem problem = problem_of(*attention);
    problem.d_o = tensor_of(attention->d_o, attention->dtype, attention->output, *attention);
    problem.dq = tensor_of(attention->dq, attention->dtype, attention->gradients, *attention);
    problem.dk = tensor_of(attention->dk, attention->dtype, attention->gradients, *attention);
    problem.dv = tensor_of(attention->dv, attention->dtype, attention->gradients, *attention);
    attention_backward(problem);
  });
} OPS_CATCH

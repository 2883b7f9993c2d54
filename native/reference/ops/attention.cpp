/* Operations: attention, over the mathematics that fused attention has. */
#include "cuda/capture.h"
#include "../../ops/attention_checks.h"
#include "te/attention.h"
#include "ops/operations.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

const int32_t *cu_seqlens_of(const OpsAttention &attention, const ops::AttentionOperand &operand) {
  return operand.of_keys ? attention.cu_seqlens_kv : attention.cu_seqlens_q;
}

AttentionTensor tensor_of(const OpsAttention &attention, const ops::AttentionOperand &operand) {
  AttentionTensor tensor;
  tensor.data = const_cast<void *>(operand.data);
  tensor.dtype = operand.columns == 1 ? kNVTEFloat32 : as_dtype(attention.dtype);
  tensor.sequence_stride = operand.strides.sequence;
  tensor.token_stride = operand.strides.token;
  tensor.head_stride = operand.strides.head;
  tensor.first_token = operand.extent.packed ? cu_seqlens_of(attention, operand) : nullptr;
  return tensor;
}

struct SideLength {
  int64_t tokens, rows;
};

SideLength length_of(const int32_t *cu_seqlens, int64_t sequence, const ops::AttentionExtent &extent) {
  const int64_t tokens = int64_t{cu_seqlens[sequence + 1]} - cu_seqlens[sequence];
  const int64_t length = std::clamp<int64_t>(tokens, 0, extent.length);
  return {length, extent.packed ? length : extent.length};
}

AttentionProblem problem_of(const OpsAttention &attention, bool backward) {
  AttentionProblem problem;
  problem.heads = attention.heads;
  problem.kv_heads = attention.kv_heads;
  problem.dim_qk = attention.head_dim;
  problem.dim_v = attention.value_dim;
  for (int64_t b = 0; b < attention.sequences; ++b) {
    const SideLength q = length_of(attention.cu_seqlens_q, b, ops::queries_of(attention));
    const SideLength kv = length_of(attention.cu_seqlens_kv, b, ops::keys_of(attention));
    problem.lengths.push_back({q.tokens, kv.tokens, q.rows, kv.rows});
  }
  /* A window at least as long as the sequences is no window. */
  const int64_t longest = std::max(attention.length, attention.kv_length);
  const auto side = [&](int64_t window) { return window >= longest ? -1 : window; };
  problem.band = {side(attention.window_left), side(attention.window_right), attention.alignment == OPS_BOTTOM_RIGHT};
  problem.scale = attention.scale;
  if (attention.dropout > 0)
    problem.dropout = {attention.dropout, static_cast<uint64_t>(attention.rng_state[0]),
                       static_cast<uint64_t>(attention.rng_state[1])};
  const ops::AttentionOperands operands = ops::operands_of(attention, backward);
  AttentionTensor *const tensors[] = {&problem.q,   &problem.k,  &problem.v,  &problem.o, &problem.stats,
                                      &problem.d_o, &problem.dq, &problem.dk, &problem.dv};
  for (size_t i = 0; i < (backward ? 9 : 5); ++i) *tensors[i] = tensor_of(attention, operands[i]);
  return problem;
}

void check_offsets(ops::Arguments &arguments, const char *name, const int32_t *offsets, int64_t sequences,
                   bool packed) {
  arguments.pointer(name, offsets, 4, ops::bytes_of({sequences + 1, 4}));
  if (arguments.status() != OPS_SUCCESS || !packed) return;
  if (offsets[0] != 0 || !std::is_sorted(offsets, offsets + sequences + 1))
    arguments.refuse(name, "decreasing or not from 0 on", "offsets that start at 0 and do not decrease");
}

/* To the end of the last row; every product was checked to be countable. */
int64_t bytes_of(const OpsAttention &attention, const ops::AttentionOperand &operand) {
  const bool packed = operand.extent.packed;
  const int64_t rows = packed ? cu_seqlens_of(attention, operand)[attention.sequences] : operand.extent.length;
  if (rows == 0 || operand.extent.heads == 0) return 0;
  const int64_t start = packed ? 0 : (attention.sequences - 1) * operand.strides.sequence;
  const int64_t last = (rows - 1) * operand.strides.token + (operand.extent.heads - 1) * operand.strides.head;
  return (start + last + operand.columns) * operand.element_size;
}

/* A GPU's kernels trust the offsets and the lengths of buffers; a process on the CPU must not read astray. */
int check_memory(const char *function, const OpsAttention &attention, bool backward) {
  ops::Arguments arguments(function);
  check_offsets(arguments, "cu_seqlens_q", attention.cu_seqlens_q, attention.sequences, attention.packed != 0);
  if (arguments.status() != OPS_SUCCESS) return arguments.status();
  check_offsets(arguments, "cu_seqlens_kv", attention.cu_seqlens_kv, attention.sequences, attention.kv_packed != 0);
  if (arguments.status() != OPS_SUCCESS) return arguments.status();
  for (const ops::AttentionOperand &operand : ops::operands_of(attention, backward))
    if (!operand.extent.is_empty())
      arguments.pointer(operand.name, operand.data, operand.element_size, bytes_of(attention, operand));
  if (attention.dropout > 0) arguments.pointer("rng_state", attention.rng_state, 8, 16);
  return arguments.status();
}

/* The status of a call's arguments; `nothing` says that a good call has nothing to do. */
int check(const char *function, const OpsAttention *attention, bool backward, bool *nothing) {
  const int status = ops::check_attention(function, attention, backward);
  *nothing = status == OPS_SUCCESS && ops::attends_to_nothing(*attention, backward);
  return status != OPS_SUCCESS || *nothing ? status : check_memory(function, *attention, backward);
}

using Function = int(const OpsAttention *, OpsStream);

/* Whether the call was recorded: its arguments are right, but for what lies on the device, which the graph will see. */
bool recorded(Function *function, const OpsAttention *attention, bool backward, OpsStream stream) {
  return is_capturing(stream) && ops::check_attention("capture", attention, backward) == OPS_SUCCESS &&
         recorded_problem("attention", attention, stream, function);
}

}  // namespace

int ops_attention_forward(const OpsAttention *attention, OpsStream stream) try {
  if (recorded(ops_attention_forward, attention, false, stream)) return OPS_SUCCESS;
  bool nothing;
  const int status = check("ops_attention_forward", attention, false, &nothing);
  if (status != OPS_SUCCESS || nothing) return status;
  return run("ops_attention_forward", [&] { attention_forward(problem_of(*attention, false)); });
} OPS_CATCH

int ops_attention_backward(const OpsAttention *attention, OpsStream stream) try {
  if (recorded(ops_attention_backward, attention, true, stream)) return OPS_SUCCESS;
  bool nothing;
  const int status = check("ops_attention_backward", attention, true, &nothing);
  if (status != OPS_SUCCESS || nothing) return status;
  return run("ops_attention_backward", [&] { attention_backward(problem_of(*attention, true)); });
} OPS_CATCH

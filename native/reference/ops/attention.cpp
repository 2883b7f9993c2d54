/* Operations: attention, over the mathematics that fused attention has. */
#include "cuda/capture.h"
#include "../../ops/attention_checks.h"
#include "te/attention.h"
#include "ops/operations.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

AttentionTensor tensor_of(const OpsAttention &attention, const ops::AttentionOperand &operand) {
  AttentionTensor tensor;
  tensor.data = const_cast<void *>(operand.data);
  tensor.dtype = operand.columns == 1 ? kNVTEFloat32 : as_dtype(attention.dtype);
  tensor.sequence_stride = operand.strides.sequence;
  tensor.token_stride = operand.strides.token;
  tensor.head_stride = operand.strides.head;
  tensor.first_token = ops::starts_of(attention, operand.of_keys);
  return tensor;
}

struct SideLength {
  int64_t tokens, rows;
};

/* starts: of packed sequences, else null. */
SideLength length_of(const int32_t *cu_seqlens, const int32_t *starts, int64_t sequence,
                     const ops::AttentionExtent &extent) {
  const auto rows_of = [&](const int32_t *offsets) {
    return std::clamp<int64_t>(int64_t{offsets[sequence + 1]} - offsets[sequence], 0, extent.length);
  };
  return {rows_of(cu_seqlens), starts == nullptr ? extent.length : rows_of(starts)};
}

ScoreTensor score_tensor(const void *data, NVTEDType dtype, const OpsScoreShape &shape) {
  ScoreTensor tensor;
  if (data == nullptr) return tensor;
  const int64_t head = shape.queries * shape.keys;
  tensor.data = data;
  tensor.dtype = dtype;
  tensor.sequence = shape.sequences == 1 ? 0 : shape.heads * head;
  tensor.head = shape.heads == 1 ? 0 : head;
  tensor.query = shape.keys;
  return tensor;
}

AttentionScores scores_of(const OpsAttention &attention) {
  const OpsScores &given = attention.scores;
  AttentionScores scores;
  scores.softcap = given.softcap;
  scores.alibi_slopes = given.alibi_slopes;
  scores.alibi_sequence = given.alibi_sequences == 1 ? 0 : attention.heads;
  scores.alibi_bottom_right = given.alibi_alignment == OPS_BOTTOM_RIGHT;
  scores.bias = score_tensor(given.bias, as_dtype(attention.dtype), given.bias_shape);
  if (given.bias != nullptr && given.bias_type == OPS_PRE_SCALE_BIAS) scores.bias_factor = attention.scale;
  scores.mask = score_tensor(given.mask, kNVTEByte, given.mask_shape);
  return scores;
}

/* What a sequence is of the whole. */
void set_place(const OpsPlace &place, int64_t sequence, AttentionLength &length) {
  if (place.sequences != nullptr) length.number = place.sequences[sequence];
  if (place.first_queries != nullptr) length.first_q = place.first_queries[sequence];
  if (place.first_keys != nullptr) length.first_kv = place.first_keys[sequence];
}

AttentionProblem problem_of(const OpsAttention &attention, bool backward) {
  AttentionProblem problem;
  problem.heads = attention.heads;
  problem.kv_heads = attention.kv_heads;
  problem.dim_qk = attention.head_dim;
  problem.dim_v = attention.value_dim;
  for (int64_t b = 0; b < attention.sequences; ++b) {
    const SideLength q =
        length_of(attention.cu_seqlens_q, ops::starts_of(attention, false), b, ops::queries_of(attention));
    const SideLength kv =
        length_of(attention.cu_seqlens_kv, ops::starts_of(attention, true), b, ops::keys_of(attention));
    problem.lengths.push_back({q.tokens, kv.tokens, q.rows, kv.rows});
    set_place(attention.place, b, problem.lengths.back());
  }
  const bool by_place = attention.alignment == OPS_BY_PLACE;
  /* A window at least as long as the sequences is no window, unless queries may stand far from the keys. */
  const int64_t longest = by_place ? INT32_MAX / 4 : std::max(attention.length, attention.kv_length);
  const auto side = [&](int64_t window) { return window >= longest ? -1 : window; };
  problem.band = {side(attention.window_left), side(attention.window_right), attention.alignment == OPS_BOTTOM_RIGHT,
                  by_place};
  problem.scale = attention.scale;
  if (attention.dropout > 0)
    problem.dropout = {attention.dropout, static_cast<uint64_t>(attention.rng_state[0]),
                       static_cast<uint64_t>(attention.rng_state[1]), attention.place.heads, attention.place.first_head};
  problem.scores = scores_of(attention);
  if (attention.scores.softmax_type == OPS_SOFTMAX_LEARNABLE) problem.sink = attention.scores.sinks;
  if (ops::wants_d_sinks(attention, backward)) problem.dsink = attention.scores.d_sinks;
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

/* Gaps lie behind the sequences that they belong to. */
void check_starts(ops::Arguments &arguments, const char *name, const int32_t *starts, const int32_t *offsets,
                  int64_t sequences, bool packed) {
  if (!packed || starts == nullptr || arguments.status() != OPS_SUCCESS) return;
  check_offsets(arguments, name, starts, sequences, true);
  for (int64_t b = 0; arguments.status() == OPS_SUCCESS && b < sequences; ++b)
    if (int64_t{starts[b + 1]} - starts[b] < int64_t{offsets[b + 1]} - offsets[b])
      arguments.refuse(name, "too close", "offsets that leave room for every sequence");
}

/* To the end of the last row; every product was checked to be countable. */
int64_t bytes_of(const OpsAttention &attention, const ops::AttentionOperand &operand) {
  const int32_t *const starts = ops::starts_of(attention, operand.of_keys);
  const bool packed = starts != nullptr;
  const int64_t rows = packed ? starts[attention.sequences] : operand.extent.length;
  if (rows == 0 || operand.extent.heads == 0) return 0;
  const int64_t start = packed ? 0 : (attention.sequences - 1) * operand.strides.sequence;
  const int64_t last = (rows - 1) * operand.strides.token + (operand.extent.heads - 1) * operand.strides.head;
  return (start + last + operand.columns) * operand.element_size;
}

/* Each number from 0 to INT32_MAX / 4. */
void check_numbers(ops::Arguments &arguments, const char *name, const int32_t *numbers, int64_t sequences) {
  if (numbers == nullptr || arguments.status() != OPS_SUCCESS) return;
  arguments.pointer(name, numbers, 4, ops::bytes_of({sequences, 4}));
  for (int64_t b = 0; arguments.status() == OPS_SUCCESS && b < sequences; ++b)
    arguments.between(name, numbers[b], 0, INT32_MAX / 4);
}

void check_place_memory(ops::Arguments &arguments, const OpsAttention &attention) {
  const OpsPlace &place = attention.place;
  check_numbers(arguments, "place.sequences", place.sequences, attention.sequences);
  check_numbers(arguments, "place.first_queries", place.first_queries, attention.sequences);
  check_numbers(arguments, "place.first_keys", place.first_keys, attention.sequences);
}

/* A GPU's kernels trust the offsets and the lengths of buffers; a process on the CPU must not read astray. */
int check_memory(const char *function, const OpsAttention &attention, bool backward) {
  ops::Arguments arguments(function);
  check_offsets(arguments, "cu_seqlens_q", attention.cu_seqlens_q, attention.sequences, attention.packed != 0);
  if (arguments.status() != OPS_SUCCESS) return arguments.status();
  check_offsets(arguments, "cu_seqlens_kv", attention.cu_seqlens_kv, attention.sequences, attention.kv_packed != 0);
  if (arguments.status() != OPS_SUCCESS) return arguments.status();
  check_starts(arguments, "cu_seqlens_q_padded", attention.cu_seqlens_q_padded, attention.cu_seqlens_q,
               attention.sequences, attention.packed != 0);
  check_starts(arguments, "cu_seqlens_kv_padded", attention.cu_seqlens_kv_padded, attention.cu_seqlens_kv,
               attention.sequences, attention.kv_packed != 0);
  if (arguments.status() != OPS_SUCCESS) return arguments.status();
  check_place_memory(arguments, attention);
  ops::check_score_memory(arguments, attention, backward);
  for (const ops::AttentionOperand &operand : ops::operands_of(attention, backward))
    if (!operand.extent.is_empty())
      arguments.pointer(operand.name, operand.data, operand.element_size, bytes_of(attention, operand));
  if (attention.dropout > 0) arguments.pointer("rng_state", attention.rng_state, 8, 16);
  return arguments.status();
}

/* The status of a call's arguments; `nothing`: whether a valid call has nothing to do. */
int check(const char *function, const OpsAttention *attention, bool backward, bool *nothing) {
  const int status = ops::check_attention(function, attention, backward);
  *nothing = status == OPS_SUCCESS && ops::attends_to_nothing(*attention, backward);
  return status != OPS_SUCCESS || *nothing ? status : check_memory(function, *attention, backward);
}

/* A softmax that is off by one has sinks of 0. */
std::vector<float> zero_sinks(const OpsAttention &attention) {
  const bool wanted = attention.scores.softmax_type == OPS_SOFTMAX_OFF_BY_ONE;
  return std::vector<float>(wanted ? static_cast<size_t>(attention.heads) : 0);
}

void forward(const OpsAttention &attention) {
  AttentionProblem problem = problem_of(attention, false);
  const std::vector<float> zeros = zero_sinks(attention);
  if (!zeros.empty()) problem.sink = zeros.data();
  attention_forward(problem);
}

void backward(const OpsAttention &attention) {
  AttentionProblem problem = problem_of(attention, true);
  const std::vector<float> zeros = zero_sinks(attention);
  if (!zeros.empty()) problem.sink = zeros.data();
  const OpsScoreShape &shape = attention.scores.bias_shape;
  if (!ops::wants_d_bias(attention, true)) return attention_backward(problem);
  std::vector<float> sums(static_cast<size_t>(ops::bytes_of(shape, 1)));
  problem.scores.dbias = sums.data();
  attention_backward(problem);
  from_float(attention.scores.d_bias, sums.data(), as_dtype(attention.dtype), static_cast<int64_t>(sums.size()));
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
  return run("ops_attention_forward", [&] { forward(*attention); });
} OPS_CATCH

int ops_attention_backward(const OpsAttention *attention, OpsStream stream) try {
  if (recorded(ops_attention_backward, attention, true, stream)) return OPS_SUCCESS;
  bool nothing;
  const int status = check("ops_attention_backward", attention, true, &nothing);
  if (status != OPS_SUCCESS || nothing) return status;
  return run("ops_attention_backward", [&] { backward(*attention); });
} OPS_CATCH

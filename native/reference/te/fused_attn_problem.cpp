/* Shapes and strides of fused attention's tensors. */
#include <string_view>

#include "runtime/fp8.h"
#include "te/fused_attn_problem.h"

namespace chagres::reference {

namespace {

struct FormatName {
  const char *name;
  size_t rank;
};

FormatName format_name(NVTE_QKV_Format format) {
  switch (format) {
    case NVTE_SBHD:
      return {"[s, b, h, d]", 4};
    case NVTE_BSHD:
      return {"[b, s, h, d]", 4};
    case NVTE_BHSD:
      return {"[b, h, s, d]", 4};
    default:
      return {"[t, h, d]", 3};
  }
}

template <class Params>
FusedAttnInputs collect(const Params &params, const Caller &caller) {
  FusedAttnInputs inputs{};
  inputs.q = params.q;
  inputs.k = params.k;
  inputs.v = params.v;
  inputs.o = params.o;
  inputs.cu_seqlens_q = params.cu_seqlens_q;
  inputs.cu_seqlens_kv = params.cu_seqlens_kv;
  inputs.cu_seqlens_q_padded = params.cu_seqlens_q_padded;
  inputs.cu_seqlens_kv_padded = params.cu_seqlens_kv_padded;
  FusedAttnConfig &config = inputs.config;
  config.cuda_graph = params.cuda_graph;
  config.attn_mask_type = params.attn_mask_type;
  config.bias_type = params.bias_type;
  config.window_size_left = params.window_size_left;
  config.window_size_right = params.window_size_right;
  config.bottom_right_diagonal = params.bottom_right_diagonal;
  config.softmax_type = params.softmax_type;
  config.dropout = params.dropout;
  config.attn_scale = params.attn_scale;
  config.qkv_layout = params.qkv_layout;
  config.o_format = params.o_format;
  config.qkv_scale_inv_format = params.qkv_scale_inv_format;
  config.max_seqlen_q = params.max_seqlen_q;
  config.max_seqlen_kv = params.max_seqlen_kv;
  living_tensor(params.cu_seqlens_q, "CuSeqlensQ", caller);
  living_tensor(params.cu_seqlens_kv, "CuSeqlensKV", caller);
  living_tensor(params.cu_seqlens_q_padded, "CuSeqlensQPadded", caller);
  living_tensor(params.cu_seqlens_kv_padded, "CuSeqlensKVPadded", caller);
  return inputs;
}

size_t batch_of(NVTETensor cu_seqlens, const char *argument, const Caller &caller) {
  const NVTEShape &shape = living_tensor(cu_seqlens, argument, caller).data().shape;
  if (shape.ndim != 1 || shape.data[0] < 2)
    fail(caller, text("Tensor \"", argument, "\" must have shape (batch + 1) with a batch of at least 1, got ",
                      shape_text(shape)));
  return shape.data[0] - 1;
}

/* Of THD there are none: it is refused. */
void add_bias_dimensions(FusedAttnConfig &config, NVTETensor bias, const char *argument, const Caller &caller) {
  if (!has_bias(config) || q_layout(config.qkv_layout, caller).format == NVTE_THD) return;
  const NVTEShape &shape = tensor(bias, argument, caller).data().shape;
  if (shape.ndim != 4)
    fail(caller, text("Tensor \"", argument, "\" must have shape [1 or b, 1 or h, s, s of keys], got ", shape_text(shape)));
  config.bias_batch_size = shape.data[0];
  config.bias_num_heads = shape.data[1];
  config.bias_seqlen_q = shape.data[2];
  config.bias_seqlen_kv = shape.data[3];
}

void add_dimensions(FusedAttnInputs &inputs, const Caller &caller) {
  FusedAttnConfig &config = inputs.config;
  const int32_t layout = config.qkv_layout;
  const NVTE_QKV_Format q_format = q_layout(layout, caller).format, kv_format = kv_layout(layout, caller).format;
  inputs.q_extent = attention_extent(inputs.q, "Q", q_format, caller);
  inputs.kv_extent = attention_extent(inputs.k, "K", kv_format, caller);
  inputs.o_extent = inputs.q_extent;
  inputs.o_extent.dim = attention_extent(inputs.v, "V", kv_format, caller).dim;
  config.batch_size = q_format == NVTE_THD    ? batch_of(inputs.cu_seqlens_q, "CuSeqlensQ", caller)
                      : kv_format == NVTE_THD ? batch_of(inputs.cu_seqlens_kv, "CuSeqlensKV", caller)
                                              : static_cast<size_t>(inputs.q_extent.sequences);
  config.qkv_dtype = tensor(inputs.q, "Q", caller).data().dtype;
  config.o_dtype = tensor(inputs.o, "O", caller).data().dtype;
  config.num_attn_heads = static_cast<size_t>(inputs.q_extent.heads);
  config.num_gqa_groups = static_cast<size_t>(inputs.kv_extent.heads);
  config.head_dim_qk = static_cast<size_t>(inputs.q_extent.dim);
  config.head_dim_v = static_cast<size_t>(inputs.o_extent.dim);
  config.num_tokens_q = static_cast<size_t>(inputs.q_extent.tokens);
  config.num_tokens_kv = static_cast<size_t>(inputs.kv_extent.tokens);
}

void refuse(const FusedAttnConfig &config, FusedAttnPass pass, const Caller &caller) {
  const std::string reason = fused_attn_rejection(config, pass, caller);
  if (!reason.empty()) fail(caller, text("Fused attention is not supported for this configuration: ", reason));
}

/* For dense formats TE takes strides from the maximum lengths, so these have to be the lengths. */
void check_lengths(const FusedAttnInputs &inputs, const Caller &caller) {
  const struct {
    const char *attribute, *argument;
    size_t maximum;
    const AttentionExtent &extent;
  } sides[] = {{"MaxSeqlenQ", "Q", inputs.config.max_seqlen_q, inputs.q_extent},
               {"MaxSeqlenKV", "K", inputs.config.max_seqlen_kv, inputs.kv_extent}};
  for (const auto &side : sides) {
    if (side.extent.sequences == 0) continue;
    if (static_cast<size_t>(side.extent.length) != side.maximum)
      fail(caller, text("Attribute ", side.attribute, " must equal the sequence length of \"", side.argument, "\", ",
                        side.extent.length, ", got ", side.maximum));
    if (static_cast<size_t>(side.extent.sequences) != inputs.config.batch_size)
      fail(caller, text("Tensor \"", side.argument, "\" must have a batch of ", inputs.config.batch_size, ", got ",
                        side.extent.sequences));
  }
}

void check_packed_place(const AttentionTensor &first, const char *first_argument, const AttentionTensor &other,
                        const char *argument, int64_t elements, const Caller &caller) {
  if (first.data == nullptr || other.data == nullptr || element(first.data, elements, first.dtype) == other.data)
    return;
  fail(caller, text("Tensor \"", argument, "\" must start ", elements, " elements after \"", first_argument,
                    "\", as the layout packs them into one buffer; it starts ",
                    static_cast<const char *>(other.data) - static_cast<const char *>(first.data), " bytes after"));
}

}  // namespace

AttentionExtent attention_extent(NVTETensor handle, const char *argument, NVTE_QKV_Format format,
                                 const Caller &caller) {
  const NVTEShape &shape = tensor(handle, argument, caller).data().shape;
  const FormatName name = format_name(format);
  if (shape.ndim != name.rank)
    fail(caller, text("Tensor \"", argument, "\" must have shape ", name.name, ", got ", shape_text(shape)));
  const auto at = [&](size_t i) { return static_cast<int64_t>(shape.data[i]); };
  switch (format) {
    case NVTE_SBHD:
      return {at(1), at(0), 0, at(2), at(3)};
    case NVTE_BSHD:
      return {at(0), at(1), 0, at(2), at(3)};
    case NVTE_BHSD:
      return {at(0), at(2), 0, at(1), at(3)};
    default:
      return {0, 0, at(0), at(1), at(2)};
  }
}

FusedAttnInputs fused_attn_inputs(const FusedAttnFwdParams &params, const Caller &caller) {
  FusedAttnInputs inputs = collect(params, caller);
  inputs.config.is_training = params.is_training;
  inputs.config.return_max_logit = params.return_max_logit;
  add_dimensions(inputs, caller);
  add_bias_dimensions(inputs.config, params.bias, "Bias", caller);
  refuse(inputs.config, FusedAttnPass::Forward, caller);
  check_lengths(inputs, caller);
  return inputs;
}

FusedAttnInputs fused_attn_inputs(const FusedAttnBwdParams &params, const Caller &caller) {
  FusedAttnInputs inputs = collect(params, caller);
  inputs.config.deterministic = params.deterministic;
  inputs.config.do_format = params.do_format;
  inputs.config.dqkv_layout = params.dqkv_layout;
  inputs.config.do_scale_inv_format = params.do_scale_inv_format;
  inputs.config.do_dtype = tensor(params.d_o, "DO", caller).data().dtype;
  inputs.config.dqkv_dtype = tensor(params.dq, "DQ", caller).data().dtype;
  add_dimensions(inputs, caller);
  add_bias_dimensions(inputs.config, params.dbias, "DBias", caller);
  refuse(inputs.config, FusedAttnPass::Backward, caller);
  check_lengths(inputs, caller);
  return inputs;
}

AttentionTensor attention_tensor(NVTETensor handle, const char *argument, const TensorLayout &layout,
                                 const AttentionExtent &expected, NVTEDType dtype, const Caller &caller) {
  const NVTEBasicTensor &data = tensor(handle, argument, caller).data();
  const char *const of = is_fp8(dtype) && (std::string_view(argument) == "DK" || std::string_view(argument) == "DV") ? "\"DQ\"" : "\"Q\"";
  if (data.dtype != dtype)
    fail(caller, text("Tensor \"", argument, "\" must have the dtype of ", of, ", ", dtype_name(dtype), ", got ",
                      dtype_name(data.dtype)));
  const AttentionExtent extent = attention_extent(handle, argument, layout.format, caller);
  if (extent.sequences != expected.sequences || extent.length != expected.length || extent.tokens != expected.tokens ||
      extent.heads != expected.heads || extent.dim != expected.dim) {
    const std::string where = layout.format == NVTE_THD ? text("t ", expected.tokens)
                                                        : text("b ", expected.sequences, ", s ", expected.length);
    fail(caller, text("Tensor \"", argument, "\" must have shape ", format_name(layout.format).name, " with ", where,
                      ", h ", expected.heads, ", d ", expected.dim, ", got ", shape_text(data.shape)));
  }
  const int64_t token = layout.packed * extent.heads * extent.dim;
  const int64_t head = layout.inner_packed ? layout.packed * extent.dim : extent.dim;
  switch (layout.format) {
    case NVTE_SBHD:
      return {data.data_ptr, dtype, token, extent.sequences * token, head, nullptr};
    case NVTE_BHSD:
      return {data.data_ptr, dtype, extent.length * token, extent.dim, extent.length * extent.dim, nullptr};
    default: /* BSHD; THD has length 0 and gets its starts from read_lengths */
      return {data.data_ptr, dtype, extent.length * token, token, head, nullptr};
  }
}

/* Inside a shared buffer the last element lies further on than the shape says. */
void expect_shared_memory(const AttentionTensor &tensor, const char *argument, const AttentionExtent &extent,
                          const TensorLayout &layout, const Caller &caller) {
  const int64_t tokens = layout.format == NVTE_THD ? extent.tokens : extent.sequences * extent.length;
  if (layout.packed == 1 || tensor.data == nullptr || tokens == 0 || extent.heads == 0) return;
  const int64_t token = layout.packed * extent.heads * extent.dim;
  const int64_t head = layout.inner_packed ? layout.packed * extent.dim : extent.dim;
  const int64_t elements = (tokens - 1) * token + (extent.heads - 1) * head + extent.dim;
  expect_memory(tensor.data, static_cast<size_t>(elements) * element_size(tensor.dtype), argument, "rowwise data", caller);
}

AttentionTriple attention_triple(const AttentionTripleHandles &handles, int32_t layout, const FusedAttnInputs &inputs,
                                 NVTEDType dtype, const Caller &caller) {
  AttentionExtent k_extent = inputs.kv_extent, v_extent = inputs.kv_extent;
  k_extent.dim = inputs.q_extent.dim;
  v_extent.dim = inputs.o_extent.dim;
  const TensorLayout kv = kv_layout(layout, caller);
  const AttentionTriple triple = {
      attention_tensor(handles.handle[0], handles.argument[0], q_layout(layout, caller), inputs.q_extent, dtype,
                       caller),
      attention_tensor(handles.handle[1], handles.argument[1], kv, k_extent, dtype, caller),
      attention_tensor(handles.handle[2], handles.argument[2], kv, v_extent, dtype, caller)};
  const int64_t step = kv.inner_packed ? k_extent.dim : k_extent.heads * k_extent.dim;
  if (kv.packed == 3) {
    if (inputs.q_extent.length != inputs.kv_extent.length || inputs.q_extent.tokens != inputs.kv_extent.tokens)
      fail(caller, text("Tensors \"", handles.argument[0], "\" and \"", handles.argument[1],
                        "\" share one buffer, so they need equal sequence lengths or tokens"));
    check_packed_place(triple.q, handles.argument[0], triple.k, handles.argument[1], step, caller);
  }
  if (kv.packed > 1) check_packed_place(triple.k, handles.argument[1], triple.v, handles.argument[2], step, caller);
  expect_shared_memory(triple.q, handles.argument[0], inputs.q_extent, q_layout(layout, caller), caller);
  expect_shared_memory(triple.k, handles.argument[1], k_extent, kv, caller);
  expect_shared_memory(triple.v, handles.argument[2], v_extent, kv, caller);
  return triple;
}

AttentionProblem attention_problem(const FusedAttnInputs &inputs, const Caller &caller) {
  const FusedAttnConfig &config = inputs.config;
  AttentionProblem problem;
  problem.heads = inputs.q_extent.heads;
  problem.kv_heads = inputs.kv_extent.heads;
  problem.dim_qk = inputs.q_extent.dim;
  problem.dim_v = inputs.o_extent.dim;
  problem.scale = config.attn_scale;

  const bool causal = config.attn_mask_type == NVTE_CAUSAL_MASK || config.attn_mask_type == NVTE_PADDING_CAUSAL_MASK;
  const bool bottom_right = config.attn_mask_type == NVTE_CAUSAL_BOTTOM_RIGHT_MASK ||
                            config.attn_mask_type == NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK;
  /* Beyond any sequence length a window is no limit; this keeps sums of positions and windows small. */
  const int64_t widest = 0x7fffffff;
  problem.band.left = std::min(config.window_size_left, widest);
  problem.band.right = causal || bottom_right ? 0 : std::min(config.window_size_right, widest);
  problem.band.bottom_right = bottom_right || (!causal && config.bottom_right_diagonal != 0);

  const auto dtype = static_cast<NVTEDType>(config.qkv_dtype);
  const AttentionTriple triple =
      attention_triple({{inputs.q, inputs.k, inputs.v}, {"Q", "K", "V"}}, config.qkv_layout, inputs, dtype, caller);
  problem.q = triple.q;
  problem.k = triple.k;
  problem.v = triple.v;
  problem.o = attention_tensor(inputs.o, "O", {static_cast<NVTE_QKV_Format>(config.o_format), 1, false},
                               inputs.o_extent, dtype, caller);
  return problem;
}

NVTEShape stats_shape(const FusedAttnInputs &inputs) {
  const auto heads = static_cast<size_t>(inputs.q_extent.heads);
  if (inputs.q_extent.sequences == 0) return make_shape({static_cast<size_t>(inputs.q_extent.tokens), heads, 1});
  return make_shape(
      {static_cast<size_t>(inputs.q_extent.sequences), heads, static_cast<size_t>(inputs.q_extent.length), 1});
}

AttentionTensor stats_tensor(NVTETensor handle, const char *argument, const FusedAttnInputs &inputs,
                             const Caller &caller) {
  const View stats = view(handle, argument, {kNVTEFloat32}, caller);
  const NVTEShape expected = stats_shape(inputs);
  if (static_cast<size_t>(stats.count()) != element_count(expected))
    fail(caller,
         text("Tensor \"", argument, "\" must have shape ", shape_text(expected), ", got ", shape_text(stats.shape)));
  const int64_t heads = inputs.q_extent.heads, length = inputs.q_extent.length;
  if (inputs.q_extent.sequences == 0) return {stats.data, kNVTEFloat32, 0, heads, 1, nullptr};
  return {stats.data, kNVTEFloat32, heads * length, 1, length, nullptr};
}

void *required_data(NVTETensor handle, const char *argument, const Caller &caller) {
  void *data = tensor(handle, argument, caller).data().data_ptr;
  if (data == nullptr)
    fail(caller, text("Tensor \"", argument, "\" has no data: set its RowwiseData before the second call"));
  return data;
}

}  // namespace chagres::reference

/* nvte_fused_attn_fwd_v2 and _bwd_v2: the two-call protocol round the mathematics of attention.h. */
#include "te/fused_attn_problem.h"
#include "te/recorded.h"

namespace chagres::reference {

namespace {

/* A call whose workspace has no data asks for sizes. TE's workspace is never empty, so one byte stands for nothing. */
bool is_query(NVTETensor workspace, const Caller &caller) {
  NVTEBasicTensor &data = tensor(workspace, "Workspace", caller).records[kNVTERowwiseData];
  data.shape = make_shape({1});
  data.dtype = kNVTEByte;
  return data.data_ptr == nullptr;
}

bool has_sink(const FusedAttnConfig &config) { return config.softmax_type != NVTE_VANILLA_SOFTMAX; }

/* Entries of the auxiliary pack, in TE's order: Stats, rng_state, Bias and SoftmaxOffset where there are such. */
constexpr size_t kBiasEntry = 2;
size_t sink_entry(const FusedAttnConfig &config) { return kBiasEntry + static_cast<size_t>(has_bias(config)); }
size_t aux_count(const FusedAttnConfig &config) { return sink_entry(config) + static_cast<size_t>(has_sink(config)); }

NVTETensor aux_entry(const NVTETensorPack &pack, size_t index, const Caller &caller) {
  living_tensor(pack.tensors[index], text("AuxCtxTensors[", index, "]").c_str(), caller);
  return pack.tensors[index];
}

void describe(NVTETensor handle, const NVTEShape &shape, NVTEDType dtype) {
  NVTEBasicTensor &data = living_tensor(handle, "AuxCtxTensors").records[kNVTERowwiseData];
  data.data_ptr = nullptr;
  data.shape = shape;
  data.dtype = dtype;
}

void describe_aux(NVTETensorPack &pack, const FusedAttnInputs &inputs, const Caller &caller) {
  size_t i = 0;
  describe(aux_entry(pack, i++, caller), stats_shape(inputs), kNVTEFloat32);
  describe(aux_entry(pack, i++, caller), make_shape({2}), kNVTEInt64);
  if (has_bias(inputs.config))
    describe(aux_entry(pack, i++, caller), bias_shape(inputs.config), static_cast<NVTEDType>(inputs.config.qkv_dtype));
  if (has_sink(inputs.config)) {
    const auto heads = static_cast<size_t>(inputs.q_extent.heads);
    describe(aux_entry(pack, i++, caller), make_shape({1, heads, 1, 1}), kNVTEFloat32);
  }
  pack.size = i;
}

void check_pack(const NVTETensorPack *pack, size_t expected, const Caller &caller) {
  if (pack == nullptr) fail(caller, "Attribute AuxCtxTensors is not set: expected a pointer to an NVTETensorPack");
  if (pack->size != expected)
    fail(caller, text("Attribute AuxCtxTensors must have ", expected,
                      " tensors, as the call with an unset workspace "
                      "answers, got ",
                      pack->size));
}

const float *sink_data(NVTETensor handle, const char *argument, const FusedAttnInputs &inputs, const Caller &caller) {
  const View sink = view(handle, argument, {kNVTEFloat32}, caller);
  expect_count(sink, argument, inputs.q_extent.heads, caller);
  return static_cast<const float *>(sink.data);
}

AttentionDropout dropout_state(float probability, NVTETensor rng_state, const char *argument, const Caller &caller) {
  if (!(probability > 0)) return {};
  const View state = view(rng_state, argument, {kNVTEInt64}, caller);
  expect_count(state, argument, 2, caller);
  const auto *words = static_cast<const int64_t *>(state.data);
  return {probability, static_cast<uint64_t>(words[0]), static_cast<uint64_t>(words[1])};
}

/* The library itself points these entries at the caller's buffers; only Stats is its output. */
void bind_aux(const NVTETensorPack &pack, size_t index, NVTETensor source, const Caller &caller) {
  NVTETensor entry = aux_entry(pack, index, caller);
  tensor(entry, "AuxCtxTensors").records[kNVTERowwiseData].data_ptr = tensor(source, "RngState").data().data_ptr;
}

/* A call with tensors and a pack of its own. */
template <class Params>
class KeptAttention {
 public:
  explicit KeptAttention(const Params &params) : params_(params), pack_(*params.aux_ctx_tensors) {
    const OneCall call;
    for (NVTETensor Params::*field : fields(params)) params_.*field = keep(params.*field);
    for (size_t i = 0; i < pack_.size; ++i) pack_.tensors[i] = keep(pack_.tensors[i]);
  }

  Params params(void *stream, NVTETensorPack *pack) const {
    Params replayed = params_;
    *pack = pack_;
    replayed.aux_ctx_tensors = pack;
    replayed.stream = static_cast<cudaStream_t>(stream);
    return replayed;
  }

 private:
  NVTETensor keep(NVTETensor handle) {
    handles_.push_back(kept_handle(handle));
    return handles_.back().get();
  }

  static std::vector<NVTETensor FusedAttnFwdParams::*> fields(const FusedAttnFwdParams &) {
    using P = FusedAttnFwdParams;
    return {&P::q, &P::k, &P::v, &P::bias, &P::softmax_offset, &P::s, &P::o, &P::cu_seqlens_q, &P::cu_seqlens_kv,
            &P::cu_seqlens_q_padded, &P::cu_seqlens_kv_padded, &P::page_table_k, &P::page_table_v, &P::rng_state,
            &P::workspace};
  }

  static std::vector<NVTETensor FusedAttnBwdParams::*> fields(const FusedAttnBwdParams &) {
    using P = FusedAttnBwdParams;
    return {&P::q, &P::k, &P::v, &P::o, &P::d_o, &P::s, &P::dp, &P::dq, &P::dk, &P::dv, &P::dbias, &P::dsoftmax_offset,
            &P::cu_seqlens_q, &P::cu_seqlens_kv, &P::cu_seqlens_q_padded, &P::cu_seqlens_kv_padded, &P::workspace};
  }

  Params params_;
  NVTETensorPack pack_;
  std::vector<std::shared_ptr<void>> handles_;
};

void require_inputs(const FusedAttnInputs &inputs, const Caller &caller) {
  required_data(inputs.q, "Q", caller);
  required_data(inputs.k, "K", caller);
  required_data(inputs.v, "V", caller);
  required_data(inputs.o, "O", caller);
}

}  // namespace

void fused_attn_forward(const FusedAttnFwdParams &params, Caller caller) {
  tensor(params.bias, "Bias", caller);
  tensor(params.softmax_offset, "SoftmaxOffset", caller);
  tensor(params.s, "S", caller);
  tensor(params.page_table_k, "PageTableK", caller);
  tensor(params.page_table_v, "PageTableV", caller);
  tensor(params.rng_state, "RngState", caller);
  const FusedAttnInputs inputs = fused_attn_inputs(params, caller);
  AttentionProblem problem = attention_problem(inputs, caller);
  if (params.aux_ctx_tensors == nullptr) check_pack(nullptr, 0, caller);
  NVTETensorPack &pack = *params.aux_ctx_tensors;
  if (is_query(params.workspace, caller)) {
    if (pack.size == 0) describe_aux(pack, inputs, caller);
    return;
  }

  require_inputs(inputs, caller);
  check_pack(&pack, aux_count(inputs.config), caller);
  problem.stats = stats_tensor(aux_entry(pack, 0, caller), "AuxCtxTensors[0] (Stats)", inputs, caller);
  bind_aux(pack, 1, params.rng_state, caller);
  FusedAttnScores scores;
  scores.change(problem, params.bias, "Bias", inputs, caller);
  if (has_bias(inputs.config)) bind_aux(pack, kBiasEntry, params.bias, caller);
  if (has_sink(inputs.config)) {
    problem.sink = sink_data(params.softmax_offset, "SoftmaxOffset", inputs, caller);
    bind_aux(pack, sink_entry(inputs.config), params.softmax_offset, caller);
  }
  if (is_capturing(params.stream)) {
    record(params.stream, [kept = KeptAttention<FusedAttnFwdParams>(params), caller](void *into) {
      NVTETensorPack again;
      fused_attn_forward(kept.params(into, &again), caller);
    });
    return;
  }
  problem.dropout = dropout_state(params.is_training ? params.dropout : 0, params.rng_state, "RngState", caller);
  read_lengths(inputs, problem, caller);
  if (is_fp8_attention(inputs)) return fused_attn_forward_fp8(problem, inputs, params, caller);
  attention_forward(problem);
}

void fused_attn_backward(const FusedAttnBwdParams &params, Caller caller) {
  tensor(params.s, "S", caller);
  tensor(params.dp, "DP", caller);
  tensor(params.dbias, "DBias", caller);
  tensor(params.dsoftmax_offset, "DSoftmaxOffset", caller);
  const FusedAttnInputs inputs = fused_attn_inputs(params, caller);
  AttentionProblem problem = attention_problem(inputs, caller);
  const FusedAttnConfig &config = inputs.config;
  const bool fp8 = is_fp8_attention(inputs);
  const auto do_dtype = static_cast<NVTEDType>(fp8 ? config.do_dtype : config.qkv_dtype);
  const auto dqkv_dtype = static_cast<NVTEDType>(fp8 ? config.dqkv_dtype : config.qkv_dtype);
  problem.d_o = attention_tensor(params.d_o, "DO", {static_cast<NVTE_QKV_Format>(params.do_format), 1, false},
                                 inputs.o_extent, do_dtype, caller);
  const AttentionTriple gradients = attention_triple({{params.dq, params.dk, params.dv}, {"DQ", "DK", "DV"}},
                                                     params.dqkv_layout, inputs, dqkv_dtype, caller);
  problem.dq = gradients.q;
  problem.dk = gradients.k;
  problem.dv = gradients.v;
  check_pack(params.aux_ctx_tensors, aux_count(inputs.config), caller);
  if (is_query(params.workspace, caller)) return;

  require_inputs(inputs, caller);
  required_data(params.d_o, "DO", caller);
  required_data(params.dq, "DQ", caller);
  required_data(params.dk, "DK", caller);
  required_data(params.dv, "DV", caller);
  if (is_capturing(params.stream)) {
    record(params.stream, [kept = KeptAttention<FusedAttnBwdParams>(params), caller](void *into) {
      NVTETensorPack again;
      fused_attn_backward(kept.params(into, &again), caller);
    });
    return;
  }
  const NVTETensorPack &pack = *params.aux_ctx_tensors;
  problem.stats = stats_tensor(aux_entry(pack, 0, caller), "AuxCtxTensors[0] (Stats)", inputs, caller);
  problem.dropout = dropout_state(params.dropout, aux_entry(pack, 1, caller), "AuxCtxTensors[1] (RngState)", caller);
  FusedAttnScores scores;
  const NVTETensor bias = has_bias(config) ? aux_entry(pack, kBiasEntry, caller) : nullptr;
  scores.change(problem, bias, "AuxCtxTensors[2] (Bias)", inputs, caller);
  scores.differentiate(problem, params.dbias, inputs, caller);
  if (has_sink(inputs.config)) {
    const size_t entry = sink_entry(config);
    const std::string argument = text("AuxCtxTensors[", entry, "] (SoftmaxOffset)");
    problem.sink = sink_data(aux_entry(pack, entry, caller), argument.c_str(), inputs, caller);
    problem.dsink = const_cast<float *>(sink_data(params.dsoftmax_offset, "DSoftmaxOffset", inputs, caller));
  }
  read_lengths(inputs, problem, caller);
  if (is_fp8_attention(inputs)) return fused_attn_backward_fp8(problem, inputs, params, caller);
  attention_backward(problem);
  scores.store();
}

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_fused_attn_fwd_v2(NVTEFusedAttnFwdParams params) {
  fused_attn_forward(fused_attn_fwd_params(params, Caller::here()), Caller::here());
}

void nvte_fused_attn_bwd_v2(NVTEFusedAttnBwdParams params) {
  fused_attn_backward(fused_attn_bwd_params(params, Caller::here()), Caller::here());
}

#include "rules.hpp"

#include <algorithm>
#include <cstdlib>
#include <string>

namespace chagres::guard {

namespace {

/* Functions of the opened library that the conditions call; null where it lacks them. */
struct Asked {
  decltype(&nvte_get_num_compute_streams) compute_streams;
  decltype(&nvte_tensor_numel) numel;
  decltype(&nvte_tensor_type) type;
  decltype(&nvte_tensor_shape) shape;
  decltype(&nvte_tensor_columnwise_data) columnwise_data;
  decltype(&nvte_get_matmul_config_attribute) matmul_config;
  decltype(&nvte_get_quantization_config_attribute) quantization_config;
  decltype(&nvte_get_fused_attn_fwd_params_attribute) fused_attn_fwd_params;
  decltype(&nvte_get_fused_attn_bwd_params_attribute) fused_attn_bwd_params;
};
Asked ask;

template <typename Function>
void look_up(void *library, Function &function, const char *name) {
  function = reinterpret_cast<Function>(find(library, name));
}

int compute_stream_count() { return ask.compute_streams == nullptr ? 0 : ask.compute_streams(); }

bool workspace_and_pack(const Check &check, NVTETensor workspace, const NVTETensorPack *pack) {
  return check.handle("params (its workspace)", Kind::tensor, workspace) &&
         check.pointer("params (its auxiliary pack)", pack) && check.pack("params (its auxiliary pack)", pack);
}

bool may_be_live(const Check &check, const char *argument, NVTETensor tensor) {
  return check.handle_or_none(argument, Kind::tensor, tensor);
}

/* Where backward looks for the bias in the auxiliary pack. */
constexpr std::size_t kBiasOfPack = 2;

bool bias_of_pack(const Check &check, const char *argument, int bias_type, const NVTETensorPack *pack) {
  return pack->size <= kBiasOfPack || bias_of_scores(check, argument, bias_type, pack->tensors[kBiasOfPack]);
}

}  // namespace

void look_up_asked_functions(void *library) {
  look_up(library, ask.compute_streams, "get_num_compute_streams");
  look_up(library, ask.numel, "tensor_numel");
  look_up(library, ask.type, "tensor_type");
  look_up(library, ask.shape, "tensor_shape");
  look_up(library, ask.columnwise_data, "tensor_columnwise_data");
  look_up(library, ask.matmul_config, "get_matmul_config_attribute");
  look_up(library, ask.quantization_config, "get_quantization_config_attribute");
  look_up(library, ask.fused_attn_fwd_params, "get_fused_attn_fwd_params_attribute");
  look_up(library, ask.fused_attn_bwd_params, "get_fused_attn_bwd_params_attribute");
}

int gemm_workspace_count(int num_gemms) { return std::min(num_gemms, compute_stream_count()); }

bool some_for_cutlass(const Check &check, const char *argument, const NVTETensor *tensors, int num_gemms) {
  constexpr const char *variable = "NVTE_USE_CUTLASS_GROUPED_GEMM";
  const char *const value = std::getenv(variable);
  if (value == nullptr || value == std::string("0")) return true;
  for (int i = 0; i < num_gemms; ++i) {
    if (tensors[i] != nullptr) continue;
    return check.refuse(argument, "expected live tensors without data for none, as %s is set, got 0 for number %d", variable, i);
  }
  return true;
}

bool compute_stream_index(const Check &check, int idx) {
  const int count = compute_stream_count();
  return (idx >= 0 && idx < count) || check.refuse("idx", "expected 0 to %d, got %d", count - 1, idx);
}

bool tensor_attribute(const Check &check, NVTETensorParam param, const void *buf, std::size_t size_in_bytes) {
  if (param > kNVTEColumnwiseAmax || size_in_bytes < sizeof(NVTEBasicTensor)) return true;
  return check.basic_tensor("buf", static_cast<const NVTEBasicTensor *>(buf));
}

bool grouped_tensor_attribute(const Check &check, NVTEGroupedTensorParam param, const void *buf,
                              std::size_t size_in_bytes) {
  if (param == kNVTEGroupedWithGEMMSwizzledScales || size_in_bytes < sizeof(NVTEBasicTensor)) return true;
  return check.basic_tensor("buf", static_cast<const NVTEBasicTensor *>(buf));
}

bool elements(const Check &check, const char *argument, NVTETensor tensor) {
  if (ask.numel == nullptr || ask.numel(tensor) > 0) return true;
  return check.refuse(argument, "expected a tensor with elements, got an empty one; leave the call out");
}

bool whole_bytes(const Check &check, NVTETensor input) {
  if (ask.type == nullptr || ask.shape == nullptr || ask.type(input) != kNVTEFloat4E2M1) return true;
  const NVTEShape shape = ask.shape(input);
  std::size_t row = 1;
  for (std::size_t i = 2; i < shape.ndim; ++i) row *= shape.data[i];
  return row > 1 || check.refuse("input", "expected rows of whole bytes, got %zu number of 4 bits", row);
}

bool four_dimensions(const Check &check, const char *argument, const NVTETensor *tensors, std::size_t count) {
  if (ask.shape == nullptr) return true;
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t ndim = ask.shape(tensors[i]).ndim;
    if (ndim != 4) return check.refuse(argument, "expected tensors of 4 dimensions, got one of %zu", ndim);
    if (!elements(check, argument, tensors[i])) return false;
  }
  return true;
}

bool bias_of_scores(const Check &check, const char *argument, int bias_type, NVTETensor bias) {
  if (bias_type == NVTE_NO_BIAS || bias_type == NVTE_ALIBI || ask.shape == nullptr) return true;
  if (!may_be_live(check, argument, bias)) return false;
  const std::size_t ndim = bias == nullptr ? 4 : ask.shape(bias).ndim;
  return ndim == 4 || check.refuse(argument, "expected a tensor of 4 dimensions, got one of %zu", ndim);
}

bool bias_gradient(const Check &check, int bias_type, const NVTETensorPack *pack, NVTETensor dbias) {
  return bias_of_pack(check, "Aux_CTX_Tensors (its bias)", bias_type, pack) &&
         bias_of_scores(check, "dBias", bias_type, dbias);
}

bool elements_if_transposed(const Check &check, const char *argument, NVTETensor input, NVTETensor output) {
  return ask.columnwise_data == nullptr || ask.columnwise_data(output) == nullptr || elements(check, argument, input);
}

bool elements_if_transposed(const Check &check, const char *argument, const NVTETensor *inputs,
                            const NVTETensor *outputs, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    if (!elements_if_transposed(check, argument, inputs[i], outputs[i])) return false;
  }
  return true;
}

bool matmul_config(const Check &check, NVTEMatmulConfig config) {
  if (config == nullptr) return true;
  if (ask.matmul_config == nullptr) return true;
  NVTETensor auxiliary = nullptr;
  std::size_t written = 0;
  ask.matmul_config(config, kNVTEMatmulConfigEpilogueAuxTensor, &auxiliary, sizeof(auxiliary), &written);
  std::int32_t multiprocessors = 0;
  ask.matmul_config(config, kNVTEMatmulConfigSMCount, &multiprocessors, sizeof(multiprocessors), &written);
  /* cuBLASLt 13.0 divides by zero with one, which ends the process. */
  if (multiprocessors < 0 || multiprocessors == 1) {
    return check.refuse("config (its SM count)", "expected 0 for all, or at least 2, got %d", multiprocessors);
  }
  return may_be_live(check, "config (its auxiliary tensor)", auxiliary);
}

bool quantization_config(const Check &check, NVTEQuantizationConfig config) {
  if (config == nullptr) return true;
  if (ask.quantization_config == nullptr) return true;
  NVTETensor noop = nullptr;
  NVTETensor random_state = nullptr;
  ask.quantization_config(config, kNVTEQuantizationConfigNoopTensor, &noop, sizeof(noop), nullptr);
  ask.quantization_config(config, kNVTEQuantizationConfigRNGState, &random_state, sizeof(random_state), nullptr);
  return may_be_live(check, "quantization config (its noop tensor)", noop) &&
         may_be_live(check, "quantization config (its RNG state)", random_state);
}

bool fused_attn_fwd_params(const Check &check, NVTEFusedAttnFwdParams params) {
  if (ask.fused_attn_fwd_params == nullptr) return true;
  NVTETensor workspace = nullptr;
  const NVTETensorPack *pack = nullptr;
  ask.fused_attn_fwd_params(params, kNVTEFusedAttnFwdParamsWorkspace, &workspace, sizeof(workspace), nullptr);
  ask.fused_attn_fwd_params(params, kNVTEFusedAttnFwdParamsAuxCtxTensors, &pack, sizeof(pack), nullptr);
  std::int32_t bias_type = NVTE_NO_BIAS;
  NVTETensor bias = nullptr;
  ask.fused_attn_fwd_params(params, kNVTEFusedAttnFwdParamsBiasType, &bias_type, sizeof(bias_type), nullptr);
  ask.fused_attn_fwd_params(params, kNVTEFusedAttnFwdParamsBias, &bias, sizeof(bias), nullptr);
  return workspace_and_pack(check, workspace, pack) && bias_of_scores(check, "params (its bias)", bias_type, bias);
}

bool fused_attn_bwd_params(const Check &check, NVTEFusedAttnBwdParams params) {
  if (ask.fused_attn_bwd_params == nullptr) return true;
  NVTETensor workspace = nullptr;
  const NVTETensorPack *pack = nullptr;
  ask.fused_attn_bwd_params(params, kNVTEFusedAttnBwdParamsWorkspace, &workspace, sizeof(workspace), nullptr);
  ask.fused_attn_bwd_params(params, kNVTEFusedAttnBwdParamsAuxCtxTensors, &pack, sizeof(pack), nullptr);
  std::int32_t bias_type = NVTE_NO_BIAS;
  NVTETensor dbias = nullptr;
  ask.fused_attn_bwd_params(params, kNVTEFusedAttnBwdParamsBiasType, &bias_type, sizeof(bias_type), nullptr);
  ask.fused_attn_bwd_params(params, kNVTEFusedAttnBwdParamsDBias, &dbias, sizeof(dbias), nullptr);
  return workspace_and_pack(check, workspace, pack) &&
         bias_of_pack(check, "params (the bias of its auxiliary pack)", bias_type, pack) &&
         bias_of_scores(check, "params (its gradient of the bias)", bias_type, dbias);
}

}  // namespace chagres::guard

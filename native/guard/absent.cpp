/* Why the CPU reference lacks functions, by the words of docs/te-functions.md; ReferenceGuardTest holds the two together. */
#include "absent.hpp"

#include <cstring>

namespace chagres::guard {

namespace {

constexpr const char *kExperts[] = {
    "create_grouped_tensor", "destroy_grouped_tensor", "set_grouped_tensor_param", "get_grouped_tensor_param",
    "grouped_tensor_num_tensors", "grouped_tensor_type", "grouped_tensor_scaling_mode",
    "get_grouped_tensor_logical_shape", "group_gelu", "group_silu", "group_scaled_swiglu",
    "group_scaled_clamped_swiglu", "group_relu", "group_qgelu", "group_srelu", "group_dgelu", "group_dsilu",
    "group_drelu", "group_dqgelu", "group_dsrelu", "group_quantize", "group_quantize_dbias",
    "group_quantize_dbias_dgelu", "group_quantize_dbias_dsilu", "group_quantize_dbias_drelu",
    "group_quantize_dbias_dqgelu", "group_quantize_dbias_dsrelu", "group_dequantize", "group_requantize",
    "fused_topk_with_score_function_forward", "fused_topk_with_score_function_forward_v2",
    "fused_topk_with_score_function_forward_with_indices", "fused_topk_with_score_function_forward_qb_v2",
    "fused_topk_with_score_function_forward_qb_v2_unchecked",
    "fused_topk_with_score_function_forward_qb_with_indices",
    "fused_topk_with_score_function_forward_qb_with_indices_unchecked", "qb_histogram_accumulate",
    "qb_histogram_accumulate_unchecked", "fused_topk_with_score_function_backward",
    "fused_topk_with_score_function_backward_v2", "fused_topk_with_score_function_backward_with_indices",
    "fused_score_for_moe_aux_loss_forward", "fused_score_for_moe_aux_loss_forward_v2",
    "fused_score_for_moe_aux_loss_backward", "fused_moe_aux_loss_forward", "fused_moe_aux_loss_forward_graph_safe",
    "fused_moe_aux_loss_backward", "create_grouped_matmul_config", "get_grouped_matmul_config_attribute",
    "set_grouped_matmul_config_attribute", "destroy_grouped_matmul_config", "get_grouped_gemm_setup_workspace_size",
    "convert_int32_to_int64", "convert_int32_to_int64_with_multiplier", "compute_grouped_tensor_offsets",
    "grouped_gemm", "grouped_gemm_with_discrete_inputA", "grouped_gemm_with_discrete_out", "grouped_bias_add",
    "grouped_scaled_bias_add", "group_amax", "group_amax_graph_safe", "group_compute_amax_with_config",
    "group_compute_scale_from_amax", "convert_pointers_to_tensor",
};

constexpr const char *kSeveralGpus[] = {
    "comm_gemm_ctx_create", "comm_gemm_ctx_destroy", "all_gather_gemm", "gemm_reduce_scatter", "gemm_all_reduce",
    "comm_gemm_numroc", "ep_initialize", "ep_shutdown", "ep_handle_mem_size", "ep_prepare", "ep_dispatch",
    "ep_prepare_and_dispatch", "ep_combine", "ep_dispatch_bwd", "ep_combine_bwd", "cublas_atomic_gemm",
    "cusolvermp_ctx_create", "cusolvermp_ctx_destroy", "newton_schulz",
};

constexpr const char *kGeneration[] = {
    "copy_to_kv_cache",
};

constexpr const char *kBlackwell[] = {
    "group_nvfp4_quantize_with_amax", "hadamard_transform_amax", "hadamard_transform_cast_fusion_columnwise",
    "quantize_with_hadamard_transform", "group_hadamard_transform_amax", "group_hadamard_transform_amax_graph_safe",
    "group_hadamard_transform_cast_fusion_columnwise", "group_hadamard_transform_cast_fusion",
    "group_hadamard_transform_cast_fusion_graph_safe", "multi_tensor_compute_scale_inv_e8m0_cuda",
    "mxfp8_scaling_compute_partial_amax", "mxfp8_scaling_partial_cast", "nvfp4_compute_per_tensor_scale",
    "nvfp4_2d_compute_partial_amax", "nvfp4_2d_partial_cast", "nvfp4_expand_scale_to_fp8",
    "nvfp4_compute_per_block_scale", "nvfp4_fused_scale", "nvfp4_compute_global_scale", "swizzle_scaling_factors",
    "multi_tensor_swizzle_scaling_factors", "multi_tensor_swizzle_scaling_factors_unchecked",
    "unswizzle_scaling_factors", "multi_tensor_unswizzle_scaling_factors",
    "swizzle_block_scaling_to_mxfp8_scaling_factors", "swizzle_grouped_scaling_factors",
    "unswizzle_grouped_scaling_factors", "nvfp4_data_transpose", "nvfp4_scale_transpose",
};

constexpr const char *kHandles[] = {
    "get_runtime_num_segments", "get_num_compute_streams", "get_compute_stream", "get_compute_stream_event",
    "get_cudnn_handle",
};

template <std::size_t count>
bool lists(const char *const (&names)[count], const char *name) {
  for (const char *listed : names) {
    if (std::strcmp(listed, name) == 0) return true;
  }
  return false;
}

}  // namespace

const char *absent_because(const char *name) {
  if (lists(kExperts, name)) {
    return "it belongs to mixtures of experts, which the CPU reference does not compute";
  }
  if (lists(kSeveralGpus, name)) {
    return "it belongs to training over several GPUs, which the CPU reference does by NCCL's functions alone";
  }
  if (lists(kGeneration, name)) {
    return "it belongs to generating text, which the CPU reference does not compute";
  }
  if (lists(kBlackwell, name)) {
    return "it belongs to MXFP8 and NVFP4, which need compute capability 10.0, and the CPU reference computes as 9.0 does";
  }
  if (lists(kHandles, name)) {
    return "it asks for streams, handles or counts of CUDA's libraries, which the CPU reference lacks";
  }
  return nullptr;
}

}  // namespace chagres::guard

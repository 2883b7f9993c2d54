/* Transformer Engine's functions, through the guard: those over single tensors. */
#include "te_cases_fp8.h"

namespace extremes {

namespace {

/* An attribute's getter and setter, which three kinds of objects and two configurations have. */
#define ATTRIBUTE_CASES(object, attribute)                                                                             \
  CASE(te_get_##object##_attribute, f.object(), attribute, f.host(8), 8, f.out<size_t>()),                             \
      CASE(te_set_##object##_attribute, f.object(), attribute, f.host(8), 8)

NVTEBasicTensor *record(Fixture &f) {
  return f.values({NVTEBasicTensor{f.device(64 * 4), kNVTEFloat32, NVTEShape{{8, 8}, 2}}});
}

std::vector<Case> handle_cases() {
  return {
      CASE(te_create_tensor, NVTE_DELAYED_TENSOR_SCALING, f.out<NVTETensor>()),
      CASE(te_create_tensors, NVTE_DELAYED_TENSOR_SCALING, f.out<NVTETensor>(4), 4),
      CASE(te_destroy_tensor, f.unset()),
      CASE(te_destroy_tensors, f.handles({f.unset(), f.unset()}), 2),
      CASE(te_tensor_data, f.f32({8, 8}), f.out<void *>()),
      CASE(te_tensor_columnwise_data, f.f32({8, 8}), f.out<void *>()),
      CASE(te_make_shape, f.values<size_t>({2, 3, 4}), 3, f.out<NVTEShape>()),
      CASE(te_tensor_shape, f.f32({8, 8}), f.out<NVTEShape>()),
      CASE(te_tensor_columnwise_shape, f.f32({8, 8}), f.out<NVTEShape>()),
      CASE(te_tensor_ndims, f.f32({8, 8}), f.out<size_t>()),
      CASE(te_tensor_size, f.f32({8, 8}), 1, f.out<size_t>()),
      CASE(te_tensor_size_bytes, f.f32({8, 8}), f.out<size_t>()),
      CASE(te_tensor_numel, f.f32({8, 8}), f.out<size_t>()),
      CASE(te_tensor_element_size, f.f32({8, 8}), f.out<size_t>()),
      CASE(te_tensor_element_size_bits, f.f32({8, 8}), f.out<size_t>()),
      CASE(te_tensor_type, f.f32({8, 8}), f.out<NVTEDType>()),
      CASE(te_tensor_amax, f.f32({8, 8}), f.out<float *>()),
      CASE(te_tensor_scale, f.f32({8, 8}), f.out<float *>()),
      CASE(te_tensor_scale_inv, f.f32({8, 8}), f.out<float *>()),
      CASE(te_tensor_scale_inv_shape, f.f32({8, 8}), f.out<NVTEShape>()),
      CASE(te_zero_tensor, f.f32({8, 8}), f.stream()),
      CASE(te_set_tensor_param, f.handles({f.unset()}), kNVTERowwiseData, record(f)),
      CASE(te_get_tensor_param, f.f32({8, 8}), kNVTERowwiseData, f.out<NVTEBasicTensor>()),
      CASE(te_set_tensor_param_v2, f.unset(), kNVTERowwiseData, record(f), sizeof(NVTEBasicTensor)),
      CASE(te_get_tensor_param_v2, f.f32({8, 8}), kNVTERowwiseData, f.out<NVTEBasicTensor>(), sizeof(NVTEBasicTensor),
           f.out<size_t>()),
      CASE(te_tensor_scaling_mode, f.f32({8, 8}), f.out<NVTEScalingMode>()),
      CASE(te_tensor_pack_create, f.out<NVTETensorPack>()),
      CASE(te_tensor_pack_destroy, f.pack()),
      CASE(te_create_quantization_config, f.out<NVTEQuantizationConfig>()),
      CASE(te_destroy_quantization_config, f.quantization_config()),
      CASE(te_create_matmul_config, f.out<NVTEMatmulConfig>()),
      CASE(te_destroy_matmul_config, f.matmul_config()),
      CASE(te_create_fused_attn_config, f.out<NVTEFusedAttnConfig>()),
      CASE(te_destroy_fused_attn_config, f.fused_attn_config()),
      CASE(te_create_fused_attn_fwd_params, f.out<NVTEFusedAttnFwdParams>()),
      CASE(te_destroy_fused_attn_fwd_params, f.fused_attn_fwd_params()),
      CASE(te_create_fused_attn_bwd_params, f.out<NVTEFusedAttnBwdParams>()),
      CASE(te_destroy_fused_attn_bwd_params, f.fused_attn_bwd_params()),
      ATTRIBUTE_CASES(quantization_config, kNVTEQuantizationConfigNoopTensor),
      ATTRIBUTE_CASES(matmul_config, kNVTEMatmulConfigBiasTensor),
      ATTRIBUTE_CASES(fused_attn_config, kNVTEFusedAttnConfigMaxSeqlenQ),
      ATTRIBUTE_CASES(fused_attn_fwd_params, kNVTEFusedAttnFwdParamsQ),
      ATTRIBUTE_CASES(fused_attn_bwd_params, kNVTEFusedAttnBwdParamsQ),
      CASE(te_is_non_tn_fp8_gemm_supported, f.out<int>()),
      CASE(te_memset, f.device(64), 1, 64, f.stream()),
      CASE(te_copy_host_to_device_via_kernel, f.host(64), f.device(64), 64, f.stream()),
  };
}

#define UNARY(function) CASE(function, f.bf16({8, 16}), f.bf16({8, 16}), f.stream())
#define UNARY_GRADIENT(function) CASE(function, f.bf16({8, 16}), f.bf16({8, 16}), f.bf16({8, 16}), f.stream())
#define GATED(function) CASE(function, f.bf16({8, 32}), f.bf16({8, 16}), f.stream())
#define GATED_GRADIENT(function) CASE(function, f.bf16({8, 16}), f.bf16({8, 32}), f.bf16({8, 32}), f.stream())

std::vector<Case> activation_cases() {
  return {
      CASE(te_gelu, f.bf16({500, 400}), f.bf16({500, 400}), f.stream()), /* so many that several threads work */
      UNARY(te_gelu),           UNARY(te_silu),           UNARY(te_relu),           UNARY(te_qgelu),
      UNARY(te_srelu),          UNARY_GRADIENT(te_dgelu), UNARY_GRADIENT(te_dsilu), UNARY_GRADIENT(te_drelu),
      UNARY_GRADIENT(te_dqgelu), UNARY_GRADIENT(te_dsrelu), GATED(te_glu),          GATED(te_geglu),
      GATED(te_swiglu),         GATED(te_reglu),          GATED(te_qgeglu),         GATED(te_sreglu),
      GATED_GRADIENT(te_dglu),  GATED_GRADIENT(te_dgeglu), GATED_GRADIENT(te_dswiglu), GATED_GRADIENT(te_dreglu),
      GATED_GRADIENT(te_dqgeglu), GATED_GRADIENT(te_dsreglu),
      CASE(te_clamped_swiglu, f.bf16({8, 32}), f.bf16({8, 16}), 7.0f, 1.702f, f.stream()),
      CASE(te_clamped_swiglu_v2, f.bf16({8, 32}), f.bf16({8, 16}), 7.0f, 1.702f, 1.0f, f.stream()),
      CASE(te_clamped_dswiglu, f.bf16({8, 16}), f.bf16({8, 32}), f.bf16({8, 32}), 7.0f, 1.702f, f.stream()),
      CASE(te_clamped_dswiglu_v2, f.bf16({8, 16}), f.bf16({8, 32}), f.bf16({8, 32}), 7.0f, 1.702f, 1.0f, f.stream()),
      CASE(te_situglu, f.bf16({8, 32}), f.bf16({8, 16}), 4.0f, 25.0f, f.stream()),
      CASE(te_dsituglu, f.bf16({8, 16}), f.bf16({8, 32}), f.bf16({8, 32}), 4.0f, 25.0f, f.stream()),
  };
}

std::vector<Case> conversion_cases() {
  return {
      CASE(te_quantize, f.f32({8, 16}), f.bf16({8, 16}), f.stream()),
      CASE(te_quantize_noop, f.f32({8, 16}), f.bf16({8, 16}), f.floats({0}), f.stream()),
      CASE(te_quantize_v2, f.f32({8, 16}), f.bf16({8, 16}), f.quantization_config(), f.stream()),
      CASE(te_transpose, f.bf16({8, 16}), f.bf16({16, 8}), f.stream()),
      CASE(te_transpose_with_noop, f.bf16({8, 16}), f.floats({0}), f.bf16({16, 8}), f.stream()),
      CASE(te_swap_first_dims, f.bf16({8, 16, 4}), f.bf16({16, 8, 4}), f.stream()),
      CASE(te_hadamard_transform, f.bf16({16, 32}), f.bf16({32, 16}), 5, 9, f.stream()),
      CASE(te_dropout_fwd, f.bf16({8, 16}), f.bf16({8, 16}), f.tensor(kNVTEByte, {16}), f.int64s({1, 2}), 0.5f, f.stream()),
      CASE(te_dropout_bwd, f.bf16({8, 16}), f.tensor(kNVTEByte, {16}), f.bf16({8, 16}), 0.5f, f.stream()),
      CASE(te_topk, f.stream(), f.f32({4, 100}), f.int32s({100, 50, 2, 0}), f.f32({4, 7}), f.tensor(kNVTEInt32, {4, 7}),
           f.workspace([&](NVTETensor query) {
             return te_topk(nullptr, f.f32({4, 100}), f.int32s({100, 50, 2, 0}), f.f32({4, 7}), f.tensor(kNVTEInt32, {4, 7}),
                            query, 4, 100, 7);
           }),
           4, 100, 7),
      CASE(te_convert_thd_to_bshd, f.bf16({6, 2, 8}), f.int32s({0, 2, 6}), f.bf16({2, 4, 2, 8}), 2, 4, f.stream()),
      CASE(te_convert_bshd_to_thd, f.bf16({2, 4, 2, 8}), f.int32s({0, 2, 6}), f.bf16({6, 2, 8}), 6, f.stream()),
      CASE(te_extract_seed_and_offset, f.device_values<int64_t>({0, 0}), 1, f.device_values<int64_t>({7}), 1,
           f.device_values<int64_t>({8}), 2, 3, f.stream()),
      CASE(te_populate_rng_state_async, f.device_values<int64_t>({0, 0}), f.device_values<int64_t>({7}), 3, 4,
           NVTE_F16_arbitrary_seqlen, f.stream()),
  };
}

/* Packed tokens of two sequences; then both dense layouts. */
std::vector<Case> rope_cases() {
  return {
      CASE(te_fused_rope_forward, f.bf16({6, 2, 16}), f.int32s({0, 2, 6}), f.f32({8, 1, 1, 8}), f.unset(),
           f.bf16({6, 2, 16}), NVTE_THD, false, 1, 0, 4, 2, 2, 16, 8, 32, 0, 16, 1, f.stream()),
      CASE(te_fused_rope_forward, f.bf16({2, 3, 2, 16}), f.unset(), f.f32({8, 1, 1, 8}), f.int32s({1, 2}),
           f.bf16({2, 3, 2, 16}), NVTE_BSHD, true, 1, 0, 3, 2, 2, 16, 8, 32, 96, 16, 1, f.stream()),
      CASE(te_fused_rope_backward, f.bf16({3, 2, 2, 16}), f.unset(), f.f32({8, 1, 1, 8}), f.unset(),
           f.bf16({3, 2, 2, 16}), NVTE_SBHD, false, 1, 0, 3, 2, 2, 16, 8, 64, 32, 16, 1, f.stream()),
      CASE(te_fused_qkv_rope_forward, f.bf16({2, 4, 2, 48}), f.f32({8, 1, 1, 8}), f.f32({8, 1, 1, 8}), f.int32s({1, 2}),
           f.bf16({2, 4, 2, 16}), f.bf16({2, 4, 2, 16}), f.bf16({2, 4, 2, 16}), NVTE_BSHD, true, 1, 0, 4, 2, 2, 16, 8, 16,
           16, 16, f.stream()),
      CASE(te_fused_qkv_rope_backward, f.bf16({4, 2, 2, 16}), f.bf16({4, 2, 2, 16}), f.bf16({4, 2, 2, 16}),
           f.f32({8, 1, 1, 8}), f.f32({8, 1, 1, 8}), f.bf16({4, 2, 2, 48}), NVTE_SBHD, false, 1, 0, 4, 2, 2, 16, 8, 16, 16,
           16, f.stream()),
  };
}

NVTETensor *cell(Fixture &f, NVTETensor tensor) { return f.handles({tensor}); }

/* Two sequences of 4 and 8 tokens. */
std::vector<Case> context_parallel_cases() {
  return {
      CASE(te_cp_thd_read_half_tensor, cell(f, f.bf16({12, 2, 8})), cell(f, f.int32s({0, 4, 12})), f.bf16({6, 2, 8}), 1,
           f.stream()),
      CASE(te_cp_thd_second_half_lse_correction, f.f32({2, 12}), cell(f, f.f32({2, 6})), cell(f, f.int32s({0, 4, 12})), 1,
           f.stream()),
      CASE(te_cp_thd_read_second_half_lse, cell(f, f.f32({2, 2, 8})), cell(f, f.int32s({0, 4, 12})), f.f32({2, 2, 4}), 0, 4,
           f.stream()),
      CASE(te_cp_thd_out_correction, f.bf16({12, 2, 8}), cell(f, f.bf16({6, 2, 8})), cell(f, f.f32({2, 12})),
           cell(f, f.f32({2, 12})), cell(f, f.f32({2, 6})), cell(f, f.int32s({0, 4, 12})), 1, 1, f.stream()),
      CASE(te_cp_thd_grad_correction, f.bf16({2, 12, 2, 8}), cell(f, f.bf16({2, 12, 2, 8})), cell(f, f.int32s({0, 4, 12})),
           "add", "copy", f.stream()),
      CASE(te_cp_thd_get_partitioned_indices, cell(f, f.int32s({0, 4, 12})), f.int32s({0, 0, 0, 0, 0, 0}), 12, 2, 0,
           f.stream()),
      CASE(te_thd_sequence_order_to_cp_rank_order, cell(f, f.bf16({12, 8})), cell(f, f.int32s({0, 4, 12})), f.bf16({12, 8}), 2,
           12, f.stream()),
      CASE(te_thd_cp_rank_order_to_sequence_order, cell(f, f.bf16({12, 8})), cell(f, f.int32s({0, 4, 12})), f.bf16({12, 8}), 2,
           12, f.stream()),
      CASE(te_thd_copy_valid_tokens_from_per_split_to_rank_local, cell(f, f.bf16({12, 8})), cell(f, f.int32s({0, 4, 12})),
           cell(f, f.int32s({0, 3, 8})), f.bf16({12, 8}), 12, f.stream()),
  };
}

#define SOFTMAX_SHAPE {2, 2, 128, 64}

std::vector<Case> softmax_cases() {
  return {
      CASE(te_scaled_softmax_forward, f.bf16(SOFTMAX_SHAPE), f.bf16(SOFTMAX_SHAPE), 0.5f, f.stream()),
      CASE(te_scaled_softmax_backward, f.bf16(SOFTMAX_SHAPE), f.bf16(SOFTMAX_SHAPE), f.bf16(SOFTMAX_SHAPE), 0.5f,
           f.stream()),
      CASE(te_scaled_masked_softmax_forward, f.bf16(SOFTMAX_SHAPE), f.tensor(kNVTEByte, {2, 1, 128, 64}),
           f.bf16(SOFTMAX_SHAPE), 0.5f, f.stream()),
      CASE(te_scaled_masked_softmax_backward, f.bf16(SOFTMAX_SHAPE), f.bf16(SOFTMAX_SHAPE), f.bf16(SOFTMAX_SHAPE), 0.5f,
           f.stream()),
      CASE(te_scaled_upper_triang_masked_softmax_forward, f.bf16({128, 64, 64}), f.bf16({128, 64, 64}), 0.5f, f.stream()),
      CASE(te_scaled_upper_triang_masked_softmax_backward, f.bf16({128, 64, 64}), f.bf16({128, 64, 64}),
           f.bf16({128, 64, 64}), 0.5f, f.stream()),
      CASE(te_scaled_aligned_causal_masked_softmax_forward, f.bf16(SOFTMAX_SHAPE), f.bf16(SOFTMAX_SHAPE), 0.5f, f.stream()),
      CASE(te_scaled_aligned_causal_masked_softmax_backward, f.bf16(SOFTMAX_SHAPE), f.bf16(SOFTMAX_SHAPE),
           f.bf16(SOFTMAX_SHAPE), 0.5f, f.stream()),
  };
}

NVTETensor matrix(Fixture &f) { return f.bf16({8, 64}); }
NVTETensor columns(Fixture &f) { return f.bf16({64}); }
NVTETensor rows(Fixture &f) { return f.f32({8}); }

/* A switch of the process, which the cases behind must find off. */
template <int (*function)(bool)>
int enable_for_now(bool enable) {
  const int status = function(enable);
  return function(false) == 0 ? status : -1;
}
#define SWITCH_CASE(function) CASE_OF(#function, (&enable_for_now<function>), true)

std::vector<Case> norm_cases() {
  return {
      SWITCH_CASE(te_enable_cudnn_norm_fwd),
      SWITCH_CASE(te_enable_cudnn_norm_bwd),
      SWITCH_CASE(te_enable_zero_centered_gamma_in_weight_dtype),
      CASE(te_layernorm_fwd, matrix(f), columns(f), columns(f), 1e-5f, matrix(f), rows(f), rows(f),
           f.workspace([&](NVTETensor query) {
             return te_layernorm_fwd(matrix(f), columns(f), columns(f), 1e-5f, matrix(f), rows(f), rows(f), query, 1, false,
                                     nullptr);
           }),
           1, false, f.stream()),
      CASE(te_layernorm_bwd, matrix(f), matrix(f), rows(f), rows(f), columns(f), matrix(f), columns(f), columns(f),
           f.workspace([&](NVTETensor query) {
             return te_layernorm_bwd(matrix(f), matrix(f), rows(f), rows(f), columns(f), matrix(f), columns(f), columns(f),
                                     query, 1, false, nullptr);
           }),
           1, false, f.stream()),
      CASE(te_rmsnorm_fwd, matrix(f), columns(f), 1e-5f, matrix(f), rows(f),
           f.workspace([&](NVTETensor query) {
             return te_rmsnorm_fwd(matrix(f), columns(f), 1e-5f, matrix(f), rows(f), query, 1, true, nullptr);
           }),
           1, true, f.stream()),
      CASE(te_rmsnorm_bwd, matrix(f), matrix(f), rows(f), columns(f), matrix(f), columns(f),
           f.workspace([&](NVTETensor query) {
             return te_rmsnorm_bwd(matrix(f), matrix(f), rows(f), columns(f), matrix(f), columns(f), query, 1, true,
                                   nullptr);
           }),
           1, true, f.stream()),
      CASE(te_rmsnorm_bwd_add, matrix(f), matrix(f), matrix(f), rows(f), columns(f), matrix(f), columns(f),
           f.workspace([&](NVTETensor query) {
             return te_rmsnorm_bwd_add(matrix(f), matrix(f), matrix(f), rows(f), columns(f), matrix(f), columns(f), query, 1,
                                       true, nullptr);
           }),
           1, true, f.stream()),
  };
}

}  // namespace

std::vector<Case> te_cases() {
  std::vector<Case> all;
  for (const auto &some :
       {handle_cases(), activation_cases(), conversion_cases(), rope_cases(), context_parallel_cases(), softmax_cases(),
        norm_cases(), fp8_cases()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace extremes

"""What the guard refuses, beyond what the types of the arguments say. Read by generate.py.

From the type alone follows, for every argument of every function:
  NVTETensor and the other handles   live: made through the guard and not destroyed
  `const NVTETensor &`               a pointer to a cell that holds a live handle
  NVTETensor *, with its count       each element live
  any other pointer                  an address, not null
  cudaStream_t                       null, 1, 2 (CUDA's special streams) or an address
  an enumeration                     one of its values
The tables below name the exceptions and additions. Keys are function names without prefix.
"""

# Handles, and arrays of them, for which 0 means "none" to the library.
OPTIONAL = {
    "destroy_tensor": ["tensor"],
    "destroy_grouped_tensor": ["tensor"],
    "destroy_quantization_config": ["config"],
    "destroy_matmul_config": ["config"],
    "destroy_grouped_matmul_config": ["config"],
    "tensor_type": ["tensor"],
    "tensor_data": ["tensor"],
    "tensor_columnwise_data": ["tensor"],
    "tensor_element_size": ["tensor"],
    "tensor_element_size_bits": ["tensor"],
    "tensor_size_bytes": ["tensor"],
    "tensor_amax": ["tensor"],
    "tensor_scale": ["tensor"],
    "tensor_scale_inv": ["tensor"],
    "tensor_scale_inv_shape": ["tensor"],
    "tensor_scaling_mode": ["tensor"],
    "get_tensor_param": ["tensor"],
    "get_tensor_param_v2": ["tensor"],
    "zero_tensor": ["tensor"],
    "get_grouped_tensor_param": ["tensor"],
    "grouped_tensor_num_tensors": ["tensor"],
    "grouped_tensor_type": ["tensor"],
    "grouped_tensor_scaling_mode": ["tensor"],
    "get_grouped_tensor_logical_shape": ["tensor"],
    "get_quantization_config_attribute": ["config"],
    "get_matmul_config_attribute": ["config"],
    "get_grouped_matmul_config_attribute": ["config"],
    "quantize_v2": ["quant_config"],
    "group_quantize": ["quant_config"],
    "group_quantize_dbias": ["quant_config"],
    "multi_tensor_quantize": ["quant_config"],
    "group_nvfp4_quantize_with_amax": ["quant_config"],
    "group_requantize": ["dequantized", "quant_config"],
    "compute_amax_with_config": ["config"],
    "group_compute_amax_with_config": ["config"],
    "group_compute_scale_from_amax": ["config"],
    "hadamard_transform_cast_fusion_columnwise": ["quant_config"],
    "quantize_with_hadamard_transform": ["quant_config"],
    "group_hadamard_transform_cast_fusion_columnwise": ["quant_config"],
    "group_hadamard_transform_cast_fusion": ["quant_config"],
    "group_hadamard_transform_cast_fusion_graph_safe": ["quant_config"],
    "cublas_gemm_v2": ["workspace", "config"],
    "multi_tensor_gemm": ["bias", "pre_gelu_out"],
    "grouped_gemm": ["C", "config"],
    "grouped_gemm_with_discrete_inputA": ["C", "config"],
    "grouped_gemm_with_discrete_out": ["config"],
    "scaled_dswiglu": ["grad_act_scales"],
    "scaled_dsituglu": ["grad_act_scales"],
    "scaled_clamped_dswiglu": ["grad_act_scales"],
    "scaled_dsrelu": ["grad_act_scales"],
    "ep_prepare": ["recv_tokens_per_expert", "total_recv_tokens_per_rank"],
    "ep_dispatch": ["topk_idx", "topk_weights", "recv_topk_weights"],
    "ep_prepare_and_dispatch": [
        "topk_weights", "recv_topk_weights", "recv_tokens_per_expert", "total_recv_tokens_per_rank",
    ],
}

# Pointers that may be null.
NULLABLE = {
    "make_shape": ["data"],
    "get_tensor_param_v2": ["buf", "size_written"],
    "get_grouped_tensor_param": ["buf", "size_written"],
    "get_quantization_config_attribute": ["buf", "size_written"],
    "get_matmul_config_attribute": ["buf"],
    "get_grouped_matmul_config_attribute": ["buf"],
    "get_fused_attn_config_attribute": ["buf", "size_written"],
    "get_fused_attn_fwd_params_attribute": ["buf", "size_written"],
    "get_fused_attn_bwd_params_attribute": ["buf", "size_written"],
    "get_fused_attn_backend_v2": ["message"],
    "extract_seed_and_offset": ["seed_ptr", "offset_ptr"],
}

# Arguments declared as tensors that the library takes for device addresses.
DEVICE_ADDRESS = {
    "populate_rng_state_async": ["rng_state_dst", "seed"],
    "get_runtime_num_segments": ["cu_seqlens", "workspace"],
}

# Arguments declared as tensors that the library takes for grouped tensors.
GROUPED = {
    "group_dgelu": ["output"],
    "group_dsilu": ["output"],
    "group_drelu": ["output"],
    "group_dqgelu": ["output"],
    "group_dsrelu": ["output"],
}

# How many elements an array has: its count parameter where the name does not tell (see generate.py), or an expression.
COUNT = {
    "set_tensor_param": {"tensor": "1"},
    "grouped_gemm_with_discrete_inputA": {"A_list": "num_a_tensors"},
    "grouped_gemm_with_discrete_out": {"C_list": "num_c_tensors", "D_list": "num_d_tensors"},
    "multi_tensor_gemm": {"workspace": "gemm_workspace_count(num_gemms)"},
    "newton_schulz": {"coefficients": "num_coefficients"},
    "convert_pointers_to_tensor": {"host_ptrs": "count"},
    "copy_host_to_device_via_kernel": {"host_ptr": "num_bytes", "device_ptr": "num_bytes"},
}
COUNT_NAMES = ["N", "num_tensors", "num_gemms", "num_outputs"]

# Smallest value that does not lead to a division by zero or to reading before the start of an array. Of multiprocessors a
# norm keeps the first number by thread and shape: with 0 none of that shape would run again on the thread.
LEAST = {
    "*.multiprocessorCount": 1,
    "*.chunk_size": 1,
    "*.num_tensor_lists": 1,
    "*.num_tensors_per_list": 1,
    "multi_tensor_sgd_cuda.num_tensor_lists": 2,
    "multi_tensor_scale_cuda.num_tensor_lists": 2,
    "multi_tensor_scale_tensor_cuda.num_tensor_lists": 2,
    "multi_tensor_compute_scale_inv_e8m0_cuda.num_tensor_lists": 2,
    "group_nvfp4_quantize_with_amax.num_tensors": 1,
    "topk.batch_size": 1,
    "topk.seq_len": 1,
    "topk.k": 1,
    "convert_pointers_to_tensor.count": 0,
}

# Largest value, where a larger one overflows on the host or reads far past any caller's memory.
MOST = {
    "topk.batch_size": 1 << 24,
    "topk.seq_len": 1 << 28,
    "copy_host_to_device_via_kernel.num_bytes": 1 << 30,
    "convert_pointers_to_tensor.count": 1 << 24,
}

# Tensors that must have elements: the library divides by a count that is zero for empty ones.
ELEMENTS = {
    "transpose": ["input"],
    "transpose_with_noop": ["input"],
    "swap_first_dims": ["input"],
}

# The same for functions that transpose as well where the output has columnwise data: all of these headers with an
# `input` and an `output`, and these more, by (input, output).
TRANSPOSING_HEADERS = ["activation.h", "cast.h", "cast_transpose_noop.h", "transpose.h"]
TRANSPOSING = {
    "layernorm_fwd": ("x", "z"),
    "rmsnorm_fwd": ("x", "z"),
}
TRANSPOSING_LISTS = {
    "multi_tensor_quantize": ("inputs", "outputs", "num_tensors"),
    "multi_cast_transpose": ("input_list", "output_list", "num_tensors"),
}

# Further conditions, C++ of guard.cpp's and checks.cpp's functions.
EXTRA = {
    "create_grouped_tensor": ['check.shape("logical_shape", logical_shape)'],
    "set_tensor_param": ['check.basic_tensor("param", param)'],
    "set_tensor_param_v2": ["tensor_attribute(check, param, buf, size_in_bytes)"],
    "set_grouped_tensor_param": ["grouped_tensor_attribute(check, param, buf, size_in_bytes)"],
    "get_compute_stream": ["compute_stream_index(check, idx)"],
    "get_compute_stream_event": ["compute_stream_index(check, idx)"],
    "extract_seed_and_offset": [
        '(captured == 0 || check.pointer("seed_ptr", seed_ptr))',
        '(captured == 0 || check.pointer("offset_ptr", offset_ptr))',
    ],
    "swap_first_dims": ["whole_bytes(check, input)"],
    "multi_tensor_transpose_to_bhsd": ['four_dimensions(check, "outputs", outputs, num_tensors)'],
    "cublas_gemm_v2": ["matmul_config(check, config)"],
    "multi_tensor_gemm": [
        'some_for_cutlass(check, "bias", bias, num_gemms)',
        'some_for_cutlass(check, "pre_gelu_out", pre_gelu_out, num_gemms)',
    ],
    "delayed_scaling_recipe_amax_and_scale_update_after_reduction": [
        'check.equal("scales_count", scales_count, amax_histories_count)',
    ],
    "fused_attn_fwd": [
        'check.pack("Aux_CTX_Tensors", Aux_CTX_Tensors)',
        'bias_of_scores(check, "Bias", bias_type, Bias)',
    ],
    "fused_attn_bwd": [
        'check.pack("Aux_CTX_Tensors", Aux_CTX_Tensors)',
        "bias_gradient(check, bias_type, Aux_CTX_Tensors, dBias)",
    ],
    "fused_attn_fwd_v2": ["fused_attn_fwd_params(check, params)"],
    "fused_attn_bwd_v2": ["fused_attn_bwd_params(check, params)"],
}

# What te.h says about them.
NOTES = {
    "create_grouped_tensor": ["logical_shape.ndim <= 15."],
    "set_tensor_param": ["param->shape.ndim <= 15, param->dtype a type."],
    "set_tensor_param_v2": ["A tensor in buf has ndim <= 15 and a type for dtype."],
    "set_grouped_tensor_param": ["A tensor in buf has ndim <= 15 and a type for dtype."],
    "destroy_tensors": ["A handle 0 is left alone."],
    "tensor_pack_create": ["Does not touch pack->size: set it to 0."],
    "get_compute_stream": ["0 <= idx < te_get_num_compute_streams."],
    "get_compute_stream_event": ["0 <= idx < te_get_num_compute_streams."],
    "extract_seed_and_offset": ["That is, where captured is 0."],
    "cublas_gemm_v2": ["The configured auxiliary tensor is live."],
    "fused_attn_fwd": [
        "Each of the pack's first `size` tensors is live, size <= 10.",
        "A bias and its gradient have 4 dimensions.",
    ],
    "fused_attn_bwd": [
        "Each of the pack's first `size` tensors is live, size <= 10.",
        "A bias and its gradient have 4 dimensions.",
    ],
    "fused_attn_fwd_v2": [
        "The configured workspace and each of the pack's first `size` tensors are live, size <= 10.",
        "A bias and its gradient have 4 dimensions.",
    ],
    "fused_attn_bwd_v2": [
        "The configured workspace and each of the pack's first `size` tensors are live, size <= 10.",
        "A bias and its gradient have 4 dimensions.",
    ],
    "delayed_scaling_recipe_amax_and_scale_update_after_reduction": ["scales_count = amax_histories_count."],
    "multi_tensor_transpose_to_bhsd": ["outputs are of four dimensions and not empty."],
    "swap_first_dims": ["An input of 4-bit numbers has more than one after its first two dimensions."],
    "multi_tensor_gemm": [
        "That is, elements of them, unless NVTE_USE_CUTLASS_GROUPED_GEMM is set.",
        "workspace has min(num_gemms, te_get_num_compute_streams) tensors.",
    ],
}

# Functions that call a symbol of another library which not every version has. Without it the call would end the
# process, so it is refused. Everything else that the opened library needs and nobody has makes te_open fail.
NEEDS = {
    "grouped_gemm": "cublasLtGroupedMatrixLayoutInit_internal",
    "grouped_gemm_with_discrete_inputA": "cublasLtGroupedMatrixLayoutInit_internal",
    "grouped_gemm_with_discrete_out": "cublasLtGroupedMatrixLayoutInit_internal",
}

# Handle types and their kinds in handles.hpp.
KINDS = {
    "NVTETensor": "tensor",
    "NVTEGroupedTensor": "grouped_tensor",
    "NVTEQuantizationConfig": "quantization_config",
    "NVTEMatmulConfig": "matmul_config",
    "NVTEGroupedMatmulConfig": "grouped_matmul_config",
    "NVTEFusedAttnConfig": "fused_attn_config",
    "NVTEFusedAttnFwdParams": "fused_attn_fwd_params",
    "NVTEFusedAttnBwdParams": "fused_attn_bwd_params",
    "NVTECommGemmCtx *": "comm_gemm_context",
    "NVTECusolverMpCtx *": "cusolvermp_context",
}

# What makes handles besides a returned one, and what ends them: the array and its count.
CREATES = {
    "create_tensors": ("tensors", "N"),
    "tensor_pack_create": ("pack->tensors", "NVTETensorPack_MAX_SIZE"),
}
DESTROYS = {
    "destroy_tensor": ("&tensor", "1"),
    "destroy_tensors": ("tensors", "N"),
    "tensor_pack_destroy": ("pack->tensors", "NVTETensorPack_MAX_SIZE"),
    "destroy_grouped_tensor": ("&tensor", "1"),
    "destroy_quantization_config": ("&config", "1"),
    "destroy_matmul_config": ("&config", "1"),
    "destroy_grouped_matmul_config": ("&config", "1"),
    "destroy_fused_attn_config": ("&config", "1"),
    "destroy_fused_attn_fwd_params": ("&params", "1"),
    "destroy_fused_attn_bwd_params": ("&params", "1"),
    "comm_gemm_ctx_destroy": ("&ctx", "1"),
    "cusolvermp_ctx_destroy": ("&ctx", "1"),
}

# Exported by the library and declared in none of its headers: (name, result, parameters as (type, name)).
UNDECLARED = [("nvte_get_cudnn_handle", "cudnnHandle_t", [])]


def transposing_pair(function):
    """(input, output) of a function that may transpose, or None."""
    if function.stem in TRANSPOSING:
        return TRANSPOSING[function.stem]
    if function.stem in ELEMENTS:
        return None
    tensors = {p.name for p in function.parameters if p.type == "NVTETensor"}
    is_one = function.header in TRANSPOSING_HEADERS and {"input", "output"} <= tensors
    return ("input", "output") if is_one and not function.stem.startswith("group_") else None

/* Transformer Engine's functions over FP8 tensors, through the guard. */
#include "te_cases_fp8.h"

namespace extremes {

namespace {

void set(NVTETensor tensor, NVTETensorParam parameter, NVTEDType dtype, const NVTEShape &shape, void *data) {
  const NVTEBasicTensor record = {data, dtype, shape};
  te_set_tensor_param_v2(tensor, parameter, &record, sizeof(record));
}

NVTEShape matrix(size_t rows, size_t columns) { return NVTEShape{{rows, columns}, 2}; }

const NVTEShape kCell = {{1}, 1};

NVTETensor fp8_with(Fixture &f, NVTETensor tensor, size_t rows, size_t columns, NVTEDType dtype, bool transposed) {
  float *const scale_inv = f.device_values<float>({1});
  set(tensor, kNVTERowwiseData, dtype, matrix(rows, columns), f.device(rows * columns));
  set(tensor, kNVTEScale, kNVTEFloat32, kCell, f.device_values<float>({1}));
  set(tensor, kNVTEAmax, kNVTEFloat32, kCell, f.device_values<float>({0}));
  set(tensor, kNVTERowwiseScaleInv, kNVTEFloat32, kCell, scale_inv);
  if (!transposed) return tensor;
  set(tensor, kNVTEColumnwiseData, dtype, matrix(columns, rows), f.device(rows * columns));
  set(tensor, kNVTEColumnwiseScaleInv, kNVTEFloat32, kCell, scale_inv);
  return tensor;
}

/* FP8 [rows, columns] with a scale a block, rowwise and columnwise. */
NVTETensor fp8_blocks(Fixture &f, NVTEScalingMode mode, size_t rows, size_t columns) {
  NVTETensor tensor = nullptr;
  te_create_tensor(mode, &tensor);
  f.finally([=] { te_destroy_tensor(tensor); });
  const auto blocks = [](size_t count) { return (count + 127) / 128; };
  const auto padded = [](size_t count) { return (count + 3) / 4 * 4; };
  const bool square = mode == NVTE_BLOCK_SCALING_2D;
  const NVTEShape scales = square ? matrix(blocks(rows), padded(blocks(columns))) : matrix(blocks(columns), padded(rows));
  const NVTEShape other = square ? matrix(blocks(columns), padded(blocks(rows))) : matrix(blocks(rows), padded(columns));
  set(tensor, kNVTERowwiseData, kNVTEFloat8E4M3, matrix(rows, columns), f.device(rows * columns));
  set(tensor, kNVTEColumnwiseData, kNVTEFloat8E4M3, matrix(columns, rows), f.device(rows * columns));
  set(tensor, kNVTERowwiseScaleInv, kNVTEFloat32, scales, f.device(scales.data[0] * scales.data[1] * 4));
  set(tensor, kNVTEColumnwiseScaleInv, kNVTEFloat32, other, f.device(other.data[0] * other.data[1] * 4));
  return tensor;
}

using Fused = int (*)(NVTETensor, NVTETensor, NVTETensor, NVTETensor, NVTETensor, cudaStream_t);

/* The query of a workspace for a bias gradient with an activation's. */
NVTETensor sums(Fixture &f, Fused call) {
  return f.workspace([&](NVTETensor query) {
    return call(f.bf16({32, 32}), f.bf16({32, 32}), fp8(f, 32, 32), f.bf16({32}), query, nullptr);
  });
}

using Bias = int (*)(NVTETensor, NVTETensor, NVTETensor, NVTETensor, cudaStream_t);

NVTETensor sums(Fixture &f, Bias call) {
  return f.workspace(
      [&](NVTETensor query) { return call(f.bf16({32, 32}), fp8(f, 32, 32), f.bf16({32}), query, nullptr); });
}

NVTETensor transpose_sums(Fixture &f) {
  return f.workspace([&](NVTETensor query) {
    return te_fp8_transpose_dbias(fp8_rowwise(f, 32, 16), fp8_rowwise(f, 16, 32), f.bf16({16}), query, nullptr);
  });
}

#define BIAS(function) \
  CASE(function, f.bf16({32, 32}), fp8(f, 32, 32), f.bf16({32}), sums(f, &function), f.stream())
#define FUSED(function) \
  CASE(function, f.bf16({32, 32}), f.bf16({32, 32}), fp8(f, 32, 32), f.bf16({32}), sums(f, &function), f.stream())
#define GATED_CAST_TRANSPOSE(function) CASE(function, f.bf16({32, 32}), f.bf16({32, 64}), fp8(f, 32, 64), f.stream())

std::vector<Case> cast_cases() {
  return {
      CASE(te_quantize, f.bf16({32, 48}), fp8(f, 32, 48), f.stream()),
      CASE(te_quantize_v2, f.bf16({32, 48}), fp8_rowwise(f, 32, 48), f.quantization_config(), f.stream()),
      CASE(te_quantize_v2, f.bf16({130, 48}), fp8_blocks(f, NVTE_BLOCK_SCALING_1D, 130, 48), f.quantization_config(),
           f.stream()),
      CASE(te_quantize_v2, f.bf16({130, 48}), fp8_blocks(f, NVTE_BLOCK_SCALING_2D, 130, 48), f.quantization_config(),
           f.stream()),
      CASE(te_dequantize, fp8_rowwise(f, 32, 48), f.bf16({32, 48}), f.stream()),
      CASE(te_dropout_fwd, fp8_rowwise(f, 32, 48), f.bf16({32, 48}), f.tensor(kNVTEByte, {192}), f.int64s({1, 2}), 0.5f,
           f.stream()),
      CASE(te_cast_transpose, f.bf16({32, 48}), fp8(f, 32, 48), f.stream()),
      CASE(te_cast_transpose_with_noop, f.bf16({32, 48}), f.floats({0}), fp8(f, 32, 48), f.stream()),
      CASE(te_multi_cast_transpose, 2, f.handles({f.bf16({8, 4}), f.bf16({32, 32})}),
           f.handles({fp8(f, 8, 4), fp8(f, 32, 32)}), f.stream()),
      CASE(te_gelu, f.bf16({32, 48}), fp8(f, 32, 48), f.stream()),
      CASE(te_dgelu, f.bf16({32, 48}), f.bf16({32, 48}), fp8(f, 32, 48), f.stream()),
      CASE(te_geglu, f.bf16({32, 64}), fp8(f, 32, 32), f.stream()),
      CASE(te_fp8_transpose_dbias, fp8_rowwise(f, 32, 16), fp8_rowwise(f, 16, 32), f.bf16({16}), transpose_sums(f),
           f.stream()),
  };
}

/* C and D are one tensor. */
int product(int transa, int transb, const float *alpha, NVTETensor a, NVTETensor b, const float *beta, NVTETensor d,
            NVTETensor workspace, NVTEMatmulConfig config, cudaStream_t stream) {
  return te_cublas_gemm_v2(transa, transb, alpha, a, b, beta, d, d, workspace, config, stream);
}

NVTEMatmulConfig split_accumulator(Fixture &f) {
  const uint8_t yes = 1;
  NVTEMatmulConfig config = f.matmul_config();
  te_set_matmul_config_attribute(config, kNVTEMatmulConfigUseSplitAccumulator, &yes, 1);
  return config;
}

std::vector<Case> product_cases() {
  return {
      CASE_OF("te_cublas_gemm_v2", &product, 1, 0, f.values<float>({1}), fp8(f, 32, 16), fp8(f, 8, 16),
              f.values<float>({0}), f.bf16({8, 32}), f.tensor(kNVTEByte, {64}), f.matmul_config(), f.stream()),
      CASE_OF("te_cublas_gemm_v2", &product, 1, 0, f.values<float>({1}), fp8_blocks(f, NVTE_BLOCK_SCALING_2D, 136, 144),
              fp8_blocks(f, NVTE_BLOCK_SCALING_1D, 8, 144), f.values<float>({0}), f.bf16({8, 136}),
              f.tensor(kNVTEByte, {64}), split_accumulator(f), f.stream()),
      CASE_OF("te_cublas_gemm_v2", &product, 0, 1, f.values<float>({1}), fp8(f, 16, 32), fp8(f, 16, 8),
              f.values<float>({0}), fp8_rowwise(f, 8, 32), f.tensor(kNVTEByte, {64}), f.matmul_config(), f.stream()),
  };
}

int normalize(Fixture &f, NVTETensor query) {
  return te_rmsnorm_fwd(f.bf16({8, 64}), f.bf16({64}), 1e-5f, fp8(f, 8, 64), f.f32({8}), query, 1, true, nullptr);
}

std::vector<Case> norm_cases() {
  return {
      CASE(te_rmsnorm_fwd, f.bf16({8, 64}), f.bf16({64}), 1e-5f, fp8(f, 8, 64), f.f32({8}),
           f.workspace([&](NVTETensor query) { return normalize(f, query); }), 1, true, f.stream()),
  };
}

std::vector<Case> shard_cases() {
  return {
      CASE(te_multi_padding, 2, f.handles({f.bf16({3, 5}), f.bf16({4, 2})}), f.handles({f.bf16({8, 5}), f.bf16({8, 2})}),
           f.values<int>({8, 8}), f.stream()),
      CASE(te_multi_unpadding, 2, f.handles({f.bf16({8, 5}), f.bf16({8, 2})}),
           f.handles({f.bf16({3, 5}), f.bf16({4, 2})}), f.values<int>({3, 4}), f.stream()),
      CASE(te_splits_to_offsets, f.device_values<int64_t>({3, 4}), f.device_values<int64_t>({0, 0, 0}), 2, 8, f.stream()),
      CASE(te_splits_to_offsets_2d, f.int64s({3, 4}), f.int64s({2, 2}), f.int64s({0, 0, 0}), f.stream()),
      CASE(te_splits_to_offsets_multi, f.int32s({3, 4}), f.handles({f.int32s({0, 0, 0}), f.int64s({0, 0})}),
           f.values<int64_t>({1, 8}), f.values<int>({1, 0}), 2, f.stream()),
      CASE(te_fp8_block_scaling_compute_partial_amax, f.bf16({1000}), f.f32({2, 3}), 130, 260, 3, 1, 5, 128, f.stream()),
      CASE(te_fp8_block_scaling_partial_cast, f.bf16({1000}), f.tensor(kNVTEByte, {1000}), f.f32({2, 3}), 130, 260, 3, 1, 5,
           128, kNVTEFloat8E4M3, f.stream()),
  };
}

#define SCALED(function, ...) CASE(function, f.bf16({8, 128}), f.f32({8}), f.bf16({8, 64}), __VA_ARGS__, f.stream())
#define SCALED_GRADIENT(function, ...) \
  CASE(function, f.bf16({8, 64}), f.bf16({8, 128}), f.f32({8}), f.bf16({8, 128}), f.f32({8}), __VA_ARGS__, f.stream())

std::vector<Case> scaled_activation_cases() {
  return {
      SCALED(te_scaled_swiglu, 32),
      SCALED(te_scaled_situglu, 1.0f, 2.0f, 0),
      SCALED(te_scaled_clamped_swiglu, 7.0f, 1.7f, 1.0f, 64),
      SCALED_GRADIENT(te_scaled_dswiglu, 32),
      SCALED_GRADIENT(te_scaled_dsituglu, 1.0f, 2.0f, 0),
      SCALED_GRADIENT(te_scaled_clamped_dswiglu, 7.0f, 1.7f, 1.0f, 64),
      CASE(te_scaled_srelu, f.bf16({8, 64}), f.f32({8}), f.bf16({8, 64}), f.stream()),
      CASE(te_scaled_dsrelu, f.bf16({8, 64}), f.bf16({8, 64}), f.f32({8}), f.bf16({8, 64}), f.f32({8}), f.stream()),
  };
}

const char kMax[] = "max";

std::vector<Case> recipe_cases() {
  return {
      CASE(te_compute_amax, f.bf16({8, 16}), fp8(f, 8, 16), f.stream()),
      CASE(te_compute_amax_with_config, f.bf16({8, 16}), fp8(f, 8, 16), f.quantization_config(), f.stream()),
      CASE(te_compute_scale_from_amax, fp8(f, 8, 16), f.quantization_config(), f.stream()),
      CASE(te_delayed_scaling_recipe_amax_and_scale_update, f.f32({4, 3}), f.floats({1, 1, 1}), f.f32({4, 3}), f.f32({3}),
           kMax, kNVTEFloat8E4M3, 0.0f, f.stream()),
      CASE(te_delayed_scaling_recipe_amax_and_scale_update_after_reduction, f.f32({5}),
           f.handles({f.f32({4, 3}), f.f32({4, 2})}), 2, f.handles({f.f32({3}), f.f32({2})}), 2, kMax, kNVTEFloat8E4M3,
           0.0f, f.stream()),
      CASE(te_multi_tensor_compute_scale_and_scale_inv_cuda, 64, f.int32s({0}),
           f.lists({f.handles({f.f32({7})}), f.handles({f.f32({7})}), f.handles({f.f32({7})})}), 3, 1, 448.0f, 1, 0.0f,
           f.stream()),
  };
}

std::vector<Case> fused_cases() {
  return {
      BIAS(te_quantize_dbias),
      BIAS(te_cast_transpose_dbias),
      FUSED(te_quantize_dbias_dgelu),
      FUSED(te_quantize_dbias_dsilu),
      FUSED(te_quantize_dbias_drelu),
      FUSED(te_quantize_dbias_dqgelu),
      FUSED(te_quantize_dbias_dsrelu),
      FUSED(te_cast_transpose_dbias_dgelu),
      FUSED(te_cast_transpose_dbias_dsilu),
      FUSED(te_cast_transpose_dbias_drelu),
      FUSED(te_cast_transpose_dbias_dqgelu),
      FUSED(te_cast_transpose_dbias_dsrelu),
      GATED_CAST_TRANSPOSE(te_dgeglu_cast_transpose),
      GATED_CAST_TRANSPOSE(te_dswiglu_cast_transpose),
      GATED_CAST_TRANSPOSE(te_dreglu_cast_transpose),
      GATED_CAST_TRANSPOSE(te_dqgeglu_cast_transpose),
      GATED_CAST_TRANSPOSE(te_dsreglu_cast_transpose),
  };
}

}  // namespace

NVTETensor fp8(Fixture &f, size_t rows, size_t columns, NVTEDType dtype) {
  return fp8_with(f, f.unset(), rows, columns, dtype, true);
}

NVTETensor fp8_rowwise(Fixture &f, size_t rows, size_t columns, NVTEDType dtype) {
  return fp8_with(f, f.unset(), rows, columns, dtype, false);
}

std::vector<Case> fp8_cases() {
  std::vector<Case> all;
  for (const auto &some : {cast_cases(), product_cases(), recipe_cases(), norm_cases(), shard_cases(), scaled_activation_cases(), fused_cases()}) all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace extremes

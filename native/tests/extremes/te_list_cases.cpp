/* Transformer Engine's functions over products and lists of tensors, through the guard. */
#include "cases.h"

namespace extremes {

namespace {

NVTETensor *list(Fixture &f, NVTEDType dtype) { return f.handles({f.tensor(dtype, {100}), f.tensor(dtype, {7})}); }
NVTETensor *f32s(Fixture &f) { return list(f, kNVTEFloat32); }
NVTETensor *bf16s(Fixture &f) { return list(f, kNVTEBFloat16); }
NVTETensor flag(Fixture &f) { return f.int32s({0}); }
NVTETensor cell(Fixture &f, float value) { return f.floats({value}); }
NVTETensor *cells(Fixture &f) { return f.handles({cell(f, 1), cell(f, 1)}); }

std::vector<Case> product_cases() {
  return {
      CASE(te_cublas_gemm, f.bf16({32, 16}), f.bf16({8, 16}), f.bf16({8, 32}), f.bf16({32}), f.unset(), true, false, false,
           f.tensor(kNVTEByte, {64}), false, false, 0, f.stream()),
      CASE(te_cublas_gemm_scaled, f.bf16({32, 16}), f.bf16({8, 16}), f.bf16({8, 32}), f.unset(), f.bf16({8, 32}), true,
           false, false, f.tensor(kNVTEByte, {64}), 1.0f, 1.0f, false, 0, f.stream()),
      CASE_OF("te_cublas_gemm_v2",
              +[](int transa, int transb, const float *alpha, NVTETensor a, NVTETensor b, const float *beta, NVTETensor d,
                  NVTETensor workspace, NVTEMatmulConfig config, cudaStream_t stream) {
                return te_cublas_gemm_v2(transa, transb, alpha, a, b, beta, d, d, workspace, config, stream);
              },
              1, 0, f.values<float>({1}), f.bf16({32, 16}), f.bf16({8, 16}), f.values<float>({0}), f.bf16({8, 32}),
              f.tensor(kNVTEByte, {64}), f.matmul_config(), f.stream()),
      CASE(te_multi_tensor_gemm, f.handles({f.bf16({32, 16})}), f.handles({f.bf16({8, 16})}), f.handles({f.bf16({8, 32})}),
           f.handles({f.unset()}), f.handles({f.unset()}), 1, true, false, false,
           f.handles({f.tensor(kNVTEByte, {64}), f.tensor(kNVTEByte, {64}), f.tensor(kNVTEByte, {64}),
                      f.tensor(kNVTEByte, {64})}),
           false, false, 0, f.stream()),
      CASE(te_multi_tensor_quantize, f.handles({f.f32({8, 16}), f.f32({4, 4})}), f.handles({f.bf16({8, 16}), f.bf16({4, 4})}),
           f.quantization_config(), 2, f.stream()),
  };
}

/* Queries [1, 1, 1, 128] whose memory holds keys and values, too. */
NVTETensor queries(Fixture &f) {
  const NVTETensor tensor = f.unset();
  const NVTEBasicTensor record{f.device(3 * 256, 0x3c), kNVTEBFloat16, NVTEShape{{1, 1, 1, 128}, 4}};
  te_set_tensor_param_v2(tensor, kNVTERowwiseData, &record, sizeof(record));
  return tensor;
}

std::vector<Case> layout_cases() {
  return {
      CASE(te_prepare_flash_attn_fwd, queries(f), f.bf16({3, 1, 1, 1, 128}), f.stream()),
      CASE(te_prepare_flash_attn_bwd, f.bf16({2, 1, 1, 128}), f.bf16({2, 1, 1, 128}), f.bf16({2, 1, 1, 128}),
           f.bf16({1, 2, 1, 384}), f.stream()),
      CASE(te_multi_tensor_transpose_to_bhsd, f.handles({f.bf16({2, 3, 4, 8}), f.bf16({2, 1, 2, 8})}),
           f.handles({f.bf16({2, 4, 3, 8}), f.bf16({2, 2, 1, 16})}), 2, NVTE_BSHD, f.stream()),
      CASE(te_multi_tensor_pad_last_dim, f.handles({f.bf16({3, 5}), f.bf16({2, 4})}),
           f.handles({f.bf16({3, 8}), f.bf16({2, 4})}), 2, f.stream()),
  };
}

std::vector<Case> norm_cases() {
  return {
      CASE(te_multi_tensor_l2norm_cuda, 64, flag(f), f.lists({f32s(f)}), 1, 2, f.f32({320}), f.f32({4}), f.f32({1}),
           f.f32({2}), 1, 2, f.stream()),
      CASE(te_multi_tensor_unscale_l2norm_cuda, 64, flag(f), f.lists({f32s(f)}), 1, 2, f.f32({320}), f.f32({4}),
           f.f32({1}), f.f32({2}), cell(f, 1), 1, 2, f.stream()),
      CASE(te_multi_tensor_scale_cuda, 64, flag(f), f.lists({f32s(f), f32s(f)}), 2, 2, 0.5f, f.stream()),
      CASE(te_multi_tensor_scale_tensor_cuda, 64, flag(f), f.lists({f32s(f), f32s(f)}), 2, 2, cell(f, 0.5f), f.stream()),
  };
}

std::vector<Case> optimizer_cases() {
  return {
      CASE(te_multi_tensor_adam_cuda, 64, flag(f), f.lists({f32s(f), f32s(f), f32s(f), f32s(f)}), 4, 2, 1e-3f, 0.9f, 0.99f,
           1e-6f, 1, 1, 1, 0.1f, f.stream()),
      CASE(te_multi_tensor_adam_param_remainder_cuda, 64, flag(f),
           f.lists({f32s(f), bf16s(f), f32s(f), f32s(f), list(f, kNVTEInt16)}), 5, 2, 1e-3f, 0.9f, 0.99f, 1e-6f, 1, 1, 1,
           0.1f, f.stream()),
      CASE(te_multi_tensor_adam_fp8_cuda, 64, flag(f),
           f.lists({f32s(f), list(f, kNVTEFloat8E4M3), f32s(f), f32s(f), f32s(f), cells(f), cells(f), cells(f)}), 8, 2, 1e-3f,
           0.9f, 0.99f, 1e-6f, 1, 1, 1, 0.1f, kNVTEFloat8E4M3, f.stream()),
      CASE(te_multi_tensor_adam_capturable_cuda, 64, flag(f), f.lists({f32s(f), f32s(f), f32s(f), f32s(f)}), 4, 2,
           cell(f, 1e-3f), 0.9f, 0.99f, 1e-6f, f.int32s({1}), 1, 1, 0.1f, cell(f, 1), f.stream()),
      CASE(te_multi_tensor_adam_capturable_master_cuda, 64, flag(f),
           f.lists({bf16s(f), bf16s(f), f32s(f), f32s(f), f32s(f)}), 5, 2, cell(f, 1e-3f), 0.9f, 0.99f, 1e-6f,
           f.int32s({1}), 1, 1, 0.1f, cell(f, 1), f.stream()),
      CASE(te_multi_tensor_sgd_cuda, 64, flag(f), f.lists({f32s(f), f32s(f), f32s(f)}), 3, 2, 0.1f, 0.9f, 0.0f, 1e-2f, 0, 0,
           0, 1.0f, f.stream()),
  };
}

}  // namespace

std::vector<Case> te_list_cases() {
  std::vector<Case> all;
  for (const auto &some : {product_cases(), layout_cases(), norm_cases(), optimizer_cases()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace extremes

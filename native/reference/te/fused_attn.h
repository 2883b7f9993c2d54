/* Objects of TE's fused attention, as the attributes of nvte_set_fused_attn_*_attribute fill them. */
#ifndef CHAGRES_REFERENCE_FUSED_ATTN_H
#define CHAGRES_REFERENCE_FUSED_ATTN_H

#include "runtime/handles.h"
#include "runtime/reference.h"

namespace chagres::reference {

/* Enumerations are kept as the numbers that came, which may be none of theirs. */
struct FusedAttnConfig {
  uint8_t is_training = 1;
  uint8_t deterministic = 0;
  uint8_t cuda_graph = 0;
  uint8_t return_max_logit = 0;
  int32_t attn_mask_type = NVTE_NO_MASK;
  int32_t bias_type = NVTE_NO_BIAS;
  int64_t window_size_left = -1;
  int64_t window_size_right = -1;
  uint8_t bottom_right_diagonal = 1;
  int32_t softmax_type = NVTE_VANILLA_SOFTMAX;
  int32_t scaling_mode = NVTE_DELAYED_TENSOR_SCALING;
  float dropout = 0;
  float attn_scale = 1;
  int32_t qkv_dtype = kNVTEBFloat16;
  int32_t o_dtype = kNVTEBFloat16;
  int32_t do_dtype = kNVTEBFloat16;
  int32_t dqkv_dtype = kNVTEBFloat16;
  int32_t qkv_layout = NVTE_QKV_Layout_NOT_SET;
  int32_t o_format = NVTE_QKV_Format_NOT_SET;
  int32_t do_format = NVTE_QKV_Format_NOT_SET;
  int32_t dqkv_layout = NVTE_QKV_Layout_NOT_SET;
  int32_t qkv_scale_inv_format = NVTE_QKV_Format_NOT_SET;
  int32_t do_scale_inv_format = NVTE_QKV_Format_NOT_SET;
  size_t batch_size = 0;
  size_t num_attn_heads = 0;
  size_t num_gqa_groups = 0;
  size_t head_dim_qk = 0;
  size_t head_dim_v = 0;
  size_t max_seqlen_q = 0;
  size_t max_seqlen_kv = 0;
  size_t num_tokens_q = 0;
  size_t num_tokens_kv = 0;
  size_t num_pages_k = 0;
  size_t num_pages_v = 0;
  size_t page_size_k = 0;
  size_t page_size_v = 0;
  size_t max_pages_per_seq_k = 0;
  size_t max_pages_per_seq_v = 0;
  size_t bias_batch_size = 0;
  size_t bias_num_heads = 0;
  size_t bias_seqlen_q = 0;
  size_t bias_seqlen_kv = 0;
};

struct FusedAttnFwdParams {
  NVTETensor q = nullptr, k = nullptr, v = nullptr;
  NVTETensor bias = nullptr, softmax_offset = nullptr;
  NVTETensor s = nullptr, o = nullptr;
  NVTETensorPack *aux_ctx_tensors = nullptr;
  NVTETensor cu_seqlens_q = nullptr, cu_seqlens_kv = nullptr;
  NVTETensor cu_seqlens_q_padded = nullptr, cu_seqlens_kv_padded = nullptr;
  NVTETensor page_table_k = nullptr, page_table_v = nullptr;
  NVTETensor rng_state = nullptr;
  uint8_t is_training = 1, cuda_graph = 0, return_max_logit = 0;
  int32_t attn_mask_type = NVTE_NO_MASK;
  int32_t bias_type = NVTE_NO_BIAS;
  int64_t window_size_left = -1, window_size_right = -1;
  uint8_t bottom_right_diagonal = 1;
  int32_t softmax_type = NVTE_VANILLA_SOFTMAX;
  float dropout = 0, attn_scale = 1;
  int32_t qkv_layout = NVTE_QKV_Layout_NOT_SET;
  int32_t o_format = NVTE_QKV_Format_NOT_SET;
  int32_t qkv_scale_inv_format = NVTE_QKV_Format_NOT_SET;
  size_t max_seqlen_q = 0, max_seqlen_kv = 0;
  NVTETensor workspace = nullptr;
  cudaStream_t stream = nullptr;
};

struct FusedAttnBwdParams {
  NVTETensor q = nullptr, k = nullptr, v = nullptr, o = nullptr, d_o = nullptr;
  NVTETensor s = nullptr, dp = nullptr;
  const NVTETensorPack *aux_ctx_tensors = nullptr;
  NVTETensor dq = nullptr, dk = nullptr, dv = nullptr;
  NVTETensor dbias = nullptr, dsoftmax_offset = nullptr;
  NVTETensor cu_seqlens_q = nullptr, cu_seqlens_kv = nullptr;
  NVTETensor cu_seqlens_q_padded = nullptr, cu_seqlens_kv_padded = nullptr;
  uint8_t deterministic = 0, cuda_graph = 0;
  int32_t attn_mask_type = NVTE_NO_MASK;
  int32_t bias_type = NVTE_NO_BIAS;
  int64_t window_size_left = -1, window_size_right = -1;
  uint8_t bottom_right_diagonal = 1;
  int32_t softmax_type = NVTE_VANILLA_SOFTMAX;
  float dropout = 0, attn_scale = 1;
  int32_t qkv_layout = NVTE_QKV_Layout_NOT_SET;
  int32_t o_format = NVTE_QKV_Format_NOT_SET;
  int32_t do_format = NVTE_QKV_Format_NOT_SET;
  int32_t dqkv_layout = NVTE_QKV_Layout_NOT_SET;
  int32_t qkv_scale_inv_format = NVTE_QKV_Format_NOT_SET;
  int32_t do_scale_inv_format = NVTE_QKV_Format_NOT_SET;
  size_t max_seqlen_q = 0, max_seqlen_kv = 0;
  NVTETensor workspace = nullptr;
  cudaStream_t stream = nullptr;
};

/* A copy of the object's values; throws for a handle that is not alive. */
FusedAttnConfig fused_attn_config(NVTEFusedAttnConfig config, Caller caller = Caller::here());
FusedAttnFwdParams fused_attn_fwd_params(NVTEFusedAttnFwdParams params, Caller caller = Caller::here());
FusedAttnBwdParams fused_attn_bwd_params(NVTEFusedAttnBwdParams params, Caller caller = Caller::here());

/* What an NVTE_QKV_Layout says of Q, and of K and V: the format, and how many of them share one buffer in which order.
 */
struct TensorLayout {
  NVTE_QKV_Format format;
  int packed;        /* 3, 2 or 1 tensors in the buffer */
  bool inner_packed; /* [.., h, packed, d] rather than [.., packed, h, d] */
};
TensorLayout q_layout(int32_t layout, Caller caller = Caller::here());
TensorLayout kv_layout(int32_t layout, Caller caller = Caller::here());
bool is_paged_layout(int32_t layout, Caller caller = Caller::here());

bool is_padding_mask(int32_t attn_mask_type);

enum class FusedAttnPass { Forward, Backward, Both };

/* Why this configuration is not computed, naming the attribute, or "" when it is. Throws for a number that is no
 * layout. */
std::string fused_attn_rejection(const FusedAttnConfig &config, FusedAttnPass pass, Caller caller = Caller::here());

/* The exported functions without the object: `caller` is the function that errors name. */
void fused_attn_forward(const FusedAttnFwdParams &params, Caller caller);
void fused_attn_backward(const FusedAttnBwdParams &params, Caller caller);

}  // namespace chagres::reference

#endif /* CHAGRES_REFERENCE_FUSED_ATTN_H */

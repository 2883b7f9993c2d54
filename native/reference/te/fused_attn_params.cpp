/* Configuration and parameter objects of fused attention: attributes by number, no computing. */
#include <iterator>

#include "te/fused_attn.h"

namespace chagres::reference {

namespace {

#define CHAGRES_VALUE(field) {offsetof(Object, field), sizeof(Object::field), Attribute::Value}
#define CHAGRES_FLAG(field) {offsetof(Object, field), 1, Attribute::Flag}

struct ConfigTable {
  using Object = FusedAttnConfig;
  static constexpr const char *kind = "NVTEFusedAttnConfigAttribute";
  static constexpr Attribute attributes[] = {
      CHAGRES_FLAG(is_training),
      CHAGRES_FLAG(deterministic),
      CHAGRES_FLAG(cuda_graph),
      CHAGRES_FLAG(return_max_logit),
      CHAGRES_VALUE(attn_mask_type),
      CHAGRES_VALUE(bias_type),
      CHAGRES_VALUE(window_size_left),
      CHAGRES_VALUE(window_size_right),
      CHAGRES_FLAG(bottom_right_diagonal),
      CHAGRES_VALUE(softmax_type),
      CHAGRES_VALUE(scaling_mode),
      CHAGRES_VALUE(dropout),
      CHAGRES_VALUE(attn_scale),
      CHAGRES_VALUE(qkv_dtype),
      CHAGRES_VALUE(o_dtype),
      CHAGRES_VALUE(do_dtype),
      CHAGRES_VALUE(dqkv_dtype),
      CHAGRES_VALUE(qkv_layout),
      CHAGRES_VALUE(o_format),
      CHAGRES_VALUE(do_format),
      CHAGRES_VALUE(dqkv_layout),
      CHAGRES_VALUE(qkv_scale_inv_format),
      CHAGRES_VALUE(do_scale_inv_format),
      CHAGRES_VALUE(batch_size),
      CHAGRES_VALUE(num_attn_heads),
      CHAGRES_VALUE(num_gqa_groups),
      CHAGRES_VALUE(head_dim_qk),
      CHAGRES_VALUE(head_dim_v),
      CHAGRES_VALUE(max_seqlen_q),
      CHAGRES_VALUE(max_seqlen_kv),
      CHAGRES_VALUE(num_tokens_q),
      CHAGRES_VALUE(num_tokens_kv),
      CHAGRES_VALUE(num_pages_k),
      CHAGRES_VALUE(num_pages_v),
      CHAGRES_VALUE(page_size_k),
      CHAGRES_VALUE(page_size_v),
      CHAGRES_VALUE(max_pages_per_seq_k),
      CHAGRES_VALUE(max_pages_per_seq_v),
      CHAGRES_VALUE(bias_batch_size),
      CHAGRES_VALUE(bias_num_heads),
      CHAGRES_VALUE(bias_seqlen_q),
      CHAGRES_VALUE(bias_seqlen_kv),
  };
  static_assert(std::size(attributes) == kNVTEFusedAttnConfigNumAttributes, "one entry an attribute");
};

struct FwdTable {
  using Object = FusedAttnFwdParams;
  static constexpr const char *kind = "NVTEFusedAttnFwdParamsAttribute";
  static constexpr Attribute attributes[] = {
      CHAGRES_VALUE(q),
      CHAGRES_VALUE(k),
      CHAGRES_VALUE(v),
      CHAGRES_VALUE(bias),
      CHAGRES_VALUE(softmax_offset),
      CHAGRES_VALUE(s),
      CHAGRES_VALUE(o),
      CHAGRES_VALUE(aux_ctx_tensors),
      CHAGRES_VALUE(cu_seqlens_q),
      CHAGRES_VALUE(cu_seqlens_kv),
      CHAGRES_VALUE(cu_seqlens_q_padded),
      CHAGRES_VALUE(cu_seqlens_kv_padded),
      CHAGRES_VALUE(page_table_k),
      CHAGRES_VALUE(page_table_v),
      CHAGRES_VALUE(rng_state),
      CHAGRES_FLAG(is_training),
      CHAGRES_FLAG(cuda_graph),
      CHAGRES_FLAG(return_max_logit),
      CHAGRES_VALUE(attn_mask_type),
      CHAGRES_VALUE(bias_type),
      CHAGRES_VALUE(window_size_left),
      CHAGRES_VALUE(window_size_right),
      CHAGRES_FLAG(bottom_right_diagonal),
      CHAGRES_VALUE(softmax_type),
      CHAGRES_VALUE(dropout),
      CHAGRES_VALUE(attn_scale),
      CHAGRES_VALUE(qkv_layout),
      CHAGRES_VALUE(o_format),
      CHAGRES_VALUE(qkv_scale_inv_format),
      CHAGRES_VALUE(max_seqlen_q),
      CHAGRES_VALUE(max_seqlen_kv),
      CHAGRES_VALUE(workspace),
      CHAGRES_VALUE(stream),
  };
  static_assert(std::size(attributes) == kNVTEFusedAttnFwdParamsNumAttributes, "one entry an attribute");
};

struct BwdTable {
  using Object = FusedAttnBwdParams;
  static constexpr const char *kind = "NVTEFusedAttnBwdParamsAttribute";
  static constexpr Attribute attributes[] = {
      CHAGRES_VALUE(q),
      CHAGRES_VALUE(k),
      CHAGRES_VALUE(v),
      CHAGRES_VALUE(o),
      CHAGRES_VALUE(d_o),
      CHAGRES_VALUE(s),
      CHAGRES_VALUE(dp),
      CHAGRES_VALUE(aux_ctx_tensors),
      CHAGRES_VALUE(dq),
      CHAGRES_VALUE(dk),
      CHAGRES_VALUE(dv),
      CHAGRES_VALUE(dbias),
      CHAGRES_VALUE(dsoftmax_offset),
      CHAGRES_VALUE(cu_seqlens_q),
      CHAGRES_VALUE(cu_seqlens_kv),
      CHAGRES_VALUE(cu_seqlens_q_padded),
      CHAGRES_VALUE(cu_seqlens_kv_padded),
      CHAGRES_FLAG(deterministic),
      CHAGRES_FLAG(cuda_graph),
      CHAGRES_VALUE(attn_mask_type),
      CHAGRES_VALUE(bias_type),
      CHAGRES_VALUE(window_size_left),
      CHAGRES_VALUE(window_size_right),
      CHAGRES_FLAG(bottom_right_diagonal),
      CHAGRES_VALUE(softmax_type),
      CHAGRES_VALUE(dropout),
      CHAGRES_VALUE(attn_scale),
      CHAGRES_VALUE(qkv_layout),
      CHAGRES_VALUE(o_format),
      CHAGRES_VALUE(do_format),
      CHAGRES_VALUE(dqkv_layout),
      CHAGRES_VALUE(qkv_scale_inv_format),
      CHAGRES_VALUE(do_scale_inv_format),
      CHAGRES_VALUE(max_seqlen_q),
      CHAGRES_VALUE(max_seqlen_kv),
      CHAGRES_VALUE(workspace),
      CHAGRES_VALUE(stream),
  };
  static_assert(std::size(attributes) == kNVTEFusedAttnBwdParamsNumAttributes, "one entry an attribute");
};

template <class Description>
constexpr AttributeTable table() {
  return {Description::kind, Description::attributes, static_cast<int>(std::size(Description::attributes))};
}

Handles<FusedAttnConfig> &configs() {
  static auto *handles = new Handles<FusedAttnConfig>("NVTEFusedAttnConfig");
  return *handles;
}

Handles<FusedAttnFwdParams> &fwd_params() {
  static auto *handles = new Handles<FusedAttnFwdParams>("NVTEFusedAttnFwdParams");
  return *handles;
}

Handles<FusedAttnBwdParams> &bwd_params() {
  static auto *handles = new Handles<FusedAttnBwdParams>("NVTEFusedAttnBwdParams");
  return *handles;
}

}  // namespace

FusedAttnConfig fused_attn_config(NVTEFusedAttnConfig config, Caller caller) { return configs().at(config, caller); }

FusedAttnFwdParams fused_attn_fwd_params(NVTEFusedAttnFwdParams params, Caller caller) {
  return fwd_params().at(params, caller);
}

FusedAttnBwdParams fused_attn_bwd_params(NVTEFusedAttnBwdParams params, Caller caller) {
  return bwd_params().at(params, caller);
}

}  // namespace chagres::reference

using namespace chagres::reference;

NVTEFusedAttnConfig nvte_create_fused_attn_config(void) { return configs().create(); }

void nvte_destroy_fused_attn_config(NVTEFusedAttnConfig config) { configs().destroy(config); }

void nvte_set_fused_attn_config_attribute(NVTEFusedAttnConfig config, NVTEFusedAttnConfigAttribute attr,
                                          const void *buf, size_t size_in_bytes) {
  set_attribute(table<ConfigTable>(), &configs().at(config), attr, buf, size_in_bytes);
}

void nvte_get_fused_attn_config_attribute(NVTEFusedAttnConfig config, NVTEFusedAttnConfigAttribute attr, void *buf,
                                          size_t size_in_bytes, size_t *size_written) {
  get_attribute(table<ConfigTable>(), &configs().at(config), attr, buf, size_in_bytes, size_written);
}

NVTEFusedAttnFwdParams nvte_create_fused_attn_fwd_params(void) { return fwd_params().create(); }

void nvte_destroy_fused_attn_fwd_params(NVTEFusedAttnFwdParams params) { fwd_params().destroy(params); }

void nvte_set_fused_attn_fwd_params_attribute(NVTEFusedAttnFwdParams params, NVTEFusedAttnFwdParamsAttribute attr,
                                              const void *buf, size_t size_in_bytes) {
  set_attribute(table<FwdTable>(), &fwd_params().at(params), attr, buf, size_in_bytes);
}

void nvte_get_fused_attn_fwd_params_attribute(NVTEFusedAttnFwdParams params, NVTEFusedAttnFwdParamsAttribute attr,
                                              void *buf, size_t size_in_bytes, size_t *size_written) {
  get_attribute(table<FwdTable>(), &fwd_params().at(params), attr, buf, size_in_bytes, size_written);
}

NVTEFusedAttnBwdParams nvte_create_fused_attn_bwd_params(void) { return bwd_params().create(); }

void nvte_destroy_fused_attn_bwd_params(NVTEFusedAttnBwdParams params) { bwd_params().destroy(params); }

void nvte_set_fused_attn_bwd_params_attribute(NVTEFusedAttnBwdParams params, NVTEFusedAttnBwdParamsAttribute attr,
                                              const void *buf, size_t size_in_bytes) {
  set_attribute(table<BwdTable>(), &bwd_params().at(params), attr, buf, size_in_bytes);
}

void nvte_get_fused_attn_bwd_params_attribute(NVTEFusedAttnBwdParams params, NVTEFusedAttnBwdParamsAttribute attr,
                                              void *buf, size_t size_in_bytes, size_t *size_written) {
  get_attribute(table<BwdTable>(), &bwd_params().at(params), attr, buf, size_in_bytes, size_written);
}

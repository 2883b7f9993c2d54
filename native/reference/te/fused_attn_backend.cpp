/*
 * Which configurations of fused attention are computed: TE's own refusals, those of cuDNN 9.19 on Hopper, and what the
 * reference lacks.
 *
 * Wider than the GPU: Float32 storage, and head dimensions that are no multiple of 8. Narrower: no bias that queries share, no
 * paged keys and values, no dropout in FP8.
 */
#include "runtime/fp8.h"
#include "te/fused_attn.h"

namespace chagres::reference {

bool is_padding_mask(int32_t attn_mask_type) {
  return attn_mask_type == NVTE_PADDING_MASK || attn_mask_type == NVTE_PADDING_CAUSAL_MASK ||
         attn_mask_type == NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK;
}

namespace {

bool is_tensor_format(int32_t format) {
  return format == NVTE_SBHD || format == NVTE_BSHD || format == NVTE_THD || format == NVTE_BHSD;
}

std::string number_rejection(const char *attribute, int64_t value, int64_t first, int64_t last) {
  if (value >= first && value <= last) return "";
  return text("attribute ", attribute, " must be a number from ", first, " to ", last, ", got ", value);
}

std::string mask_rejection(const FusedAttnConfig &config, bool thd, bool paged) {
  std::string reason = number_rejection("AttnMaskType", config.attn_mask_type, 0, 5);
  if (!reason.empty()) return reason;
  if ((thd || paged) && !is_padding_mask(config.attn_mask_type)) {
    return text(paged ? "paged keys and values" : "THD",
                " need an attribute AttnMaskType with padding: NVTE_PADDING_MASK, "
                "NVTE_PADDING_CAUSAL_MASK or NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK, got ",
                config.attn_mask_type);
  }
  if (config.window_size_left < -1 || config.window_size_right < -1) {
    return text("attributes WindowSizeLeft and WindowSizeRight must be -1 (no limit) or more, got ",
                config.window_size_left, " and ", config.window_size_right);
  }
  return "";
}

std::string feature_rejection(const FusedAttnConfig &config, bool thd, FusedAttnPass pass) {
  std::string reason = number_rejection("BiasType", config.bias_type, 0, 3);
  if (!reason.empty()) return reason;
  if (config.bias_type == NVTE_PRE_SCALE_BIAS) return "attribute BiasType: a bias before the scale is not supported";
  if (thd && config.bias_type == NVTE_POST_SCALE_BIAS)
    return "attribute BiasType: cuDNN has no bias over THD, whose scores are not of one shape";
  reason = number_rejection("SoftmaxType", config.softmax_type, 0, 2);
  if (!reason.empty()) return reason;
  if (thd && config.softmax_type != NVTE_VANILLA_SOFTMAX && config.is_training && pass != FusedAttnPass::Forward)
    return text("attribute SoftmaxType ", config.softmax_type,
                ": the backward of a softmax with an offset over THD needs cuDNN 9.26 or later");
  if (!(config.dropout >= 0 && config.dropout < 1))
    return text("attribute Dropout must be at least 0 and below 1, got ", config.dropout);
  return "";
}

/* What cuDNN refuses although TE asks it. A mask is bottom-right to cuDNN where the diagonal ends in the last key and
 * keys to its right are hidden: a causal mask, or a window. */
std::string cudnn_rejection(const FusedAttnConfig &config) {
  const bool causal_bottom_right = config.attn_mask_type == NVTE_CAUSAL_BOTTOM_RIGHT_MASK ||
                                   config.attn_mask_type == NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK;
  const bool causal = config.attn_mask_type == NVTE_CAUSAL_MASK || config.attn_mask_type == NVTE_PADDING_CAUSAL_MASK;
  const bool window_bottom_right = !causal && config.bottom_right_diagonal != 0 && config.window_size_right >= 0;
  const char *const bottom_right =
      causal_bottom_right   ? "a bottom-right causal AttnMaskType"
      : window_bottom_right ? "a WindowSizeRight from a BottomRightDiagonal (0 counts it from the top left)"
                            : nullptr;
  if (config.return_max_logit) return "attribute ReturnMaxLogit: needs cuDNN 9.21 or later";
  if (bottom_right != nullptr && config.is_training && config.dropout > 0)
    return text("attribute Dropout ", config.dropout, ": cuDNN has no dropout under ", bottom_right);
  if (bottom_right != nullptr && config.bias_type != NVTE_NO_BIAS)
    return text("attribute BiasType ", config.bias_type, ": cuDNN has neither bias nor ALiBi under ", bottom_right);
  if (config.bias_type == NVTE_ALIBI && !causal && config.window_size_right != 0)
    return "attribute BiasType 3: cuDNN has ALiBi only where a query sees no later key, under a causal AttnMaskType or a "
           "WindowSizeRight of 0";
  if (config.softmax_type != NVTE_VANILLA_SOFTMAX && config.max_seqlen_q == 1)
    return text("attribute SoftmaxType ", config.softmax_type,
                ": cuDNN has no softmax with an offset for a MaxSeqlenQ of 1");
  if (!is_padding_mask(config.attn_mask_type) && config.max_seqlen_q > config.max_seqlen_kv &&
      (bottom_right != nullptr || config.window_size_left >= 0))
    return text("attribute MaxSeqlenQ ", config.max_seqlen_q, ": cuDNN takes more queries than keys (MaxSeqlenKV ",
                config.max_seqlen_kv, ") under ", bottom_right != nullptr ? bottom_right : "a WindowSizeLeft",
                " with a padding AttnMaskType only");
  return "";
}

std::string dtype_rejection(const FusedAttnConfig &config) {
  if (config.qkv_dtype == kNVTEFloat8E4M3) return "";
  if (config.qkv_dtype != kNVTEFloat32 && config.qkv_dtype != kNVTEFloat16 && config.qkv_dtype != kNVTEBFloat16)
    return text("attribute QKVDtype must be BFloat16, Float16, Float32 or Float8E4M3, got ", dtype_name(config.qkv_dtype));
  return "";
}

bool is_fp8_number(int32_t dtype) { return is_fp8(static_cast<NVTEDType>(dtype)); }

std::string fp8_dtype_rejection(const FusedAttnConfig &config, bool backward) {
  if (config.o_dtype != kNVTEFloat8E4M3)
    return text("attribute ODtype ", dtype_name(config.o_dtype),
                ": FP8 attention on Hopper scales by earlier steps, with an output of Float8E4M3");
  if (backward && !is_fp8_number(config.do_dtype))
    return text("attribute DODtype must be FP8 where QKVDtype is, got ", dtype_name(config.do_dtype));
  if (backward && !is_fp8_number(config.dqkv_dtype))
    return text("attribute DQKVDtype must be FP8 where QKVDtype is, got ", dtype_name(config.dqkv_dtype));
  return "";
}

/* What cuDNN 9.19 does not compute in FP8 on Hopper. */
std::string fp8_rejection(const FusedAttnConfig &config, bool thd, bool backward) {
  if (thd) return "attribute QKVLayout: FP8 attention of THD needs cuDNN 9.23 or later";
  if (config.bias_type != NVTE_NO_BIAS)
    return text("attribute BiasType ", config.bias_type, ": FP8 attention has neither bias nor ALiBi");
  if (config.attn_mask_type > NVTE_PADDING_CAUSAL_MASK)
    return text("attribute AttnMaskType ", config.attn_mask_type, ": FP8 attention has a bottom-right mask on Blackwell only");
  if (config.softmax_type != NVTE_VANILLA_SOFTMAX)
    return text("attribute SoftmaxType ", config.softmax_type, ": FP8 attention with an offset needs cuDNN 9.21 or later");
  const bool causal = config.attn_mask_type == NVTE_CAUSAL_MASK || config.attn_mask_type == NVTE_PADDING_CAUSAL_MASK;
  if (config.window_size_left != -1 || (config.window_size_right != -1 && !(causal && config.window_size_right == 0)))
    return text("attributes WindowSizeLeft and WindowSizeRight: FP8 attention with a window needs cuDNN 9.21 or later, got ",
                config.window_size_left, " and ", config.window_size_right);
  if (config.is_training && config.dropout > 0)
    return text("attribute Dropout ", config.dropout, ": the reference computes FP8 attention without dropout");
  const size_t qk = config.head_dim_qk, v = config.head_dim_v;
  if (config.is_training && (qk != 128 || v != 128))
    return text("attributes HeadDimQK and HeadDimV: training in FP8 takes heads of 128 on Hopper, got ", qk, " and ", v);
  if (qk % 16 != 0 || v % 16 != 0 || qk > 256 || v > 256)
    return text("attributes HeadDimQK and HeadDimV: FP8 attention takes multiples of 16 up to 256, got ", qk, " and ", v);
  return fp8_dtype_rejection(config, backward);
}

/* A bias is shared by sequences, by heads, or by none of them; each pair of a query and a key has its own. */
std::string bias_rejection(const FusedAttnConfig &config) {
  if (config.bias_type != NVTE_POST_SCALE_BIAS) return "";
  const struct {
    const char *attribute;
    size_t value, shared, whole;
  } sizes[] = {{"BiasBatchSize", config.bias_batch_size, 1, config.batch_size},
               {"BiasNumHeads", config.bias_num_heads, 1, config.num_attn_heads},
               {"BiasSeqlenQ", config.bias_seqlen_q, config.max_seqlen_q, config.max_seqlen_q},
               {"BiasSeqlenKV", config.bias_seqlen_kv, config.max_seqlen_kv, config.max_seqlen_kv}};
  for (const auto &size : sizes) {
    if (size.value != size.shared && size.value != size.whole)
      return text("attribute ", size.attribute, " must be ", size.shared == size.whole ? "" : "1 or ", size.whole, ", got ",
                  size.value);
  }
  return "";
}

std::string format_rejection(const FusedAttnConfig &config, bool thd_q, bool backward, const Caller &caller) {
  if (!is_tensor_format(config.o_format))
    return text("attribute OFormat must be NVTE_SBHD, NVTE_BSHD, NVTE_THD or NVTE_BHSD, got ", config.o_format);
  if ((config.o_format == NVTE_THD) != thd_q) return "attribute OFormat must be NVTE_THD exactly when Q is THD";
  if (!backward) return "";
  if (!is_tensor_format(config.do_format))
    return text("attribute DOFormat must be NVTE_SBHD, NVTE_BSHD, NVTE_THD or NVTE_BHSD, got ", config.do_format);
  if ((config.do_format == NVTE_THD) != thd_q) return "attribute DOFormat must be NVTE_THD exactly when Q is THD";
  std::string reason = number_rejection("DQKVLayout", config.dqkv_layout, 0, NVTE_QKV_Layout_NOT_SET - 1);
  if (!reason.empty()) return reason;
  const bool same_q = (q_layout(config.dqkv_layout, caller).format == NVTE_THD) == thd_q;
  const bool same_kv = (kv_layout(config.dqkv_layout, caller).format == NVTE_THD) ==
                       (kv_layout(config.qkv_layout, caller).format == NVTE_THD);
  if (!same_q || !same_kv) return "attribute DQKVLayout must be a THD layout exactly where QKVLayout is";
  return "";
}

std::string packing_rejection(const FusedAttnConfig &config, const char *attribute, int32_t layout,
                              const Caller &caller) {
  const bool all = q_layout(layout, caller).packed == 3;
  if (all && config.num_attn_heads != config.num_gqa_groups)
    return text("attribute ", attribute, " ", layout,
                " packs Q, K and V in one buffer, so they need equal head counts, got ", config.num_attn_heads, " and ",
                config.num_gqa_groups);
  if (kv_layout(layout, caller).packed > 1 && config.head_dim_qk != config.head_dim_v)
    return text("attribute ", attribute, " ", layout,
                " packs K and V in one buffer, so they need equal head dimensions, got ", config.head_dim_qk, " and ",
                config.head_dim_v);
  return "";
}

std::string size_rejection(const FusedAttnConfig &config, bool thd_q, bool thd_kv) {
  const struct {
    const char *attribute;
    size_t value;
  } sizes[] = {{"BatchSize", config.batch_size},        {"NumAttnHeads", config.num_attn_heads},
               {"NumGQAGroups", config.num_gqa_groups}, {"HeadDimQK", config.head_dim_qk},
               {"HeadDimV", config.head_dim_v},         {"MaxSeqlenQ", config.max_seqlen_q},
               {"MaxSeqlenKV", config.max_seqlen_kv}};
  for (const auto &size : sizes) {
    /* Positions are int32 in cu_seqlens and one 32-bit word in the counter of dropout. */
    if (size.value == 0 || size.value > 0x7fffffffu)
      return text("attribute ", size.attribute, " must be from 1 to 2147483647, got ", size.value);
  }
  if (config.num_attn_heads % config.num_gqa_groups != 0)
    return text("attribute NumAttnHeads must be a multiple of NumGQAGroups, got ", config.num_attn_heads, " and ",
                config.num_gqa_groups);
  if (thd_q && config.num_tokens_q == 0) return "attribute NumTokensQ must not be 0 for THD";
  if (thd_kv && config.num_tokens_kv == 0) return "attribute NumTokensKV must not be 0 for THD";
  return "";
}

}  // namespace

std::string fused_attn_rejection(const FusedAttnConfig &config, FusedAttnPass pass, Caller caller) {
  const int32_t layout = config.qkv_layout;
  const bool thd_q = q_layout(layout, caller).format == NVTE_THD;
  const bool thd_kv = kv_layout(layout, caller).format == NVTE_THD;
  const bool paged = is_paged_layout(layout, caller);
  const bool backward = pass == FusedAttnPass::Backward || (pass == FusedAttnPass::Both && config.is_training);

  std::string reason = mask_rejection(config, thd_q || thd_kv, paged);
  if (reason.empty() && paged)
    reason = text("attribute QKVLayout ", config.qkv_layout, ": the reference does not compute paged keys and values");
  if (reason.empty()) reason = feature_rejection(config, thd_q || thd_kv, pass);
  if (reason.empty()) reason = dtype_rejection(config);
  if (reason.empty()) reason = size_rejection(config, thd_q, thd_kv);
  if (reason.empty()) reason = bias_rejection(config);
  if (reason.empty()) reason = cudnn_rejection(config);
  if (reason.empty() && is_fp8_number(config.qkv_dtype)) reason = fp8_rejection(config, thd_q || thd_kv, backward);
  if (reason.empty()) reason = format_rejection(config, thd_q, backward, caller);
  if (reason.empty()) reason = packing_rejection(config, "QKVLayout", config.qkv_layout, caller);
  if (reason.empty() && backward) reason = packing_rejection(config, "DQKVLayout", config.dqkv_layout, caller);
  return reason;
}

}  // namespace chagres::reference

using namespace chagres::reference;

namespace {

NVTE_Fused_Attn_Backend backend_of(const FusedAttnConfig &config) {
  return is_fp8_number(config.qkv_dtype) ? NVTE_FP8 : NVTE_F16_arbitrary_seqlen;
}

}  // namespace

NVTE_Fused_Attn_Backend nvte_get_fused_attn_backend_v2(NVTEFusedAttnConfig cfg, const char **message) {
  static thread_local std::string reason;
  const FusedAttnConfig config = fused_attn_config(cfg, Caller::here());
  reason = fused_attn_rejection(config, FusedAttnPass::Both, Caller::here());
  const NVTE_Fused_Attn_Backend backend = backend_of(config);
  if (message != nullptr) *message = reason.c_str();
  return reason.empty() ? backend : NVTE_No_Backend;
}

/* As Transformer Engine: batch 1, formats from the layout, a bias of every score, no token counts, so THD gets no backend. */
NVTE_Fused_Attn_Backend nvte_get_fused_attn_backend(
    bool is_training, NVTEDType q_dtype, NVTEDType kv_dtype, NVTE_QKV_Layout qkv_layout, NVTE_Bias_Type bias_type,
    NVTE_Mask_Type attn_mask_type, NVTE_Softmax_Type softmax_type, float dropout, size_t num_attn_heads,
    size_t num_gqa_groups, size_t max_seqlen_q, size_t max_seqlen_kv, size_t head_dim_qk, size_t head_dim_v,
    int64_t window_size_left, int64_t window_size_right, bool return_max_logit, bool cuda_graph, bool deterministic) {
  CHAGRES_CHECK(q_dtype == kv_dtype, "Q and KV must have the same dtype, got ", dtype_name(q_dtype), " and ",
                dtype_name(kv_dtype));
  FusedAttnConfig config;
  config.is_training = is_training;
  config.deterministic = deterministic;
  config.cuda_graph = cuda_graph;
  config.return_max_logit = return_max_logit;
  config.attn_mask_type = attn_mask_type;
  config.bias_type = bias_type;
  config.window_size_left = window_size_left;
  config.window_size_right = window_size_right;
  config.softmax_type = softmax_type;
  config.dropout = dropout;
  config.qkv_dtype = config.o_dtype = config.do_dtype = config.dqkv_dtype = q_dtype;
  config.qkv_layout = config.dqkv_layout = qkv_layout;
  config.o_format = config.do_format = nvte_get_q_format(qkv_layout);
  config.batch_size = 1;
  config.num_attn_heads = num_attn_heads;
  config.num_gqa_groups = num_gqa_groups;
  config.head_dim_qk = head_dim_qk;
  config.head_dim_v = head_dim_v;
  config.max_seqlen_q = max_seqlen_q;
  config.max_seqlen_kv = max_seqlen_kv;
  if (bias_type == NVTE_POST_SCALE_BIAS) {
    config.bias_batch_size = 1;
    config.bias_num_heads = num_attn_heads;
    config.bias_seqlen_q = max_seqlen_q;
    config.bias_seqlen_kv = max_seqlen_kv;
  }
  return fused_attn_rejection(config, FusedAttnPass::Both, Caller::here()).empty() ? backend_of(config) : NVTE_No_Backend;
}

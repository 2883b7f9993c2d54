/* The long-argument forms of fused attention, which fill the parameter objects of the v2 functions. */
#include "te/fused_attn.h"

using namespace chagres::reference;

void nvte_fused_attn_fwd(NVTETensor Q, NVTETensor K, NVTETensor V, NVTETensor Bias, NVTETensor SoftmaxOffset,
                         NVTETensor S, NVTETensor O, NVTETensorPack *Aux_CTX_Tensors, NVTETensor cu_seqlens_q,
                         NVTETensor cu_seqlens_kv, NVTETensor cu_seqlens_q_padded, NVTETensor cu_seqlens_kv_padded,
                         NVTETensor page_table_k, NVTETensor page_table_v, NVTETensor rng_state, size_t max_seqlen_q,
                         size_t max_seqlen_kv, bool is_training, bool return_max_logit, bool cuda_graph,
                         float attn_scale, float dropout, NVTE_QKV_Layout qkv_layout, NVTE_QKV_Format o_format,
                         NVTE_QKV_Format qkv_scale_inv_format, NVTE_Bias_Type bias_type, NVTE_Mask_Type attn_mask_type,
                         NVTE_Softmax_Type softmax_type, int64_t window_size_left, int64_t window_size_right,
                         bool bottom_right_diagonal, NVTETensor workspace, cudaStream_t stream) {
  FusedAttnFwdParams params;
  params.q = Q;
  params.k = K;
  params.v = V;
  params.bias = Bias;
  params.softmax_offset = SoftmaxOffset;
  params.s = S;
  params.o = O;
  params.aux_ctx_tensors = Aux_CTX_Tensors;
  params.cu_seqlens_q = cu_seqlens_q;
  params.cu_seqlens_kv = cu_seqlens_kv;
  params.cu_seqlens_q_padded = cu_seqlens_q_padded;
  params.cu_seqlens_kv_padded = cu_seqlens_kv_padded;
  params.page_table_k = page_table_k;
  params.page_table_v = page_table_v;
  params.rng_state = rng_state;
  params.is_training = is_training;
  params.cuda_graph = cuda_graph;
  params.return_max_logit = return_max_logit;
  params.attn_mask_type = attn_mask_type;
  params.bias_type = bias_type;
  params.window_size_left = window_size_left;
  params.window_size_right = window_size_right;
  params.bottom_right_diagonal = bottom_right_diagonal;
  params.softmax_type = softmax_type;
  params.dropout = dropout;
  params.attn_scale = attn_scale;
  params.qkv_layout = qkv_layout;
  params.o_format = o_format;
  params.qkv_scale_inv_format = qkv_scale_inv_format;
  params.max_seqlen_q = max_seqlen_q;
  params.max_seqlen_kv = max_seqlen_kv;
  params.workspace = workspace;
  params.stream = stream;
  fused_attn_forward(params, Caller::here());
}

void nvte_fused_attn_bwd(NVTETensor Q, NVTETensor K, NVTETensor V, NVTETensor O, NVTETensor dO, NVTETensor S,
                         NVTETensor dP, const NVTETensorPack *Aux_CTX_Tensors, NVTETensor dQ, NVTETensor dK,
                         NVTETensor dV, NVTETensor dBias, NVTETensor dSoftmaxOffset, NVTETensor cu_seqlens_q,
                         NVTETensor cu_seqlens_kv, NVTETensor cu_seqlens_q_padded, NVTETensor cu_seqlens_kv_padded,
                         size_t max_seqlen_q, size_t max_seqlen_kv, float attn_scale, float dropout,
                         NVTE_QKV_Layout qkv_layout, NVTE_QKV_Format o_format, NVTE_QKV_Format do_format,
                         NVTE_QKV_Layout dqkv_layout, NVTE_QKV_Format qkv_scale_inv_format,
                         NVTE_QKV_Format do_scale_inv_format, NVTE_Bias_Type bias_type, NVTE_Mask_Type attn_mask_type,
                         NVTE_Softmax_Type softmax_type, int64_t window_size_left, int64_t window_size_right,
                         bool bottom_right_diagonal, bool deterministic, bool cuda_graph, NVTETensor workspace,
                         cudaStream_t stream) {
  FusedAttnBwdParams params;
  params.q = Q;
  params.k = K;
  params.v = V;
  params.o = O;
  params.d_o = dO;
  params.s = S;
  params.dp = dP;
  params.aux_ctx_tensors = Aux_CTX_Tensors;
  params.dq = dQ;
  params.dk = dK;
  params.dv = dV;
  params.dbias = dBias;
  params.dsoftmax_offset = dSoftmaxOffset;
  params.cu_seqlens_q = cu_seqlens_q;
  params.cu_seqlens_kv = cu_seqlens_kv;
  params.cu_seqlens_q_padded = cu_seqlens_q_padded;
  params.cu_seqlens_kv_padded = cu_seqlens_kv_padded;
  params.deterministic = deterministic;
  params.cuda_graph = cuda_graph;
  params.attn_mask_type = attn_mask_type;
  params.bias_type = bias_type;
  params.window_size_left = window_size_left;
  params.window_size_right = window_size_right;
  params.bottom_right_diagonal = bottom_right_diagonal;
  params.softmax_type = softmax_type;
  params.dropout = dropout;
  params.attn_scale = attn_scale;
  params.qkv_layout = qkv_layout;
  params.o_format = o_format;
  params.do_format = do_format;
  params.dqkv_layout = dqkv_layout;
  params.qkv_scale_inv_format = qkv_scale_inv_format;
  params.do_scale_inv_format = do_scale_inv_format;
  params.max_seqlen_q = max_seqlen_q;
  params.max_seqlen_kv = max_seqlen_kv;
  params.workspace = workspace;
  params.stream = stream;
  fused_attn_backward(params, Caller::here());
}

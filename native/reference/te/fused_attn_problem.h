/* From the tensor handles of a fused-attention call to an AttentionProblem: shapes, strides, lengths, all checked. */
#ifndef CHAGRES_REFERENCE_FUSED_ATTN_PROBLEM_H
#define CHAGRES_REFERENCE_FUSED_ATTN_PROBLEM_H

#include "te/attention.h"
#include "te/fused_attn.h"

namespace chagres::reference {

/* A tensor's dimensions by meaning. THD has tokens, the other formats have sequences and length. */
struct AttentionExtent {
  int64_t sequences = 0, length = 0, tokens = 0, heads = 0, dim = 0;
};

AttentionExtent attention_extent(NVTETensor handle, const char *argument, NVTE_QKV_Format format, const Caller &caller);

/* The attributes and handles that forward and backward have in common. */
struct FusedAttnInputs {
  NVTETensor q, k, v, o;
  NVTETensor cu_seqlens_q, cu_seqlens_kv, cu_seqlens_q_padded, cu_seqlens_kv_padded;
  AttentionExtent q_extent, kv_extent, o_extent;
  FusedAttnConfig config;
};

/* Collects attributes and dimensions; throws for dead handles and ranks that do not fit the layout, and what
 * fused_attn_rejection refuses. */
FusedAttnInputs fused_attn_inputs(const FusedAttnFwdParams &params, const Caller &caller);
FusedAttnInputs fused_attn_inputs(const FusedAttnBwdParams &params, const Caller &caller);

/* A tensor of the given layout, after the check that its dimensions are `expected` and its dtype `dtype`: that of Q or, in FP8
 * attention, that of the first of its kind. */
AttentionTensor attention_tensor(NVTETensor handle, const char *argument, const TensorLayout &layout,
                                 const AttentionExtent &expected, NVTEDType dtype, const Caller &caller);

/* Q, K, V of `layout` (or their gradients), with the places of packed tensors checked when they have data. */
struct AttentionTriple {
  AttentionTensor q, k, v;
};
struct AttentionTripleHandles {
  NVTETensor handle[3];
  const char *argument[3];
};
AttentionTriple attention_triple(const AttentionTripleHandles &handles, int32_t layout, const FusedAttnInputs &inputs,
                                 NVTEDType dtype, const Caller &caller);

/* The modification of scores in one call: a bias, or ALiBi with the slopes that cuDNN gives the heads. */
class FusedAttnScores {
 public:
  /* Points `problem` at the data of `bias`, where there is one, or at slopes. */
  void change(AttentionProblem &problem, NVTETensor bias, const char *argument, const FusedAttnInputs &inputs,
              const Caller &caller);

  /* Lets backward sum the gradient of the bias up in float, where there is one; `store` rounds the sums into `dbias`. */
  void differentiate(AttentionProblem &problem, NVTETensor dbias, const FusedAttnInputs &inputs, const Caller &caller);
  void store() const;

 private:
  std::vector<float> slopes_, sums_;
  void *dbias_ = nullptr;
  NVTEDType dtype_ = kNVTEFloat32;
};

bool has_bias(const FusedAttnConfig &config);

/* The extents of a bias and of its gradient. */
NVTEShape bias_shape(const FusedAttnConfig &config);

/* Everything but data: strides, scale, band, heads. Data pointers may still be null. */
AttentionProblem attention_problem(const FusedAttnInputs &inputs, const Caller &caller);

/* Float32 of one column a query and head: [t, h, 1] for THD, else [b, h, s, 1]. */
NVTEShape stats_shape(const FusedAttnInputs &inputs);
AttentionTensor stats_tensor(NVTETensor handle, const char *argument, const FusedAttnInputs &inputs,
                             const Caller &caller);

/* Reads cu_seqlens: sequence lengths, and the tokens where THD sequences start in every tensor of the problem. */
void read_lengths(const FusedAttnInputs &inputs, AttentionProblem &problem, const Caller &caller);

/* Whether query, key and value are FP8; and the calls then, of a problem with data and lengths. */
bool is_fp8_attention(const FusedAttnInputs &inputs);
void fused_attn_forward_fp8(const AttentionProblem &problem, const FusedAttnInputs &inputs,
                            const FusedAttnFwdParams &params, const Caller &caller);
void fused_attn_backward_fp8(const AttentionProblem &problem, const FusedAttnInputs &inputs,
                             const FusedAttnBwdParams &params, const Caller &caller);

/* Data pointer of a tensor, which must be there. */
void *required_data(NVTETensor handle, const char *argument, const Caller &caller);

}  // namespace chagres::reference

#endif /* CHAGRES_REFERENCE_FUSED_ATTN_PROBLEM_H */

/*
 * The scales and amaxes of fused attention's tensors in eight bits, from the tensors' handles. As cuDNN's, a call overwrites
 * amaxes; of tensors that share one it writes the largest.
 */
#include "runtime/fp8.h"
#include "te/fused_attn_problem.h"

namespace chagres::reference {

namespace {

float *cell(NVTETensor handle, const char *argument, NVTETensorParam record, const char *name, const Caller &caller) {
  const NVTEBasicTensor &found = tensor(handle, argument, caller).record(record);
  if (found.data_ptr == nullptr || found.dtype != kNVTEFloat32 || element_count(found.shape) != 1)
    fail(caller, text("Tensor \"", argument, "\" takes part in FP8 attention, so it must have a ", name,
                      " of one Float32, got ", dtype_name(found.dtype), " ", shape_text(found.shape),
                      found.data_ptr == nullptr ? " without data" : ""));
  return static_cast<float *>(found.data_ptr);
}

float inverse(NVTETensor handle, const char *argument, const Caller &caller) {
  return *cell(handle, argument, kNVTERowwiseScaleInv, "scale_inv", caller);
}

float scale(NVTETensor handle, const char *argument, const Caller &caller) {
  return *cell(handle, argument, kNVTEScale, "scale", caller);
}

void raise(NVTETensor handle, const char *argument, float largest, const Caller &caller) {
  merge_amax(tensor(handle, argument, caller), largest);
}

void clear(NVTETensor handle, const char *argument, const Caller &caller) {
  *cell(handle, argument, kNVTEAmax, "amax", caller) = 0;
}

void read_common(AttentionScales &scales, const FusedAttnInputs &inputs, NVTETensor s, const Caller &caller) {
  scales.q_inverse = inverse(inputs.q, "Q", caller);
  scales.k_inverse = inverse(inputs.k, "K", caller);
  scales.v_inverse = inverse(inputs.v, "V", caller);
  scales.s = scale(s, "S", caller);
  scales.s_inverse = inverse(s, "S", caller);
}

}  // namespace

bool is_fp8_attention(const FusedAttnInputs &inputs) { return is_fp8(static_cast<NVTEDType>(inputs.config.qkv_dtype)); }

void fused_attn_forward_fp8(const AttentionProblem &problem, const FusedAttnInputs &inputs,
                            const FusedAttnFwdParams &params, const Caller &caller) {
  AttentionScales scales;
  read_common(scales, inputs, params.s, caller);
  scales.o = scale(params.o, "O", caller);
  clear(params.s, "S", caller);
  clear(params.o, "O", caller);
  attention_forward_fp8(problem, scales);
  raise(params.s, "S", scales.amax_s, caller);
  raise(params.o, "O", scales.amax_o, caller);
}

void fused_attn_backward_fp8(const AttentionProblem &problem, const FusedAttnInputs &inputs,
                             const FusedAttnBwdParams &params, const Caller &caller) {
  AttentionScales scales;
  read_common(scales, inputs, params.s, caller);
  scales.o_inverse = inverse(params.o, "O", caller);
  scales.d_o_inverse = inverse(params.d_o, "DO", caller);
  scales.dp = scale(params.dp, "DP", caller);
  scales.dp_inverse = inverse(params.dp, "DP", caller);
  scales.dp_dtype = problem.d_o.dtype;
  scales.dq = scale(params.dq, "DQ", caller);
  scales.dk = scale(params.dk, "DK", caller);
  scales.dv = scale(params.dv, "DV", caller);
  clear(params.dp, "DP", caller);
  clear(params.dq, "DQ", caller);
  clear(params.dk, "DK", caller);
  clear(params.dv, "DV", caller);
  attention_backward_fp8(problem, scales);
  raise(params.dp, "DP", scales.amax_dp, caller);
  raise(params.dq, "DQ", scales.amax_dq, caller);
  raise(params.dk, "DK", scales.amax_dk, caller);
  raise(params.dv, "DV", scales.amax_dv, caller);
}

}  // namespace chagres::reference

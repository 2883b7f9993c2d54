/* Conditions on single functions' arguments that rules.py names in EXTRA. Each is true when the call may go on. */
#ifndef CHAGRES_GUARD_RULES_HPP
#define CHAGRES_GUARD_RULES_HPP

#include "guard.hpp"

namespace chagres::guard {

/* Finds what the conditions ask the library; te_open calls it before any function can be called. */
void look_up_asked_functions(void *library);

/* How many workspaces nvte_multi_tensor_gemm reads: it deals the products out to the compute streams. */
int gemm_workspace_count(int num_gemms);

/* No element is 0 where nvte_multi_tensor_gemm may take its CUTLASS kernel, which follows each without a look. */
bool some_for_cutlass(const Check &check, const char *argument, const NVTETensor *tensors, int num_gemms);

bool compute_stream_index(const Check &check, int idx);

/* A tensor's or grouped tensor's parameter that is itself a tensor: its extent and type, which the library copies
 * unread. */
bool tensor_attribute(const Check &check, NVTETensorParam param, const void *buf, std::size_t size_in_bytes);
bool grouped_tensor_attribute(const Check &check, NVTEGroupedTensorParam param, const void *buf,
                              std::size_t size_in_bytes);

/* A tensor that must not be empty. */
bool elements(const Check &check, const char *argument, NVTETensor tensor);

/* Tensors whose four extents the library divides by. */
bool four_dimensions(const Check &check, const char *argument, const NVTETensor *tensors, std::size_t count);

/* A row behind the first two dimensions must not round down to no byte. */
bool whole_bytes(const Check &check, NVTETensor input);

/* A bias of attention's scores, and its gradient, whose four extents the library reads unasked. */
bool bias_of_scores(const Check &check, const char *argument, int bias_type, NVTETensor bias);
bool bias_gradient(const Check &check, int bias_type, const NVTETensorPack *pack, NVTETensor dbias);

/* As `elements` where the output has columnwise data, which the library makes by transposing. */
bool elements_if_transposed(const Check &check, const char *argument, NVTETensor input, NVTETensor output);
bool elements_if_transposed(const Check &check, const char *argument, const NVTETensor *inputs,
                            const NVTETensor *outputs, std::size_t count);

/* Handles inside configurations that the library follows without a look. */
bool matmul_config(const Check &check, NVTEMatmulConfig config);
bool quantization_config(const Check &check, NVTEQuantizationConfig config);
bool fused_attn_fwd_params(const Check &check, NVTEFusedAttnFwdParams params);
bool fused_attn_bwd_params(const Check &check, NVTEFusedAttnBwdParams params);

}  // namespace chagres::guard

#endif

/* What quantization and matrix-product configurations hold, read by cast.cpp and gemm.cpp. */
#ifndef CHAGRES_CONFIG_H
#define CHAGRES_CONFIG_H

#include "runtime/handles.h"

namespace chagres::reference {

struct QuantizationConfig {
  float amax_epsilon = 0;
  int32_t block_scale_format = 2; /* deprecated: reads as "invalid", writes are ignored */
  NVTETensor noop_tensor = nullptr;
  NVTETensor rng_state = nullptr;
  uint8_t force_pow_2_scales = 0;
  uint8_t nvfp4_2d_quantization = 0;
  uint8_t stochastic_rounding = 0;
  uint8_t use_fast_math = 0;
  uint8_t nvfp4_4over6_mode = 0;
  uint8_t nvfp4_4over6_err_use_fast_math = 0;
  uint8_t mxfp8_2d_quantization = 0;
};

struct MatmulConfig {
  NVTETensor bias_tensor = nullptr;
  NVTETensor dbias_tensor = nullptr;
  NVTETensor epilogue_aux_tensor = nullptr;
  int32_t sm_count = 0;
  uint8_t with_gelu_epilogue = 0;
  uint8_t with_dgelu_epilogue = 0;
  uint8_t use_split_accumulator = 0;
};

/* A copy of the configuration's values; defaults for a null handle; throws for a dead one. */
QuantizationConfig quantization_config(NVTEQuantizationConfig config, Caller caller = Caller::here());
MatmulConfig matmul_config(NVTEMatmulConfig config, Caller caller = Caller::here());

/* A configuration of its own with the values of a living one, whose tensors `keep` keeps; null for any other handle. */
std::shared_ptr<void> kept_config(void *handle, std::shared_ptr<void> (*keep)(void *));

}  // namespace chagres::reference

#endif /* CHAGRES_CONFIG_H */

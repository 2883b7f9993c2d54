/*
 * Quantization and dequantization. Scaling mode 0: a cast to Float32, Float16, BFloat16 or FP8 with one scale, with
 * the transpose where the output has columnwise data. Modes 2 and 3 are block_scaling.cpp's.
 */
#include "te/recorded.h"
#include "te/block_scaling.h"
#include "te/cast_transpose.h"

namespace chagres::reference {

void cast(NVTETensor input, NVTETensor output, NVTETensor noop, const Caller &caller) {
  const View x = view(input, "input", {}, caller);
  expect_unscaled(input, "input", caller);
  const Quantized y = quantized_output(output, "output", caller);
  expect_same_shape(y.rowwise, "output", x, "input", caller);
  if (is_noop(noop, caller)) return;
  finish(y, pointwise(x.count(), [&](int64_t first, int64_t count) {
           Scratch run(count);
           to_float(run.data(), element(x.data, first, x.dtype), x.dtype, count);
           return store_run(y, first, run.data(), count);
         }));
}

namespace {

void quantize(NVTETensor input, NVTETensor output, const QuantizationConfig &config, const Caller &caller) {
  const int mode = tensor(output, "output", caller).scaling_mode;
  if (mode == NVTE_DELAYED_TENSOR_SCALING) return cast(input, output, config.noop_tensor, caller);
  if (mode == NVTE_BLOCK_SCALING_1D || mode == NVTE_BLOCK_SCALING_2D) {
    return quantize_blocks(input, output, config, caller);
  }
  fail(caller, text("Tensor \"output\" has scaling mode ", mode,
                    ": MXFP8 and NVFP4 need compute capability 10.0, the reference computes as 9.0 does"));
}

QuantizationConfig checked_config(NVTEQuantizationConfig config, const Caller &caller) {
  const QuantizationConfig values = quantization_config(config, caller);
  if (values.stochastic_rounding != 0) {
    fail(caller, "Stochastic rounding is only for NVFP4 outputs, which the reference does not compute");
  }
  return values;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_quantize(NVTETensor input, NVTETensor output, cudaStream_t stream) {
  if (recorded(nvte_quantize, input, output, stream)) return;
  quantize(input, output, {}, Caller::here());
}

void nvte_quantize_noop(NVTETensor input, NVTETensor output, NVTETensor noop, cudaStream_t stream) {
  if (recorded(nvte_quantize_noop, input, output, noop, stream)) return;
  tensor(noop, "noop");
  QuantizationConfig config;
  config.noop_tensor = noop;
  quantize(input, output, config, Caller::here());
}

void nvte_quantize_v2(NVTETensor input, NVTETensor output, NVTEQuantizationConfig quant_config, cudaStream_t stream) {
  if (recorded(nvte_quantize_v2, input, output, quant_config, stream)) return;
  const Caller caller = Caller::here();
  quantize(input, output, checked_config(quant_config, caller), caller);
}

void nvte_multi_tensor_quantize(const NVTETensor *inputs, NVTETensor *outputs, NVTEQuantizationConfig quant_config,
                                size_t num_tensors, cudaStream_t stream) {
  if (recorded(nvte_multi_tensor_quantize, list(inputs, num_tensors), list(outputs, num_tensors), quant_config,
               num_tensors, stream)) return;
  const Caller caller = Caller::here();
  CHAGRES_CHECK(num_tensors == 0 || (inputs != nullptr && outputs != nullptr),
                "Arguments \"inputs\" and \"outputs\" must be arrays of ", num_tensors, " handles, got NULL");
  const QuantizationConfig config = checked_config(quant_config, caller);
  for (size_t i = 0; i < num_tensors; ++i) quantize(inputs[i], outputs[i], config, caller);
}

/* output = input * scale_inv */
void nvte_dequantize(NVTETensor input, NVTETensor output, cudaStream_t stream) {
  if (recorded(nvte_dequantize, input, output, stream)) return;
  const Fp8Input x = fp8_input(input, "input");
  const View y = view(output, "output");
  expect_unscaled(output, "output");
  expect_same_shape(y, "output", x.rowwise, "input");
  pointwise(y.count(), [&](int64_t first, int64_t count) {
    Scratch run(count);
    to_float(run.data(), element(x.rowwise.data, first, x.rowwise.dtype), x.rowwise.dtype, count);
    rescale(run.data(), x.scale_inv, count);
    from_float(element(y.data, first, y.dtype), run.data(), y.dtype, count);
    return 0.0f;
  });
}

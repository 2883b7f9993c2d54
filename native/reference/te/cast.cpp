/* Quantization to dtypes that are no quantization at all: casts between Float32, Float16 and BFloat16. */
#include "te/config.h"
#include "te/pointwise.h"

namespace chagres::reference {

namespace {

/* A set noop tensor is one Float32; 1 makes the call do nothing. */
bool is_noop(NVTETensor noop, const Caller &caller) {
  if (noop == nullptr || !tensor(noop, "noop", caller).has(kNVTERowwiseData)) return false;
  const View flag = view(noop, "noop", {kNVTEFloat32}, caller);
  expect_count(flag, "noop", 1, caller);
  return *static_cast<const float *>(flag.data) == 1.0f;
}

void cast(NVTETensor input, NVTETensor output, NVTETensor noop, const Caller &caller) {
  const View x = view(input, "input", {}, caller);
  const View y = view(output, "output", {}, caller);
  expect_unscaled(input, "input", caller);
  expect_unscaled(output, "output", caller);
  if (tensor(output, "output", caller).has(kNVTEColumnwiseData)) {
    fail(caller, "Tensor \"output\" has columnwise data; the reference casts the rowwise data alone");
  }
  expect_same_shape(y, "output", x, "input", caller);
  if (is_noop(noop, caller)) return;
  pointwise(x.count(), output, "output", [&](int64_t first, int64_t count) {
    Scratch run(count);
    to_float(run.data(), element(x.data, first, x.dtype), x.dtype, count);
    from_float(element(y.data, first, y.dtype), run.data(), y.dtype, count);
    return largest_magnitude(run.data(), count);
  });
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

void nvte_quantize(NVTETensor input, NVTETensor output, cudaStream_t) { cast(input, output, nullptr, Caller::here()); }

void nvte_quantize_noop(NVTETensor input, NVTETensor output, NVTETensor noop, cudaStream_t) {
  tensor(noop, "noop");
  cast(input, output, noop, Caller::here());
}

void nvte_quantize_v2(NVTETensor input, NVTETensor output, NVTEQuantizationConfig quant_config, cudaStream_t) {
  const Caller caller = Caller::here();
  cast(input, output, checked_config(quant_config, caller).noop_tensor, caller);
}

void nvte_multi_tensor_quantize(const NVTETensor *inputs, NVTETensor *outputs, NVTEQuantizationConfig quant_config,
                                size_t num_tensors, cudaStream_t) {
  const Caller caller = Caller::here();
  CHAGRES_CHECK(num_tensors == 0 || (inputs != nullptr && outputs != nullptr),
                "Arguments \"inputs\" and \"outputs\" must be arrays of ", num_tensors, " handles, got NULL");
  const QuantizationConfig config = checked_config(quant_config, caller);
  for (size_t i = 0; i < num_tensors; ++i) cast(inputs[i], outputs[i], config.noop_tensor, caller);
}

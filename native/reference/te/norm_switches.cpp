/* Which implementation of norms Transformer Engine would call, and its limits. */
#include "te/norm_switches.h"

#include <atomic>
#include <cstdlib>

extern "C" size_t cudnnGetVersion(void);

namespace chagres::reference {

namespace {

constexpr size_t kAddingCudnn = 92100; /* 9.21.0 adds to dx in the same graph */

using Switch = std::atomic<bool>;

bool of_environment(const char *name) {
  const char *wanted = std::getenv(name);
  const std::string value = wanted == nullptr ? "" : wanted;
  CHAGRES_CHECK(value.empty() || value == "0" || value == "1", name, " must be 0 or 1, got \"", value, "\"");
  return value == "1";
}

Switch &cudnn_forward() {
  static Switch on{of_environment("NVTE_NORM_FWD_USE_CUDNN")};
  return on;
}

Switch &cudnn_backward() {
  static Switch on{of_environment("NVTE_NORM_BWD_USE_CUDNN")};
  return on;
}

Switch &zero_centered_gamma_in_weight_dtype() {
  static Switch on{of_environment("NVTE_ZERO_CENTERED_GAMMA_IN_WTYPE")};
  return on;
}

thread_local const NormSwitches *held = nullptr;

}  // namespace

NormSwitches norm_switches() {
  if (held != nullptr) return *held;
  return {cudnn_forward(), cudnn_backward(), zero_centered_gamma_in_weight_dtype()};
}

WithNormSwitches::WithNormSwitches(const NormSwitches &switches) : switches_(switches), outer_(held) { held = &switches_; }
WithNormSwitches::~WithNormSwitches() { held = outer_; }

GammaFactor gamma_factor(bool zero_centered, bool cudnn) {
  if (!zero_centered) return GammaFactor::Gamma;
  return cudnn && norm_switches().zero_centered_gamma_in_weight_dtype ? GammaFactor::OnePlusGammaRounded
                                                                       : GammaFactor::OnePlusGamma;
}

void check_switched_forward(const Quantized &z, const Caller &caller) {
  if (!norm_switches().cudnn_forward) return;
  const bool amax = z.tensor->record(kNVTEAmax).data_ptr != nullptr;
  if (is_fp8(z.rowwise.dtype) && !amax) {
    fail(caller, "Tensor \"z\" is FP8, so it must have an amax: cuDNN, which is enabled for norms, writes it");
  }
  if (!is_fp8(z.rowwise.dtype) && amax) {
    fail(caller, "Tensor \"z\" has an amax; cuDNN, which is enabled for norms, does not currently support amax output for "
                 "non quantized output");
  }
}

/* Transformer Engine describes dz to cuDNN in the type of x, and dx in that of gamma. */
void check_switched_backward(NVTEDType gamma, NVTEDType x, const Caller &caller) {
  if (gamma == x || !norm_switches().cudnn_backward) return;
  fail(caller, text("Unavailable kernel for this normalization: gamma ", dtype_name(gamma), ", x ", dtype_name(x),
                    "; they must have one dtype while cuDNN is enabled for norms"));
}

void check_switched_backward_add(const Caller &caller) {
  const NormSwitches switches = norm_switches();
  if (switches.cudnn_backward && cudnnGetVersion() < kAddingCudnn) {
    fail(caller, text("Fused BackwardAdd requires cuDNN >= 9.21.0, but found ", cudnnGetVersion()));
  }
  if (!switches.cudnn_backward && switches.zero_centered_gamma_in_weight_dtype) {
    fail(caller, "zero_centered_gamma_in_weight_dtype is currently not supported for rmsnorm_bwd_add with TE backend");
  }
}

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_enable_cudnn_norm_fwd(bool enable) { cudnn_forward() = enable; }

void nvte_enable_cudnn_norm_bwd(bool enable) { cudnn_backward() = enable; }

void nvte_enable_zero_centered_gamma_in_weight_dtype(bool enable) { zero_centered_gamma_in_weight_dtype() = enable; }

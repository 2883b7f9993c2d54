/*
 * Transformer Engine has two implementations of norms: kernels of its own and graphs of cuDNN. Switches of the process choose.
 *
 * Here both compute the same numbers, except that cuDNN's can round 1 + gamma to gamma's type, and cuDNN's refuse some
 * calls. A recorded call is repeated with the switches of the time when it was recorded, as a captured kernel is.
 */
#ifndef CHAGRES_NORM_SWITCHES_H
#define CHAGRES_NORM_SWITCHES_H

#include "te/recorded.h"
#include "te/quantized.h"

namespace chagres::reference {

struct NormSwitches {
  bool cudnn_forward, cudnn_backward, zero_centered_gamma_in_weight_dtype;
};

/* What holds for the call that this thread makes. */
NormSwitches norm_switches();

/* While this lives, these switches hold for this thread's calls. */
class WithNormSwitches {
 public:
  explicit WithNormSwitches(const NormSwitches &switches);
  ~WithNormSwitches();
  WithNormSwitches(const WithNormSwitches &) = delete;

 private:
  const NormSwitches switches_;
  const NormSwitches *const outer_;
};

template <class... Parameters>
void repeat_norm(void (*function)(Parameters...), NormSwitches switches, Parameters... arguments) {
  const WithNormSwitches held(switches);
  function(arguments...);
}

/* As `recorded`, with the switches. */
template <class... Parameters, class... Arguments>
bool norm_recorded(void (*function)(Parameters...), Arguments... arguments) {
  return captures_under_way != 0 && recorded(repeat_norm<Parameters...>, function, norm_switches(), arguments...);
}

/* What a column is multiplied by. */
enum class GammaFactor {
  Gamma,
  OnePlusGamma,
  OnePlusGammaRounded /* to gamma's type */
};
GammaFactor gamma_factor(bool zero_centered, bool cudnn);

/* What Transformer Engine refuses, or would compute from the wrong memory, as the switches are. */
void check_switched_forward(const Quantized &z, const Caller &caller);
void check_switched_backward(NVTEDType gamma, NVTEDType x, const Caller &caller);
void check_switched_backward_add(const Caller &caller);

}  // namespace chagres::reference

#endif /* CHAGRES_NORM_SWITCHES_H */

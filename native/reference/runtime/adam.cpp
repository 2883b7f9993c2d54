/*
 * Adam (Kingma and Ba 2015): m = b1 m + (1 - b1) g; v = b2 v + (1 - b2) g^2; u = (m / c1) / (sqrt(v / c2) + epsilon) with
 * ci = 1 - bi^step; p -= lr u. Decay is added to g, times p, or (Loshchilov and Hutter 2019) decoupled, to u.
 */
#include "runtime/adam.h"

#include <cmath>

#include "runtime/reference.h"

namespace chagres::reference {

void set_corrections(AdamStep &step, int number, bool bias_correction) {
  step.correction1 = step.correction2 = 1;
  if (bias_correction) {
    step.correction1 = static_cast<float>(1 - std::pow(static_cast<double>(step.beta1), number));
    step.correction2 = static_cast<float>(1 - std::pow(static_cast<double>(step.beta2), number));
  }
}

CHAGRES_CLONES void adam_run(float *g, float *p, float *m, float *v, const AdamStep &by, int64_t count) {
  const float coupled = by.decoupled ? 0.0f : by.decay, decoupled = by.decoupled ? by.decay : 0.0f;
  const AdamStep step = by;
  for (int64_t i = 0; i < count; ++i) {
    const float gradient = g[i] + coupled * p[i];
    m[i] = step.beta1 * m[i] + (1 - step.beta1) * gradient;
    v[i] = step.beta2 * v[i] + (1 - step.beta2) * gradient * gradient;
    const float denominator = std::sqrt(v[i] / step.correction2) + step.epsilon;
    const float update = (m[i] / step.correction1) / denominator + decoupled * p[i];
    p[i] = p[i] - step.lr * update;
  }
}

float join(uint16_t upper, int16_t remainder) {
  const auto undone = static_cast<uint16_t>(upper - (remainder < 0 ? 1 : 0));
  return bit_cast<float>(static_cast<uint32_t>(undone) << 16 | static_cast<uint16_t>(remainder));
}

void split(float value, uint16_t *upper, int16_t *remainder) {
  const uint32_t bits = bit_cast<uint32_t>(value);
  *remainder = static_cast<int16_t>(bits & 0xffffu);
  *upper = static_cast<uint16_t>((bits >> 16) + (*remainder < 0 ? 1 : 0));
}

}  // namespace chagres::reference

/* The scale for an amax, in recipes that compute it immediately. */
#ifndef CHAGRES_RECIPE_H
#define CHAGRES_RECIPE_H

#include <cmath>
#include <limits>

#include "runtime/fp8.h"

namespace chagres::reference {

struct ScaleRule {
  float largest;        /* that the scaled values may have */
  bool power_of_2;      /* the mantissa is cut off */
  float epsilon;        /* the least amax */
  float in_place_of_infinity;
};

/* largest / amax; 1 where amax is 0, infinite or NaN. */
inline float scale_of(float amax, const ScaleRule &rule) {
  if (amax < rule.epsilon) amax = rule.epsilon;
  if (std::isinf(amax) || std::isnan(amax) || amax == 0.0f) return 1.0f;
  float scale = rule.largest / amax;
  if (std::isinf(scale)) scale = rule.in_place_of_infinity;
  return rule.power_of_2 ? bit_cast<float>(bit_cast<uint32_t>(scale) & 0xff800000u) : scale;
}

}  // namespace chagres::reference

#endif /* CHAGRES_RECIPE_H */

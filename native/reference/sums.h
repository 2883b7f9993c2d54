/*
 * Sums over a run of floats in a fixed order: sixteen lanes, then the lanes one after another. The compiler may put the
 * lanes into vector registers without changing a bit.
 */
#ifndef CHAGRES_SUMS_H
#define CHAGRES_SUMS_H

#include "reference.h"

namespace chagres::reference {

/* Sum of term(0) .. term(count - 1). Inline, so that a CHAGRES_CLONES caller gets it in its own instruction set. */
template <class Term>
inline float lane_sum(int64_t count, Term &&term) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += term(i);
  float sum = 0;
  for (const float lane : lanes) sum += lane;
  return sum;
}

}  // namespace chagres::reference

#endif /* CHAGRES_SUMS_H */

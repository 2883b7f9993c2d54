/*
 * Sums over a run of floats in a fixed order: sixteen lanes, added up every 1024 elements so that rounding does not grow
 * with the length. The compiler may put the lanes into vector registers without changing a bit.
 */
#ifndef CHAGRES_SUMS_H
#define CHAGRES_SUMS_H

#include "runtime/reference.h"

namespace chagres::reference {

/* Sum of term(0) .. term(count - 1). Inline, so that a CHAGRES_CLONES caller gets it in its own instruction set. */
template <class Term>
inline float lane_sum(int64_t count, Term &&term) {
  constexpr int kLanes = 16;
  constexpr int64_t kBlock = 1024;
  float sum = 0;
  for (int64_t begin = 0; begin < count; begin += kBlock) {
    const int64_t end = count - begin < kBlock ? count : begin + kBlock;
    float lanes[kLanes] = {};
    int64_t i = begin;
    for (; i + kLanes <= end; i += kLanes) {
      for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
    }
    for (int lane = 0; i < end; ++i, ++lane) lanes[lane] += term(i);
    float block = 0;
    for (const float lane : lanes) block += lane;
    sum += block;
  }
  return sum;
}

/* The same in double precision, which needs no blocks. */
template <class Term>
inline double wide_lane_sum(int64_t count, Term &&term) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] += term(i + lane);
  }
  for (int lane = 0; i < count; ++i, ++lane) lanes[lane] += term(i);
  double sum = 0;
  for (const double lane : lanes) sum += lane;
  return sum;
}

}  // namespace chagres::reference

#endif /* CHAGRES_SUMS_H */

/* What a sum over many rows should be, and the size of its terms. */
#ifndef CHAGRES_TESTS_OPS_WANTED_SUM_H
#define CHAGRES_TESTS_OPS_WANTED_SUM_H

#include <cmath>

#include "harness/numbers.h"

namespace chagres::tests {

/* FP32 roundings of the sum of absolute terms: partial sums are short, and their errors have either sign. */
constexpr double kSumSlack = 8;

/* beta * old + sum, and the size of its terms. */
struct WantedSum {
  Doubles value, scale;

  WantedSum(const Doubles &old, float beta) {
    for (double number : old) {
      value.push_back(beta == 0 ? 0 : beta * number);
      scale.push_back(std::fabs(value.back()));
    }
  }
  void add(int64_t index, double term) {
    value[static_cast<size_t>(index)] += term;
    scale[static_cast<size_t>(index)] += std::fabs(term);
  }
};

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_WANTED_SUM_H */

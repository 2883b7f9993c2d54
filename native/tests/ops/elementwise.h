/* The element-wise operations, a row each: what the cases, the refusals, the times and native/tests/extremes go by. */
#ifndef CHAGRES_TESTS_OPS_ELEMENTWISE_H
#define CHAGRES_TESTS_OPS_ELEMENTWISE_H

#include <cmath>
#include <cstdint>
#include <vector>

#include "chagres/ops.h"

namespace chagres::tests {

using Unary = int(const void *x, void *y, int64_t count, int dtype, OpsStream stream);
using Binary = int(const void *x0, const void *x1, void *y, int64_t count, int dtype, OpsStream stream);
using UnaryAmax = int(const void *x, void *y, float *amax, int64_t count, int dtype, OpsStream stream);
using BinaryAmax = int(const void *x0, const void *x1, void *y, float *amax, int64_t count, int dtype, OpsStream stream);
using Ternary = int(const void *x0, const void *x1, const void *x2, void *y, int64_t count, int dtype, OpsStream stream);

struct Elementwise {
  const char *function;             /* a Unary, Binary or Ternary */
  std::vector<const char *> inputs; /* names of its arguments x, or x0, x1 and x2 */
  double (*formula)(const double *x);
  double slack; /* how many FP32 roundings a result may be off; 0: every bit is known */
  const char *result = "y"; /* name of the argument that is written */
  double (*magnitude)(const double *x) = nullptr; /* that the roundings are of; null: of the result */
  const char *amax = nullptr; /* the function that raises the amax, too: a UnaryAmax or BinaryAmax; null: none */
};

/* (1 + erf(x / sqrt 2)) / 2 and its derivative. */
inline double normal_distribution(double x) { return 0.5 * std::erfc(-x * std::sqrt(0.5)); }
inline double normal_density(double x) { return std::exp(-0.5 * x * x) * 0.39894228040143267794; }

inline const std::vector<Elementwise> &elementwise_operations() {
  static const std::vector<Elementwise> all = {
      {"ops_add", {"x", "residual"}, [](const double *x) -> double { return float(x[0]) + float(x[1]); }, 0},
      {"ops_subtract", {"x", "other"}, [](const double *x) -> double { return float(x[0]) - float(x[1]); }, 0},
      {"ops_multiply", {"x", "other"}, [](const double *x) -> double { return float(x[0]) * float(x[1]); }, 0},
      {"ops_sigmoid", {"x"}, [](const double *x) { return 1 / (1 + std::exp(-x[0])); }, 8},
      {"ops_sigmoid_backward",
       {"dy", "y"},
       [](const double *x) { return x[0] * x[1] * (1 - x[1]); },
       4,
       "dx",
       [](const double *x) { return std::fabs(x[0] * x[1]) * (1 + std::fabs(x[1])); }},
      {"ops_erf", {"x"}, [](const double *x) { return std::erf(x[0]); }, 8},
      {"ops_erf_backward",
       {"dy", "x"},
       [](const double *x) { return x[0] * 1.12837916709551257390 * std::exp(-x[1] * x[1]); },
       256, /* of the square, which may be 87 */
       "dx"},
      {"ops_squared_error",
       {"x", "target"},
       [](const double *x) { return (x[0] - x[1]) * (x[0] - x[1]); },
       4},
      {"ops_squared_error_backward",
       {"dy", "x", "target"},
       [](const double *x) { return x[0] * (2 * (x[1] - x[2])); },
       4,
       "dx"},
      {"ops_binary_cross_entropy",
       {"x", "target"},
       [](const double *x) {
         return (x[0] >= 0 ? x[0] * (1 - x[1]) : -x[0] * x[1]) + std::log1p(std::exp(-std::fabs(x[0])));
       },
       16,
       "y",
       [](const double *x) {
         return std::fabs(x[0]) * (1 + std::fabs(x[1])) + std::log1p(std::exp(-std::fabs(x[0])));
       }},
      {"ops_binary_cross_entropy_backward",
       {"dy", "x", "target"},
       [](const double *x) { return x[0] * (1 / (1 + std::exp(-x[1])) - x[2]); },
       16,
       "dx",
       [](const double *x) { return std::fabs(x[0]) * (1 / (1 + std::exp(-x[1])) + std::fabs(x[2])); }},
      {"ops_reciprocal", {"x"}, [](const double *x) -> double { return 1.0f / float(x[0]); }, 0},
      {"ops_gelu_erf", {"x"}, [](const double *x) { return x[0] * normal_distribution(x[0]); }, 64, "y", nullptr, "ops_gelu_erf_amax"},
      {"ops_gelu_erf_backward",
       {"dy", "x"},
       [](const double *x) { return x[0] * (normal_distribution(x[1]) + x[1] * normal_density(x[1])); },
       64,
       "dx",
       [](const double *x) {
         return std::fabs(x[0]) * (normal_distribution(x[1]) + std::fabs(x[1]) * normal_density(x[1]));
       },
       "ops_gelu_erf_backward_amax"},
      {"ops_tanh", {"x"}, [](const double *x) { return std::tanh(x[0]); }, 8},
      {"ops_tanh_backward",
       {"dy", "y"},
       [](const double *x) { return x[0] * (1 - x[1] * x[1]); },
       4,
       "dx",
       [](const double *x) { return std::fabs(x[0]) * (1 + x[1] * x[1]); }},
  };
  return all;
}

/* Calls such a function, whose address is `function`. */
inline int call_elementwise(void *function, const std::vector<const void *> &x, void *y, int64_t count, int dtype,
                            OpsStream stream) {
  if (x.size() == 1) return reinterpret_cast<Unary *>(function)(x[0], y, count, dtype, stream);
  if (x.size() == 2) return reinterpret_cast<Binary *>(function)(x[0], x[1], y, count, dtype, stream);
  return reinterpret_cast<Ternary *>(function)(x[0], x[1], x[2], y, count, dtype, stream);
}

inline int call_elementwise_amax(void *function, const std::vector<const void *> &x, void *y, float *amax, int64_t count,
                                 int dtype, OpsStream stream) {
  if (x.size() == 1) return reinterpret_cast<UnaryAmax *>(function)(x[0], y, amax, count, dtype, stream);
  return reinterpret_cast<BinaryAmax *>(function)(x[0], x[1], y, amax, count, dtype, stream);
}

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_ELEMENTWISE_H */

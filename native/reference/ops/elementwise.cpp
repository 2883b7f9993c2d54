/* Operations of which each result depends on one element of each input. */
#include "cuda/capture.h"
#include "../../ops/elementwise.h"

#include "ops/operations.h"
#include "runtime/elementary.h"

#include <cmath>
#include <vector>

using namespace chagres;
using namespace chagres::reference;

namespace {

/* x[k][i] is element i of input k; the results go to x[0]. */
using Formula = void(float (*x)[kBlock], int64_t count);

/* y = formula of the inputs, which were checked. */
int elementwise(std::initializer_list<ops::Elements> inputs, void *y, int64_t count, int dtype, Formula *formula) {
  const NVTEDType type = as_dtype(dtype);
  for_each_block(count, [&](int64_t first, int64_t length) {
    float x[ops::kMostInputs][kBlock];
    float(*next)[kBlock] = x;
    for (const ops::Elements &input : inputs) to_float(*next++, element(input.pointer, first, type), type, length);
    formula(x, length);
    from_float(element(y, first, type), x[0], type, length);
  });
  return OPS_SUCCESS;
}

/* The same, and raises *amax to the largest |y[i]|, for which NaN does not count. */
int elementwise_amax(std::initializer_list<ops::Elements> inputs, void *y, float *amax, int64_t count, int dtype,
                     Formula *formula) {
  elementwise(inputs, y, count, dtype, formula);
  std::vector<float> largest(static_cast<size_t>((count + kBlock - 1) / kBlock), 0);
  for_each_block(count, [&](int64_t first, int64_t length) {
    float stored[kBlock], found = 0;
    to_float(stored, element(y, first, as_dtype(dtype)), as_dtype(dtype), length);
    for (int64_t i = 0; i < length; ++i) found = std::fmax(found, std::fabs(stored[i]));
    largest[static_cast<size_t>(first / kBlock)] = found;
  });
  for (float found : largest) *amax = std::fmax(*amax, found);
  return OPS_SUCCESS;
}

CHAGRES_CLONES void add(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] += x[1][i];
}

CHAGRES_CLONES void subtract(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] -= x[1][i];
}

CHAGRES_CLONES void multiply(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] *= x[1][i];
}

CHAGRES_CLONES void sigmoid(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] = fast_sigmoid(x[0][i]);
}

CHAGRES_CLONES void sigmoid_backward(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] *= x[1][i] * (1.0f - x[1][i]);
}

void erf_of(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] = std::erf(x[0][i]);
}

CHAGRES_CLONES void erf_backward(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] *= 1.1283792f * fast_exp(-x[1][i] * x[1][i]);
}

CHAGRES_CLONES void squared_error(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] = (x[0][i] - x[1][i]) * (x[0][i] - x[1][i]);
}

CHAGRES_CLONES void squared_error_backward(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] *= 2.0f * (x[1][i] - x[2][i]);
}

void binary_cross_entropy(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float logit = x[0][i], target = x[1][i];
    x[0][i] = (logit >= 0 ? logit * (1.0f - target) : -logit * target) + std::log1p(std::exp(-std::fabs(logit)));
  }
}

CHAGRES_CLONES void binary_cross_entropy_backward(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] *= fast_sigmoid(x[1][i]) - x[2][i];
}

CHAGRES_CLONES void reciprocal(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] = 1.0f / x[0][i];
}

CHAGRES_CLONES void gelu_erf(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] *= normal_distribution(x[0][i]);
}

CHAGRES_CLONES void gelu_erf_backward(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float in = x[1][i];
    x[0][i] *= normal_distribution(in) + in * (0.39894228f * fast_exp(-0.5f * in * in));
  }
}

CHAGRES_CLONES void tanh_of(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] = fast_tanh(x[0][i]);
}

CHAGRES_CLONES void tanh_backward(float (*x)[kBlock], int64_t count) {
  for (int64_t i = 0; i < count; ++i) x[0][i] *= 1.0f - x[1][i] * x[1][i];
}

CHAGRES_CLONES void scale_add_floats(float *y, float beta, const float *x, int64_t count) {
  for (int64_t i = 0; i < count; ++i) y[i] = beta * y[i] + x[i];
}

}  // namespace

int ops_add(const void *x, const void *residual, void *y, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"x", x}, ops::Elements{"residual", residual}};
  const int status = ops::check_elementwise("ops_add", inputs, {"y", y}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_add, x, residual, y, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, y, count, dtype, add);
} OPS_CATCH

int ops_subtract(const void *x, const void *other, void *y, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"x", x}, ops::Elements{"other", other}};
  const int status = ops::check_elementwise("ops_subtract", inputs, {"y", y}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_subtract, x, other, y, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, y, count, dtype, subtract);
} OPS_CATCH

int ops_multiply(const void *x, const void *other, void *y, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"x", x}, ops::Elements{"other", other}};
  const int status = ops::check_elementwise("ops_multiply", inputs, {"y", y}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_multiply, x, other, y, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, y, count, dtype, multiply);
} OPS_CATCH

int ops_sigmoid(const void *x, void *y, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"x", x}};
  const int status = ops::check_elementwise("ops_sigmoid", inputs, {"y", y}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_sigmoid, x, y, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, y, count, dtype, sigmoid);
} OPS_CATCH

int ops_sigmoid_backward(const void *dy, const void *y, void *dx, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"dy", dy}, ops::Elements{"y", y}};
  const int status = ops::check_elementwise("ops_sigmoid_backward", inputs, {"dx", dx}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_sigmoid_backward, dy, y, dx, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, dx, count, dtype, sigmoid_backward);
} OPS_CATCH

int ops_erf(const void *x, void *y, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"x", x}};
  const int status = ops::check_elementwise("ops_erf", inputs, {"y", y}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_erf, x, y, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, y, count, dtype, erf_of);
} OPS_CATCH

int ops_erf_backward(const void *dy, const void *x, void *dx, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"dy", dy}, ops::Elements{"x", x}};
  const int status = ops::check_elementwise("ops_erf_backward", inputs, {"dx", dx}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_erf_backward, dy, x, dx, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, dx, count, dtype, erf_backward);
} OPS_CATCH

int ops_squared_error(const void *x, const void *target, void *y, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"x", x}, ops::Elements{"target", target}};
  const int status = ops::check_elementwise("ops_squared_error", inputs, {"y", y}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_squared_error, x, target, y, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, y, count, dtype, squared_error);
} OPS_CATCH

int ops_squared_error_backward(const void *dy, const void *x, const void *target, void *dx, int64_t count,
                               int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"dy", dy}, ops::Elements{"x", x}, ops::Elements{"target", target}};
  const int status = ops::check_elementwise("ops_squared_error_backward", inputs, {"dx", dx}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_squared_error_backward, dy, x, target, dx, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, dx, count, dtype, squared_error_backward);
} OPS_CATCH

int ops_binary_cross_entropy(const void *x, const void *target, void *y, int64_t count,
                             int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"x", x}, ops::Elements{"target", target}};
  const int status = ops::check_elementwise("ops_binary_cross_entropy", inputs, {"y", y}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_binary_cross_entropy, x, target, y, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, y, count, dtype, binary_cross_entropy);
} OPS_CATCH

int ops_binary_cross_entropy_backward(const void *dy, const void *x, const void *target, void *dx, int64_t count,
                                      int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"dy", dy}, ops::Elements{"x", x}, ops::Elements{"target", target}};
  const int status = ops::check_elementwise("ops_binary_cross_entropy_backward", inputs, {"dx", dx}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_binary_cross_entropy_backward, dy, x, target, dx, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, dx, count, dtype, binary_cross_entropy_backward);
} OPS_CATCH

int ops_reciprocal(const void *x, void *y, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"x", x}};
  const int status = ops::check_elementwise("ops_reciprocal", inputs, {"y", y}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_reciprocal, x, y, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, y, count, dtype, reciprocal);
} OPS_CATCH

int ops_gelu_erf(const void *x, void *y, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"x", x}};
  const int status = ops::check_elementwise("ops_gelu_erf", inputs, {"y", y}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_gelu_erf, x, y, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, y, count, dtype, gelu_erf);
} OPS_CATCH

int ops_gelu_erf_backward(const void *dy, const void *x, void *dx, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"dy", dy}, ops::Elements{"x", x}};
  const int status = ops::check_elementwise("ops_gelu_erf_backward", inputs, {"dx", dx}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_gelu_erf_backward, dy, x, dx, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, dx, count, dtype, gelu_erf_backward);
} OPS_CATCH

int ops_gelu_erf_amax(const void *x, void *y, float *amax, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"x", x}};
  const int status = ops::check_elementwise_amax("ops_gelu_erf_amax", inputs, {"y", y}, amax, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_gelu_erf_amax, x, y, amax, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise_amax(inputs, y, amax, count, dtype, gelu_erf);
} OPS_CATCH

int ops_gelu_erf_backward_amax(const void *dy, const void *x, void *dx, float *amax, int64_t count, int dtype,
                               OpsStream stream) try {
  const auto inputs = {ops::Elements{"dy", dy}, ops::Elements{"x", x}};
  const int status = ops::check_elementwise_amax("ops_gelu_erf_backward_amax", inputs, {"dx", dx}, amax, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_gelu_erf_backward_amax, dy, x, dx, amax, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise_amax(inputs, dx, amax, count, dtype, gelu_erf_backward);
} OPS_CATCH

int ops_tanh(const void *x, void *y, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"x", x}};
  const int status = ops::check_elementwise("ops_tanh", inputs, {"y", y}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_tanh, x, y, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, y, count, dtype, tanh_of);
} OPS_CATCH

int ops_tanh_backward(const void *dy, const void *y, void *dx, int64_t count, int dtype, OpsStream stream) try {
  const auto inputs = {ops::Elements{"dy", dy}, ops::Elements{"y", y}};
  const int status = ops::check_elementwise("ops_tanh_backward", inputs, {"dx", dx}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_tanh_backward, dy, y, dx, count, dtype, stream)) return OPS_SUCCESS;
  return elementwise(inputs, dx, count, dtype, tanh_backward);
} OPS_CATCH

int ops_accumulate(const void *x, float *y, float beta, int64_t count, int dtype, OpsStream stream) try {
  const int status = ops::check_accumulate(x, y, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_accumulate, x, y, beta, count, dtype, stream)) return OPS_SUCCESS;
  const NVTEDType type = as_dtype(dtype);
  for_each_block(count, [&](int64_t first, int64_t length) {
    float in[kBlock];
    to_float(in, element(x, first, type), type, length);
    if (beta == 0) std::copy(in, in + length, y + first);
    else scale_add_floats(y + first, beta, in, length);
  });
  return OPS_SUCCESS;
} OPS_CATCH

int ops_cast(const void *x, int x_dtype, void *y, int y_dtype, int64_t count, OpsStream stream) try {
  const int status = ops::check_cast(x, x_dtype, y, y_dtype, count);
  if (status != OPS_SUCCESS || count == 0) return status;
  if (recorded_by_value(ops_cast, x, x_dtype, y, y_dtype, count, stream)) return OPS_SUCCESS;
  const NVTEDType from = as_dtype(x_dtype), to = as_dtype(y_dtype);
  for_each_block(count, [&](int64_t first, int64_t length) {
    float values[kBlock];
    to_float(values, element(x, first, from), from, length);
    from_float(element(y, first, to), values, to, length);
  });
  return OPS_SUCCESS;
} OPS_CATCH

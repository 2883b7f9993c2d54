#include "elementwise.h"

#include <algorithm>

#include "kernel.h"

using namespace chagres::ops;

namespace {

/* The kernels of one line of elementwise.cu: in packs, and element by element. */
struct Kernels {
  Kernel packed[3];
  Kernel scalar[3];
};
#define KERNELS(name) \
  {FLOAT_KERNELS("elementwise.cu", name), FLOAT_KERNELS("elementwise.cu", name "_scalar")}

/* y = formula of the inputs, which were checked and are in the order of the formula's a and b; amax is the last argument of
 * kernels that take one. */
int launch_elements(const char *function, Kernels &kernels, std::initializer_list<Elements> inputs, void *y, float *amax,
                    int64_t count, int dtype, OpsStream stream) {
  const void *pointers[kMostInputs];
  void *arguments[kMostInputs + 3];
  size_t n = 0;
  bool fits = aligned(y);
  for (const Elements &input : inputs) {
    fits = fits && aligned(input.pointer);
    pointers[n] = input.pointer;
    arguments[n] = &pointers[n];
    ++n;
  }
  arguments[n] = &y;
  arguments[n + 1] = &count;
  arguments[n + 2] = &amax;
  Kernel &kernel = (fits ? kernels.packed : kernels.scalar)[float_index(dtype)];
  return launch_kernel(function, kernel, grid_for(fits ? count * size_of(dtype) / 16 : count), arguments, stream);
}

int elementwise(const char *function, Kernels &kernels, std::initializer_list<Elements> inputs, void *y, int64_t count,
                int dtype, OpsStream stream, const char *result = "y") {
  const int status = check_elementwise(function, inputs, {result, y}, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  return launch_elements(function, kernels, inputs, y, nullptr, count, dtype, stream);
}

#define CAST_KERNELS(name)                           \
  {FLOAT_KERNELS("elementwise.cu", name "_float32"), \
   FLOAT_KERNELS("elementwise.cu", name "_float16"), \
   FLOAT_KERNELS("elementwise.cu", name "_bfloat16")}

Kernel cast_packed[3][3] = CAST_KERNELS("cast"); /* [from][to] */
Kernel cast_scalar[3][3] = CAST_KERNELS("cast_scalar");
Kernels accumulate = KERNELS("accumulate");

}  // namespace

int ops_add(const void *x, const void *residual, void *y, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("add");
  return elementwise("ops_add", kernels, {{"x", x}, {"residual", residual}}, y, count, dtype, stream);
} OPS_CATCH

int ops_subtract(const void *x, const void *other, void *y, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("subtract");
  return elementwise("ops_subtract", kernels, {{"x", x}, {"other", other}}, y, count, dtype, stream);
} OPS_CATCH

int ops_multiply(const void *x, const void *other, void *y, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("multiply");
  return elementwise("ops_multiply", kernels, {{"x", x}, {"other", other}}, y, count, dtype, stream);
} OPS_CATCH

int ops_sigmoid(const void *x, void *y, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("sigmoid");
  return elementwise("ops_sigmoid", kernels, {{"x", x}}, y, count, dtype, stream);
} OPS_CATCH

int ops_sigmoid_backward(const void *dy, const void *y, void *dx, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("sigmoid_backward");
  return elementwise("ops_sigmoid_backward", kernels, {{"dy", dy}, {"y", y}}, dx, count, dtype, stream, "dx");
} OPS_CATCH

int ops_erf(const void *x, void *y, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("erf");
  return elementwise("ops_erf", kernels, {{"x", x}}, y, count, dtype, stream);
} OPS_CATCH

int ops_erf_backward(const void *dy, const void *x, void *dx, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("erf_backward");
  return elementwise("ops_erf_backward", kernels, {{"dy", dy}, {"x", x}}, dx, count, dtype, stream, "dx");
} OPS_CATCH

int ops_squared_error(const void *x, const void *target, void *y, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("squared_error");
  return elementwise("ops_squared_error", kernels, {{"x", x}, {"target", target}}, y, count, dtype, stream);
} OPS_CATCH

int ops_squared_error_backward(const void *dy, const void *x, const void *target, void *dx, int64_t count,
                               int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("squared_error_backward");
  return elementwise("ops_squared_error_backward", kernels, {{"dy", dy}, {"x", x}, {"target", target}}, dx,
                     count, dtype, stream, "dx");
} OPS_CATCH

int ops_binary_cross_entropy(const void *x, const void *target, void *y, int64_t count,
                             int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("binary_cross_entropy");
  return elementwise("ops_binary_cross_entropy", kernels, {{"x", x}, {"target", target}}, y, count, dtype, stream);
} OPS_CATCH

int ops_binary_cross_entropy_backward(const void *dy, const void *x, const void *target, void *dx, int64_t count,
                                      int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("binary_cross_entropy_backward");
  return elementwise("ops_binary_cross_entropy_backward", kernels, {{"dy", dy}, {"x", x}, {"target", target}}, dx,
                     count, dtype, stream, "dx");
} OPS_CATCH

int ops_reciprocal(const void *x, void *y, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("reciprocal");
  return elementwise("ops_reciprocal", kernels, {{"x", x}}, y, count, dtype, stream);
} OPS_CATCH

int ops_gelu_erf(const void *x, void *y, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("gelu_erf");
  return elementwise("ops_gelu_erf", kernels, {{"x", x}}, y, count, dtype, stream);
} OPS_CATCH

int ops_gelu_erf_backward(const void *dy, const void *x, void *dx, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("gelu_erf_backward");
  return elementwise("ops_gelu_erf_backward", kernels, {{"dy", dy}, {"x", x}}, dx, count, dtype, stream, "dx");
} OPS_CATCH

int ops_gelu_erf_amax(const void *x, void *y, float *amax, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("gelu_erf_amax");
  const auto inputs = {Elements{"x", x}};
  const int status = check_elementwise_amax("ops_gelu_erf_amax", inputs, {"y", y}, amax, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  return launch_elements("ops_gelu_erf_amax", kernels, inputs, y, amax, count, dtype, stream);
} OPS_CATCH

int ops_gelu_erf_backward_amax(const void *dy, const void *x, void *dx, float *amax, int64_t count, int dtype,
                               OpsStream stream) try {
  static Kernels kernels = KERNELS("gelu_erf_backward_amax");
  const auto inputs = {Elements{"dy", dy}, Elements{"x", x}};
  const int status = check_elementwise_amax("ops_gelu_erf_backward_amax", inputs, {"dx", dx}, amax, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  return launch_elements("ops_gelu_erf_backward_amax", kernels, inputs, dx, amax, count, dtype, stream);
} OPS_CATCH

int ops_tanh(const void *x, void *y, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("tanh");
  return elementwise("ops_tanh", kernels, {{"x", x}}, y, count, dtype, stream);
} OPS_CATCH

int ops_tanh_backward(const void *dy, const void *y, void *dx, int64_t count, int dtype, OpsStream stream) try {
  static Kernels kernels = KERNELS("tanh_backward");
  return elementwise("ops_tanh_backward", kernels, {{"dy", dy}, {"y", y}}, dx, count, dtype, stream, "dx");
} OPS_CATCH

int ops_cast(const void *x, int x_dtype, void *y, int y_dtype, int64_t count, OpsStream stream) try {
  const int status = check_cast(x, x_dtype, y, y_dtype, count);
  if (status != OPS_SUCCESS || count == 0) return status;
  const bool fits = aligned(x, y);
  Kernel &kernel = (fits ? cast_packed : cast_scalar)[float_index(x_dtype)][float_index(y_dtype)];
  const int64_t wider = std::max(size_of(x_dtype), size_of(y_dtype));
  return launch("ops_cast", kernel, grid_for(fits ? count * wider / 16 : count), stream, x, y, count);
} OPS_CATCH

int ops_accumulate(const void *x, float *y, float beta, int64_t count, int dtype, OpsStream stream) try {
  const int status = check_accumulate(x, y, count, dtype);
  if (status != OPS_SUCCESS || count == 0) return status;
  const bool fits = aligned(x, y);
  Kernel &kernel = (fits ? accumulate.packed : accumulate.scalar)[float_index(dtype)];
  return launch("ops_accumulate", kernel, grid_for(fits ? count / 4 : count), stream, x, y, beta, count);
} OPS_CATCH

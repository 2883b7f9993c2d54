/*
 * Activations f and their gradients: y = f(x); dx = dy f'(x). Gated: x = [a, b] by halves of the last dimension,
 * y = f(a) b; da = dy f'(a) b, db = dy f(a). Clamped SwiGLU bounds both halves and moves the second, with
 * c = min(a, limit): y = c sigmoid(alpha c) (min(max(b, -limit), limit) + offset). SiTU-GLU bounds them smoothly:
 * y = beta1 tanh(a / beta1) sigmoid(a) beta2 tanh(b / beta2).
 */
#include <algorithm>
#include <cmath>

#include "te/recorded.h"
#include "te/activation.h"
#include "te/cast_transpose.h"

namespace chagres::reference {

namespace {

CHAGRES_CLONES void multiply_run(float *values, const float *factors, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= factors[i];
}

void load_run(float *run, const View &view, int64_t first, int64_t count) {
  to_float(run, element(view.data, first, view.dtype), view.dtype, count);
}

View unscaled_view(NVTETensor handle, const char *argument, const Caller &caller) {
  const View result = view(handle, argument, {}, caller);
  expect_unscaled(handle, argument, caller);
  if (tensor(handle, argument, caller).has(kNVTEColumnwiseData)) {
    fail(caller, text("Tensor \"", argument, "\" has columnwise data, which only FP8 activations use"));
  }
  return result;
}

void forward(const Activation &activation, NVTETensor input, NVTETensor output, Caller caller = Caller::here()) {
  const View x = unscaled_view(input, "input", caller);
  const Quantized y = quantized_output(output, "output", caller);
  expect_same_shape(y.rowwise, "output", x, "input", caller);
  if (y.columnwise != nullptr) check_fused_shape(x, y.rowwise.dtype, Fusion::Activation, caller);
  finish(y, pointwise(x.count(), [&](int64_t first, int64_t count) {
           const FloatRun in(element(x.data, first, x.dtype), x.dtype, count);
           OutputRun out(y, first, count);
           activation.values(out.data(), in.data(), count);
           return store_run(y, first, out.data(), count);
         }));
}

void backward(const Activation &activation, NVTETensor grad, NVTETensor input, NVTETensor output,
              Caller caller = Caller::here()) {
  const View dy = unscaled_view(grad, "grad", caller);
  const View x = unscaled_view(input, "input", caller);
  const Quantized dx = quantized_output(output, "output", caller);
  expect_dtype(dy, "grad", x.dtype, caller);
  expect_same_shape(dy, "grad", x, "input", caller);
  expect_same_shape(dx.rowwise, "output", x, "input", caller);
  if (dx.columnwise != nullptr) check_fused_shape(x, dx.rowwise.dtype, Fusion::Gradient, caller);
  finish(dx, pointwise(x.count(), [&](int64_t first, int64_t count) {
           const FloatRun in(element(x.data, first, x.dtype), x.dtype, count);
           const FloatRun slope(element(dy.data, first, dy.dtype), dy.dtype, count);
           OutputRun out(dx, first, count);
           activation.gradients(out.data(), slope.data(), in.data(), count);
           return store_run(dx, first, out.data(), count);
         }));
}

/* Only FP8 outputs get a transpose from gated activations. */
Quantized gated_output(NVTETensor handle, const Caller &caller) {
  const Quantized result = quantized_output(handle, "output", caller);
  if (result.columnwise != nullptr && !is_fp8(result.rowwise.dtype)) {
    fail(caller, text("Tensor \"output\" has columnwise data of ", dtype_name(result.rowwise.dtype),
                      ", which gated activations write for FP8 alone"));
  }
  return result;
}

void check_gated(const View &input, const char *argument, const Caller &caller) {
  if (input.shape.ndim == 0 || input.columns % 2 != 0) {
    fail(caller, text("Tensor \"", argument, "\" must have an even last dimension, got ", shape_text(input.shape)));
  }
}

/* Calls row(i) for each i, which returns its row's largest magnitude. Returns the largest of all. */
template <class Row>
float by_rows(int64_t rows, int64_t columns, Row &&row) {
  const int64_t grain = grain_for(columns * 8);
  Scratch largest(rows / grain + 1);
  parallel_for(0, rows, grain, [&](int64_t first, int64_t last) {
    float piece = 0;
    for (int64_t i = first; i < last; ++i) piece = std::max(piece, row(i));
    largest[first / grain] = piece;
  });
  return largest_magnitude(largest.data(), (rows + grain - 1) / grain);
}

/* Of NaN the limit, as the GPU's fmin and fmax make it. */
inline float at_most(float x, float limit) { return x < limit ? x : limit; }
inline float at_least(float x, float limit) { return x > limit ? x : limit; }

CHAGRES_CLONES void clamped_swiglu_values(float *a, const float *b, float limit, float alpha, float offset,
                                          int64_t count) {
  for (int64_t i = 0; i < count; ++i)
    a[i] = swish(at_most(a[i], limit), alpha) * (at_most(at_least(b[i], -limit), limit) + offset);
}

CHAGRES_CLONES void clamped_swiglu_gradients(float *a, float *b, const float *dy, float limit, float alpha,
                                             float offset, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float gate = at_most(a[i], limit), linear = at_most(at_least(b[i], -limit), limit) + offset;
    const float slope = a[i] <= limit ? swish_slope(gate, alpha) : 0.0f;
    const float inside = b[i] <= limit && b[i] >= -limit ? 1.0f : 0.0f;
    /* Products with 0, not 0 itself: they have a sign, as on the GPU. */
    b[i] = slope * dy[i] * linear;
    a[i] = dy[i] * swish(gate, alpha) * inside;
  }
}

CHAGRES_CLONES void situ_values(float *a, const float *b, float beta1, float beta2, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    a[i] = beta1 * fast_tanh(a[i] / beta1) * fast_sigmoid(a[i]) * (beta2 * fast_tanh(b[i] / beta2));
  }
}

CHAGRES_CLONES void situ_gradients(float *a, float *b, const float *dy, float beta1, float beta2, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float t = fast_tanh(a[i] / beta1), s = fast_sigmoid(a[i]), u = fast_tanh(b[i] / beta2);
    b[i] = dy[i] * ((1.0f - t * t) * s + beta1 * t * s * (1.0f - s)) * (beta2 * u);
    a[i] = dy[i] * (beta1 * t * s) * (1.0f - u * u);
  }
}

struct SituGlu {
  float beta1, beta2;

  void values(float *a, float *b, int64_t count) const { situ_values(a, b, beta1, beta2, count); }
  void gradients(float *a, float *b, const float *dy, int64_t count) const {
    situ_gradients(a, b, dy, beta1, beta2, count);
  }
};

SituGlu situ_glu(float beta1, float beta2, Caller caller = Caller::here()) {
  if (!(std::isfinite(beta1) && beta1 > 0 && std::isfinite(beta2) && beta2 > 0)) {
    fail(caller, text("Arguments \"beta1\" and \"beta2\" must be finite and above 0, got ", beta1, " and ", beta2));
  }
  return {beta1, beta2};
}

template <class G>
void gated_forward(const G &gate, NVTETensor input, NVTETensor output, Caller caller = Caller::here()) {
  const View x = unscaled_view(input, "input", caller);
  const Quantized y = gated_output(output, caller);
  check_gated(x, "input", caller);
  const int64_t columns = x.columns / 2;
  expect_matrix(y.rowwise, "output", x.rows, columns, caller);
  finish(y, by_rows(x.rows, columns, [&](int64_t row) {
           Scratch a(columns), b(columns);
           load_run(a.data(), x, row * 2 * columns, columns);
           load_run(b.data(), x, row * 2 * columns + columns, columns);
           gate.values(a.data(), b.data(), columns);
           return store_run(y, row * columns, a.data(), columns);
         }));
}

template <class G>
void gated_backward(const G &gate, NVTETensor grad, NVTETensor input, NVTETensor output,
                    Caller caller = Caller::here()) {
  const View dy = unscaled_view(grad, "grad", caller);
  const View x = unscaled_view(input, "input", caller);
  const Quantized dx = gated_output(output, caller);
  check_gated(x, "input", caller);
  const int64_t columns = x.columns / 2;
  expect_dtype(dy, "grad", x.dtype, caller);
  expect_matrix(dy, "grad", x.rows, columns, caller);
  expect_matrix(dx.rowwise, "output", x.rows, 2 * columns, caller);
  finish(dx, by_rows(x.rows, columns, [&](int64_t row) {
           Scratch a(columns), b(columns), slope(columns);
           load_run(a.data(), x, row * 2 * columns, columns);
           load_run(b.data(), x, row * 2 * columns + columns, columns);
           load_run(slope.data(), dy, row * columns, columns);
           gate.gradients(a.data(), b.data(), slope.data(), columns);
           const float of_a = store_run(dx, row * 2 * columns, b.data(), columns);
           return std::max(of_a, store_run(dx, row * 2 * columns + columns, a.data(), columns));
         }));
}

}  // namespace

void Gate::values(float *a, const float *b, int64_t count) const {
  activation.values(a, a, count);
  multiply_run(a, b, count);
}

void Gate::gradients(float *a, float *b, const float *dy, int64_t count) const {
  multiply_run(b, dy, count);
  activation.gradients(b, b, a, count);
  activation.values(a, a, count);
  multiply_run(a, dy, count);
}

void ClampedSwiglu::values(float *a, const float *b, int64_t count) const {
  clamped_swiglu_values(a, b, limit, alpha, offset, count);
}

void ClampedSwiglu::gradients(float *a, float *b, const float *dy, int64_t count) const {
  clamped_swiglu_gradients(a, b, dy, limit, alpha, offset, count);
}

void gated_gradient(const Activation &activation, NVTETensor grad, NVTETensor input, NVTETensor output, Caller caller) {
  gated_backward(Gate{activation}, grad, input, output, caller);
}

}  // namespace chagres::reference

using namespace chagres::reference;

#define CHAGRES_UNARY(name, gradient, activation)                                                    \
  void name(NVTETensor input, NVTETensor output, cudaStream_t stream) {                              \
    if (!recorded(name, input, output, stream)) forward(activation, input, output);                  \
  }                                                                                                  \
  void gradient(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream) {         \
    if (!recorded(gradient, grad, input, output, stream)) backward(activation, grad, input, output); \
  }

#define CHAGRES_GATED(name, gradient, activation)                                               \
  void name(NVTETensor input, NVTETensor output, cudaStream_t stream) {                         \
    if (!recorded(name, input, output, stream)) gated_forward(Gate{activation}, input, output); \
  }                                                                                             \
  void gradient(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t stream) {    \
    if (recorded(gradient, grad, input, output, stream)) return;                                \
    gated_backward(Gate{activation}, grad, input, output);                                      \
  }

CHAGRES_UNARY(nvte_gelu, nvte_dgelu, kGelu)
CHAGRES_UNARY(nvte_silu, nvte_dsilu, kSilu)
CHAGRES_UNARY(nvte_relu, nvte_drelu, kRelu)
CHAGRES_UNARY(nvte_qgelu, nvte_dqgelu, kQgelu)
CHAGRES_UNARY(nvte_srelu, nvte_dsrelu, kSrelu)
CHAGRES_GATED(nvte_geglu, nvte_dgeglu, kGelu)
CHAGRES_GATED(nvte_swiglu, nvte_dswiglu, kSilu)
CHAGRES_GATED(nvte_reglu, nvte_dreglu, kRelu)
CHAGRES_GATED(nvte_qgeglu, nvte_dqgeglu, kQgelu)
CHAGRES_GATED(nvte_sreglu, nvte_dsreglu, kSrelu)
CHAGRES_GATED(nvte_glu, nvte_dglu, kSigmoid)

void nvte_clamped_swiglu(NVTETensor input, NVTETensor output, float limit, float alpha, cudaStream_t stream) {
  if (recorded(nvte_clamped_swiglu, input, output, limit, alpha, stream)) return;
  gated_forward(ClampedSwiglu{limit, alpha, 1.0f}, input, output);
}

void nvte_clamped_swiglu_v2(NVTETensor input, NVTETensor output, float limit, float alpha, float glu_linear_offset,
                            cudaStream_t stream) {
  if (recorded(nvte_clamped_swiglu_v2, input, output, limit, alpha, glu_linear_offset, stream)) return;
  gated_forward(ClampedSwiglu{limit, alpha, glu_linear_offset}, input, output);
}

void nvte_clamped_dswiglu(NVTETensor grad, NVTETensor input, NVTETensor output, float limit, float alpha,
                          cudaStream_t stream) {
  if (recorded(nvte_clamped_dswiglu, grad, input, output, limit, alpha, stream)) return;
  gated_backward(ClampedSwiglu{limit, alpha, 1.0f}, grad, input, output);
}

void nvte_clamped_dswiglu_v2(NVTETensor grad, NVTETensor input, NVTETensor output, float limit, float alpha,
                             float glu_linear_offset, cudaStream_t stream) {
  if (recorded(nvte_clamped_dswiglu_v2, grad, input, output, limit, alpha, glu_linear_offset, stream)) return;
  gated_backward(ClampedSwiglu{limit, alpha, glu_linear_offset}, grad, input, output);
}

void nvte_situglu(NVTETensor input, NVTETensor output, float beta1, float beta2, cudaStream_t stream) {
  if (recorded(nvte_situglu, input, output, beta1, beta2, stream)) return;
  gated_forward(situ_glu(beta1, beta2), input, output);
}

void nvte_dsituglu(NVTETensor grad, NVTETensor input, NVTETensor output, float beta1, float beta2,
                   cudaStream_t stream) {
  if (recorded(nvte_dsituglu, grad, input, output, beta1, beta2, stream)) return;
  gated_backward(situ_glu(beta1, beta2), grad, input, output);
}

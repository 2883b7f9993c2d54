/*
 * Activations f and their gradients: y = f(x); dx = dy f'(x). Gated: x = [a, b] by halves of the last dimension,
 * y = f(a) b; da = dy f'(a) b, db = dy f(a). Clamped SwiGLU bounds both halves and moves the second, with
 * c = min(a, limit): y = c sigmoid(alpha c) (min(max(b, -limit), limit) + offset).
 */
#include <algorithm>

#include "runtime/elementary.h"
#include "te/pointwise.h"

namespace chagres::reference {

namespace {

/* What an activation does to a run of floats. */
struct Activation {
  void (*values)(float *x, int64_t count);                    /* x = f(x) */
  void (*gradients)(float *dy, const float *x, int64_t count); /* dy = dy f'(x) */
};

/* Two plain functions an activation, since only those can be compiled for several instruction sets. */
#define CHAGRES_ACTIVATION(name, value, slope)                                    \
  CHAGRES_CLONES void name##_values(float *run, int64_t count) {                  \
    for (int64_t i = 0; i < count; ++i) {                                         \
      const float x = run[i];                                                     \
      run[i] = value;                                                             \
    }                                                                             \
  }                                                                               \
  CHAGRES_CLONES void name##_gradients(float *dy, const float *run, int64_t count) { \
    for (int64_t i = 0; i < count; ++i) {                                         \
      const float x = run[i];                                                     \
      dy[i] *= slope;                                                             \
    }                                                                             \
  }                                                                               \
  constexpr Activation name{&name##_values, &name##_gradients};

inline float sigmoid_slope(float x) {
  const float s = fast_sigmoid(x);
  return s * (1.0f - s);
}

/* x sigmoid(a x) and its derivative: SiLU with a = 1, QuickGELU with a = 1.702. */
inline float swish(float x, float a) { return x * fast_sigmoid(a * x); }
inline float swish_slope(float x, float a) { return a * x * sigmoid_slope(a * x) + fast_sigmoid(a * x); }

CHAGRES_ACTIVATION(kGelu, gelu(x), gelu_derivative(x))
CHAGRES_ACTIVATION(kSilu, swish(x, 1.0f), swish_slope(x, 1.0f))
CHAGRES_ACTIVATION(kRelu, (x > 0 ? x : 0.0f), (x > 0 ? 1.0f : 0.0f))
CHAGRES_ACTIVATION(kQgelu, swish(x, 1.702f), swish_slope(x, 1.702f))
CHAGRES_ACTIVATION(kSrelu, (x > 0 ? x * x : 0.0f), (x > 0 ? 2.0f * x : 0.0f))
CHAGRES_ACTIVATION(kSigmoid, fast_sigmoid(x), sigmoid_slope(x))

CHAGRES_CLONES void multiply_run(float *values, const float *factors, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= factors[i];
}

void load_run(float *run, const View &view, int64_t first, int64_t count) {
  to_float(run, element(view.data, first, view.dtype), view.dtype, count);
}

float store_run(const View &view, int64_t first, const float *run, int64_t count) {
  from_float(element(view.data, first, view.dtype), run, view.dtype, count);
  return largest_magnitude(run, count);
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
  const View y = unscaled_view(output, "output", caller);
  expect_same_shape(y, "output", x, "input", caller);
  pointwise(x.count(), output, "output", [&](int64_t first, int64_t count) {
    Scratch run(count);
    load_run(run.data(), x, first, count);
    activation.values(run.data(), count);
    return store_run(y, first, run.data(), count);
  });
}

void backward(const Activation &activation, NVTETensor grad, NVTETensor input, NVTETensor output,
              Caller caller = Caller::here()) {
  const View dy = unscaled_view(grad, "grad", caller);
  const View x = unscaled_view(input, "input", caller);
  const View dx = unscaled_view(output, "output", caller);
  expect_dtype(dy, "grad", x.dtype, caller);
  expect_same_shape(dy, "grad", x, "input", caller);
  expect_same_shape(dx, "output", x, "input", caller);
  pointwise(x.count(), output, "output", [&](int64_t first, int64_t count) {
    Scratch run(count), slope(count);
    load_run(run.data(), x, first, count);
    load_run(slope.data(), dy, first, count);
    activation.gradients(slope.data(), run.data(), count);
    return store_run(dx, first, slope.data(), count);
  });
}

void check_gated(const View &input, const char *argument, const Caller &caller) {
  if (input.shape.ndim == 0 || input.columns % 2 != 0) {
    fail(caller, text("Tensor \"", argument, "\" must have an even last dimension, got ", shape_text(input.shape)));
  }
}

/* Rows of `columns` elements, with the largest magnitude a row. */
template <class Row>
void by_rows(int64_t rows, int64_t columns, NVTETensor output, Caller caller, Row &&row) {
  const int64_t grain = grain_for(columns * 8);
  Scratch largest(rows / grain + 1);
  parallel_for(0, rows, grain, [&](int64_t first, int64_t last) {
    float piece = 0;
    for (int64_t i = first; i < last; ++i) piece = std::max(piece, row(i));
    largest[first / grain] = piece;
  });
  merge_amax(tensor(output, "output", caller), largest_magnitude(largest.data(), (rows + grain - 1) / grain));
}

/* y = f(a) b. */
struct Gate {
  const Activation &activation;

  /* a becomes y. */
  void values(float *a, float *b, int64_t count) const {
    activation.values(a, count);
    multiply_run(a, b, count);
  }

  /* b becomes da, a becomes db. */
  void gradients(float *a, float *b, const float *dy, int64_t count) const {
    multiply_run(b, dy, count);
    activation.gradients(b, a, count);
    activation.values(a, count);
    multiply_run(a, dy, count);
  }
};

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
    const float da = swish_slope(gate, alpha) * dy[i] * linear, db = dy[i] * swish(gate, alpha);
    const bool a_inside = a[i] <= limit, b_inside = b[i] <= limit && b[i] >= -limit;
    b[i] = a_inside ? da : 0.0f;
    a[i] = b_inside ? db : 0.0f;
  }
}

struct ClampedSwiglu {
  float limit, alpha, offset;

  void values(float *a, float *b, int64_t count) const {
    clamped_swiglu_values(a, b, limit, alpha, offset, count);
  }
  void gradients(float *a, float *b, const float *dy, int64_t count) const {
    clamped_swiglu_gradients(a, b, dy, limit, alpha, offset, count);
  }
};

template <class G>
void gated_forward(const G &gate, NVTETensor input, NVTETensor output, Caller caller = Caller::here()) {
  const View x = unscaled_view(input, "input", caller);
  const View y = unscaled_view(output, "output", caller);
  check_gated(x, "input", caller);
  const int64_t columns = x.columns / 2;
  expect_matrix(y, "output", x.rows, columns, caller);
  by_rows(x.rows, columns, output, caller, [&](int64_t row) {
    Scratch a(columns), b(columns);
    load_run(a.data(), x, row * 2 * columns, columns);
    load_run(b.data(), x, row * 2 * columns + columns, columns);
    gate.values(a.data(), b.data(), columns);
    return store_run(y, row * columns, a.data(), columns);
  });
}

template <class G>
void gated_backward(const G &gate, NVTETensor grad, NVTETensor input, NVTETensor output,
                    Caller caller = Caller::here()) {
  const View dy = unscaled_view(grad, "grad", caller);
  const View x = unscaled_view(input, "input", caller);
  const View dx = unscaled_view(output, "output", caller);
  check_gated(x, "input", caller);
  const int64_t columns = x.columns / 2;
  expect_dtype(dy, "grad", x.dtype, caller);
  expect_matrix(dy, "grad", x.rows, columns, caller);
  expect_matrix(dx, "output", x.rows, 2 * columns, caller);
  by_rows(x.rows, columns, output, caller, [&](int64_t row) {
    Scratch a(columns), b(columns), slope(columns);
    load_run(a.data(), x, row * 2 * columns, columns);
    load_run(b.data(), x, row * 2 * columns + columns, columns);
    load_run(slope.data(), dy, row * columns, columns);
    gate.gradients(a.data(), b.data(), slope.data(), columns);
    const float of_a = store_run(dx, row * 2 * columns, b.data(), columns);
    return std::max(of_a, store_run(dx, row * 2 * columns + columns, a.data(), columns));
  });
}

}  // namespace

CHAGRES_CLONES float largest_magnitude(const float *values, int64_t count) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane], magnitude = value < 0 ? -value : value;
      lanes[lane] = magnitude > lanes[lane] ? magnitude : lanes[lane];
    }
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    const float magnitude = values[i] < 0 ? -values[i] : values[i];
    lanes[lane] = magnitude > lanes[lane] ? magnitude : lanes[lane];
  }
  return *std::max_element(lanes, lanes + kLanes);
}

}  // namespace chagres::reference

using namespace chagres::reference;

#define CHAGRES_UNARY(name, gradient, activation)                                                      \
  void name(NVTETensor input, NVTETensor output, cudaStream_t) { forward(activation, input, output); } \
  void gradient(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t) {                  \
    backward(activation, grad, input, output);                                                         \
  }

#define CHAGRES_GATED(name, gradient, activation)                                                                  \
  void name(NVTETensor input, NVTETensor output, cudaStream_t) { gated_forward(Gate{activation}, input, output); } \
  void gradient(NVTETensor grad, NVTETensor input, NVTETensor output, cudaStream_t) {                              \
    gated_backward(Gate{activation}, grad, input, output);                                                         \
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

void nvte_clamped_swiglu(NVTETensor input, NVTETensor output, float limit, float alpha, cudaStream_t) {
  gated_forward(ClampedSwiglu{limit, alpha, 1.0f}, input, output);
}

void nvte_clamped_swiglu_v2(NVTETensor input, NVTETensor output, float limit, float alpha, float glu_linear_offset,
                            cudaStream_t) {
  gated_forward(ClampedSwiglu{limit, alpha, glu_linear_offset}, input, output);
}

void nvte_clamped_dswiglu(NVTETensor grad, NVTETensor input, NVTETensor output, float limit, float alpha,
                          cudaStream_t) {
  gated_backward(ClampedSwiglu{limit, alpha, 1.0f}, grad, input, output);
}

void nvte_clamped_dswiglu_v2(NVTETensor grad, NVTETensor input, NVTETensor output, float limit, float alpha,
                             float glu_linear_offset, cudaStream_t) {
  gated_backward(ClampedSwiglu{limit, alpha, glu_linear_offset}, grad, input, output);
}

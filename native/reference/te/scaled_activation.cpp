/*
 * Activations of rows that have a factor each, as routed tokens have: y = f(a, b) s, with s one of act_scales. Gated
 * rows are [a, b] by halves, or alternating segments of a and b. Backward: da = dy s df/da, db = dy s df/db, and the
 * factor's gradient is the sum of dy f(a, b) over the row.
 */
#include <cmath>

#include "te/recorded.h"
#include "runtime/sums.h"
#include "te/activation.h"
#include "te/quantized.h"

namespace chagres::reference {

namespace {

struct Parameters {
  float limit, alpha, offset; /* clamped SwiGLU */
  float beta1, beta2;         /* SiTU-GLU */
};

/* values: a becomes f(a, b). gradients: a becomes df/da, b becomes df/db, `value` f(a, b). Without a gate b is unused. */
struct Rule {
  bool gated;
  void (*values)(float *a, const float *b, const Parameters &p, int64_t count);
  void (*gradients)(float *a, float *b, float *value, const Parameters &p, int64_t count);
};

CHAGRES_CLONES void swiglu_values(float *a, const float *b, const Parameters &, int64_t count) {
  for (int64_t i = 0; i < count; ++i) a[i] = swish(a[i], 1.0f) * b[i];
}

CHAGRES_CLONES void swiglu_gradients(float *a, float *b, float *value, const Parameters &, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = a[i], activated = swish(x, 1.0f);
    value[i] = activated * b[i];
    a[i] = swish_slope(x, 1.0f) * b[i];
    b[i] = activated;
  }
}

/* Of NaN the limit, as the GPU's fmin and fmax make it. */
inline float bounded(float x, float limit) {
  const float above = x > -limit ? x : -limit;
  return above < limit ? above : limit;
}

CHAGRES_CLONES void clamped_values(float *a, const float *b, const Parameters &p, int64_t count) {
  const float limit = p.limit, alpha = p.alpha, offset = p.offset;
  for (int64_t i = 0; i < count; ++i) {
    const float gate = a[i] < limit ? a[i] : limit;
    a[i] = swish(gate, alpha) * (bounded(b[i], limit) + offset);
  }
}

CHAGRES_CLONES void clamped_gradients(float *a, float *b, float *value, const Parameters &p, int64_t count) {
  const float limit = p.limit, alpha = p.alpha, offset = p.offset;
  for (int64_t i = 0; i < count; ++i) {
    const float gate = a[i] < limit ? a[i] : limit, linear = bounded(b[i], limit) + offset;
    const float activated = swish(gate, alpha), slope = a[i] <= limit ? swish_slope(gate, alpha) : 0.0f;
    const bool outside = b[i] > limit || b[i] < -limit;
    value[i] = activated * linear;
    a[i] = slope * linear;
    b[i] = outside ? 0.0f : activated;
  }
}

CHAGRES_CLONES void situ_values(float *a, const float *b, const Parameters &p, int64_t count) {
  const float beta1 = p.beta1, beta2 = p.beta2;
  for (int64_t i = 0; i < count; ++i) {
    a[i] = beta1 * fast_tanh(a[i] / beta1) * fast_sigmoid(a[i]) * (beta2 * fast_tanh(b[i] / beta2));
  }
}

CHAGRES_CLONES void situ_gradients(float *a, float *b, float *value, const Parameters &p, int64_t count) {
  const float beta1 = p.beta1, beta2 = p.beta2;
  for (int64_t i = 0; i < count; ++i) {
    const float t = fast_tanh(a[i] / beta1), s = fast_sigmoid(a[i]), u = fast_tanh(b[i] / beta2);
    const float activated = beta1 * t * s, linear = beta2 * u;
    value[i] = activated * linear;
    a[i] = ((1.0f - t * t) * s + beta1 * t * s * (1.0f - s)) * linear;
    b[i] = activated * (1.0f - u * u);
  }
}

CHAGRES_CLONES void srelu_values(float *a, const float *, const Parameters &, int64_t count) {
  for (int64_t i = 0; i < count; ++i) a[i] = a[i] > 0 ? a[i] * a[i] : 0.0f;
}

CHAGRES_CLONES void srelu_gradients(float *a, float *, float *value, const Parameters &, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = a[i] > 0 ? a[i] : 0.0f;
    value[i] = x * x;
    a[i] = 2.0f * x;
  }
}

constexpr Rule kScaledSwiglu{true, &swiglu_values, &swiglu_gradients};
constexpr Rule kScaledClampedSwiglu{true, &clamped_values, &clamped_gradients};
constexpr Rule kScaledSituglu{true, &situ_values, &situ_gradients};
constexpr Rule kScaledSrelu{false, &srelu_values, &srelu_gradients};

CHAGRES_CLONES float dot(const float *a, const float *b, int64_t count) {
  return lane_sum(count, [&](int64_t i) { return a[i] * b[i]; });
}

CHAGRES_CLONES void multiply_all(float *values, const float *terms, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= terms[i] * factor;
}

/* ---- arguments ---- */

struct Layout {
  int64_t rows, hidden, segment;
};

Layout layout_of(const Rule &rule, const View &narrow, int64_t interleave, const Caller &caller) {
  if (!rule.gated || interleave == 0) return {narrow.rows, narrow.columns, narrow.columns};
  if (interleave < 0 || interleave % 32 != 0 || narrow.columns % interleave != 0) {
    fail(caller, text("Argument \"glu_interleave_size\" must be 0, or a multiple of 32 that divides the last dimension ",
                      narrow.columns, ", got ", interleave));
  }
  return {narrow.rows, narrow.columns, interleave};
}

/* The matrix that holds a, and b where there is a gate. */
void expect_wide(const View &view, const char *argument, const Rule &rule, const Layout &layout, const Caller &caller) {
  expect_matrix(view, argument, layout.rows, layout.hidden * (rule.gated ? 2 : 1), caller);
}

void load_run(float *run, const View &view, int64_t first, int64_t count) {
  to_float(run, element(view.data, first, view.dtype), view.dtype, count);
}

void store_values(const View &view, int64_t first, const float *run, int64_t count) {
  from_float(element(view.data, first, view.dtype), run, view.dtype, count);
}

/* Calls run(first element of a, of b, of the narrow matrix) for the segments of a row. */
template <class Run>
void for_segments(const Rule &rule, const Layout &layout, int64_t row, Run &&run) {
  const int64_t width = rule.gated ? 2 : 1;
  for (int64_t i = 0; i < layout.hidden; i += layout.segment) {
    const int64_t a = (row * layout.hidden + i) * width;
    run(a, a + layout.segment, row * layout.hidden + i);
  }
}

void forward(const Rule &rule, const Parameters &parameters, NVTETensor input, NVTETensor act_scales, NVTETensor output,
             int64_t interleave, Caller caller = Caller::here()) {
  const View y = view(output, "output", {}, caller), x = view(input, "input", {}, caller);
  const View scales = view(act_scales, "act_scales", {}, caller);
  const Layout layout = layout_of(rule, y, interleave, caller);
  expect_wide(x, "input", rule, layout, caller);
  expect_count(scales, "act_scales", layout.rows, caller);
  if (y.count() == 0) return;
  parallel_for(0, layout.rows, grain_for(layout.hidden * 8), [&](int64_t first, int64_t last) {
    Scratch a(layout.segment), b(layout.segment);
    for (int64_t row = first; row < last; ++row) {
      const float scale = load(scales.data, row, scales.dtype);
      for_segments(rule, layout, row, [&](int64_t a_first, int64_t b_first, int64_t y_first) {
        load_run(a.data(), x, a_first, layout.segment);
        if (rule.gated) load_run(b.data(), x, b_first, layout.segment);
        rule.values(a.data(), b.data(), parameters, layout.segment);
        rescale(a.data(), scale, layout.segment);
        store_values(y, y_first, a.data(), layout.segment);
      });
    }
  });
}

struct Gradients {
  NVTETensor grad, input, act_scales, grad_input, grad_act_scales; /* the last may be null */
  int64_t interleave;
};

void backward(const Rule &rule, const Parameters &parameters, const Gradients &call, Caller caller = Caller::here()) {
  const View dy = view(call.grad, "grad", {}, caller), x = view(call.input, "input", {}, caller);
  const View dx = view(call.grad_input, "grad_input", {}, caller);
  const View scales = view(call.act_scales, "act_scales", {}, caller);
  const Layout layout = layout_of(rule, dy, call.interleave, caller);
  expect_wide(x, "input", rule, layout, caller);
  expect_wide(dx, "grad_input", rule, layout, caller);
  expect_count(scales, "act_scales", layout.rows, caller);
  View dscales{};
  if (call.grad_act_scales != nullptr) {
    dscales = view(call.grad_act_scales, "grad_act_scales", {}, caller);
    expect_count(dscales, "grad_act_scales", layout.rows, caller);
  }
  if (dy.count() == 0) return;
  parallel_for(0, layout.rows, grain_for(layout.hidden * 8), [&](int64_t first, int64_t last) {
    Scratch a(layout.segment), b(layout.segment), value(layout.segment), slope(layout.segment);
    for (int64_t row = first; row < last; ++row) {
      const float scale = load(scales.data, row, scales.dtype);
      float sum = 0;
      for_segments(rule, layout, row, [&](int64_t a_first, int64_t b_first, int64_t y_first) {
        load_run(a.data(), x, a_first, layout.segment);
        if (rule.gated) load_run(b.data(), x, b_first, layout.segment);
        load_run(slope.data(), dy, y_first, layout.segment);
        rule.gradients(a.data(), b.data(), value.data(), parameters, layout.segment);
        sum += dot(slope.data(), value.data(), layout.segment);
        multiply_all(a.data(), slope.data(), scale, layout.segment);
        store_values(dx, a_first, a.data(), layout.segment);
        if (!rule.gated) return;
        multiply_all(b.data(), slope.data(), scale, layout.segment);
        store_values(dx, b_first, b.data(), layout.segment);
      });
      if (dscales.data != nullptr) store(dscales.data, row, dscales.dtype, sum);
    }
  });
}

Parameters soft_caps(float beta1, float beta2, Caller caller = Caller::here()) {
  if (!(std::isfinite(beta1) && beta1 > 0 && std::isfinite(beta2) && beta2 > 0)) {
    fail(caller, text("Arguments \"beta1\" and \"beta2\" must be finite and above 0, got ", beta1, " and ", beta2));
  }
  return {0, 0, 0, beta1, beta2};
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_scaled_swiglu(NVTETensor input, NVTETensor act_scales, NVTETensor output, int64_t glu_interleave_size,
                        cudaStream_t stream) {
  if (recorded(nvte_scaled_swiglu, input, act_scales, output, glu_interleave_size, stream)) return;
  forward(kScaledSwiglu, {}, input, act_scales, output, glu_interleave_size);
}

void nvte_scaled_dswiglu(NVTETensor grad, NVTETensor input, NVTETensor act_scales, NVTETensor grad_input,
                         NVTETensor grad_act_scales, int64_t glu_interleave_size, cudaStream_t stream) {
  if (recorded(nvte_scaled_dswiglu, grad, input, act_scales, grad_input, grad_act_scales, glu_interleave_size,
               stream)) return;
  backward(kScaledSwiglu, {}, {grad, input, act_scales, grad_input, grad_act_scales, glu_interleave_size});
}

void nvte_scaled_clamped_swiglu(NVTETensor input, NVTETensor act_scales, NVTETensor output, float limit, float alpha,
                                float glu_linear_offset, int64_t glu_interleave_size, cudaStream_t stream) {
  if (recorded(nvte_scaled_clamped_swiglu, input, act_scales, output, limit, alpha, glu_linear_offset,
               glu_interleave_size, stream)) return;
  forward(kScaledClampedSwiglu, {limit, alpha, glu_linear_offset, 0, 0}, input, act_scales, output, glu_interleave_size);
}

void nvte_scaled_clamped_dswiglu(NVTETensor grad, NVTETensor input, NVTETensor act_scales, NVTETensor grad_input,
                                 NVTETensor grad_act_scales, float limit, float alpha, float glu_linear_offset,
                                 int64_t glu_interleave_size, cudaStream_t stream) {
  if (recorded(nvte_scaled_clamped_dswiglu, grad, input, act_scales, grad_input, grad_act_scales, limit, alpha,
               glu_linear_offset, glu_interleave_size, stream)) return;
  backward(kScaledClampedSwiglu, {limit, alpha, glu_linear_offset, 0, 0},
           {grad, input, act_scales, grad_input, grad_act_scales, glu_interleave_size});
}

void nvte_scaled_situglu(NVTETensor input, NVTETensor act_scales, NVTETensor output, float beta1, float beta2,
                         int64_t glu_interleave_size, cudaStream_t stream) {
  if (recorded(nvte_scaled_situglu, input, act_scales, output, beta1, beta2, glu_interleave_size, stream)) return;
  forward(kScaledSituglu, soft_caps(beta1, beta2), input, act_scales, output, glu_interleave_size);
}

void nvte_scaled_dsituglu(NVTETensor grad, NVTETensor input, NVTETensor act_scales, NVTETensor grad_input,
                          NVTETensor grad_act_scales, float beta1, float beta2, int64_t glu_interleave_size,
                          cudaStream_t stream) {
  if (recorded(nvte_scaled_dsituglu, grad, input, act_scales, grad_input, grad_act_scales, beta1, beta2,
               glu_interleave_size, stream)) return;
  backward(kScaledSituglu, soft_caps(beta1, beta2),
           {grad, input, act_scales, grad_input, grad_act_scales, glu_interleave_size});
}

void nvte_scaled_srelu(NVTETensor input, NVTETensor act_scales, NVTETensor output, cudaStream_t stream) {
  if (recorded(nvte_scaled_srelu, input, act_scales, output, stream)) return;
  forward(kScaledSrelu, {}, input, act_scales, output, 0);
}

void nvte_scaled_dsrelu(NVTETensor grad, NVTETensor input, NVTETensor act_scales, NVTETensor grad_input,
                        NVTETensor grad_act_scales, cudaStream_t stream) {
  if (recorded(nvte_scaled_dsrelu, grad, input, act_scales, grad_input, grad_act_scales, stream)) return;
  backward(kScaledSrelu, {}, {grad, input, act_scales, grad_input, grad_act_scales, 0});
}

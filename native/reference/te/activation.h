/* The activations, as functions on runs of floats: shared by forward, backward and the casts that they are fused with. */
#ifndef CHAGRES_ACTIVATION_H
#define CHAGRES_ACTIVATION_H

#include "runtime/elementary.h"

namespace chagres::reference {

struct Activation {
  void (*values)(float *y, const float *x, int64_t count);                         /* y = f(x); y may be x */
  void (*gradients)(float *dx, const float *dy, const float *x, int64_t count); /* dx = dy f'(x); dx may be dy */
};

extern const Activation kGelu, kSilu, kRelu, kQgelu, kSrelu, kSigmoid;

inline float sigmoid_slope(float x) {
  const float s = fast_sigmoid(x);
  return s * (1.0f - s);
}

/* x sigmoid(a x) and its derivative: SiLU with a = 1, QuickGELU with a = 1.702. */
inline float swish(float x, float a) { return x * fast_sigmoid(a * x); }
inline float swish_slope(float x, float a) { return a * x * sigmoid_slope(a * x) + fast_sigmoid(a * x); }

/* y = f(a) b. */
struct Gate {
  const Activation &activation;

  void values(float *a, const float *b, int64_t count) const;                   /* a becomes y */
  void gradients(float *a, float *b, const float *dy, int64_t count) const; /* b becomes da, a becomes db */
};

/* y = c sigmoid(alpha c) (min(max(b, -limit), limit) + offset) with c = min(a, limit). */
struct ClampedSwiglu {
  float limit, alpha, offset;

  void values(float *a, const float *b, int64_t count) const;
  void gradients(float *a, float *b, const float *dy, int64_t count) const;
};

/* da = dy f'(a) b, db = dy f(a) for x = [a, b]; output = [da, db]. */
void gated_gradient(const Activation &activation, NVTETensor grad, NVTETensor input, NVTETensor output,
                    Caller caller = Caller::here());

}  // namespace chagres::reference

#endif /* CHAGRES_ACTIVATION_H */

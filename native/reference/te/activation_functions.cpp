/* The activations themselves. */
#include "te/activation.h"

namespace chagres::reference {

/* Two plain functions an activation, since only those can be compiled for several instruction sets. Elements are read
 * before they are written, in place too, so that loops need no test for overlap. */
#define CHAGRES_ACTIVATION(name, value, slope)                                                                 \
  static CHAGRES_CLONES void name##_values(float *y, const float *run, int64_t count) {                        \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) {                                                 \
      const float x = run[i];                                                                                  \
      y[i] = value;                                                                                            \
    }                                                                                                          \
  }                                                                                                            \
  static CHAGRES_CLONES void name##_gradients(float *dx, const float *dy, const float *run, int64_t count) {   \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < count; ++i) {                                                 \
      const float x = run[i];                                                                                  \
      dx[i] = dy[i] * slope;                                                                                   \
    }                                                                                                          \
  }                                                                                                            \
  const Activation name{&name##_values, &name##_gradients};

CHAGRES_ACTIVATION(kGelu, gelu(x), gelu_derivative(x))
CHAGRES_ACTIVATION(kSilu, swish(x, 1.0f), swish_slope(x, 1.0f))
CHAGRES_ACTIVATION(kRelu, (x > 0 ? x : 0.0f), (x > 0 ? 1.0f : 0.0f))
CHAGRES_ACTIVATION(kQgelu, swish(x, 1.702f), swish_slope(x, 1.702f))
CHAGRES_ACTIVATION(kSrelu, (x > 0 ? x * x : 0.0f), (x > 0 ? 2.0f * x : 0.0f))
CHAGRES_ACTIVATION(kSigmoid, fast_sigmoid(x), sigmoid_slope(x))

}  // namespace chagres::reference

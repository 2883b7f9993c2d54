/* Casts that write a matrix and its transpose in one call: what the functions that fuse more into them share. */
#ifndef CHAGRES_CAST_TRANSPOSE_H
#define CHAGRES_CAST_TRANSPOSE_H

#include "te/quantized.h"

namespace chagres::reference {

/* What is fused with the cast: the bias gradient, the activation or its gradient. */
enum class Fusion { Bias, Activation, Gradient, GradientAndBias };

/* Throws for shapes for which the GPU has no kernel: beside multiples of 32 by 32, rows and columns that its vectors
 * divide. */
void check_fused_shape(const View &input, NVTEDType output, Fusion fusion, const Caller &caller);

/* output = input, rounded to the output's dtype, or scaled and quantized to FP8. */
void cast(NVTETensor input, NVTETensor output, NVTETensor noop, const Caller &caller);

/* The same where output must have the transpose too. */
void cast_and_transpose(NVTETensor input, NVTETensor output, NVTETensor noop, const Caller &caller);

}  // namespace chagres::reference

#endif /* CHAGRES_CAST_TRANSPOSE_H */

/*
 * A matrix product with its epilogue, as gemm.cpp reads it from arguments and gemm_product.cpp computes it.
 *
 * In row-major terms D[n, m] = alpha op(B)[n, k] op(A)[k, m] + beta D, where op(A) is A[k, m] or the transpose of
 * A[m, k] (op T) and op(B) is B[n, k] or the transpose of B[k, n].
 */
#ifndef CHAGRES_GEMM_H
#define CHAGRES_GEMM_H

#include "te/block_scaling.h"
#include "te/quantized.h"

namespace chagres::reference {

/* Inverse scales of a block scaled matrix, one for 128 elements of a row (`square` false, at [column / 128, row]) or
 * for 128 x 128 elements (at [row / 128, column / 128]). */
struct BlockScales {
  const float *data; /* null: the matrix has none */
  int64_t stride;
  bool square;
  float at(int64_t row, int64_t column) const {
    return square ? data[row / kBlock * stride + column / kBlock] : data[column / kBlock * stride + row];
  }
};

/* A or B as it lies in memory. */
struct Factor {
  View matrix;
  Op op;
  float scale_inv; /* of the whole matrix */
  BlockScales blocks;
  int64_t outer, inner; /* m or n, and k */
};

enum class Side { A, B };

/* Picks rowwise or columnwise data, as Transformer Engine does on compute capability 9.0: FP8 products take A
 * transposed and B as it is, from the columnwise data where the flags say otherwise. */
Factor read_factor(NVTETensor handle, Side side, bool transposed, const Caller &caller);

struct Gemm {
  Factor a, b;
  View d;
  Quantized quantized; /* D where it is FP8, tensor null otherwise */
  float alpha, beta;
  int64_t m, n, k;
  bool gradient; /* epilogues of the backward pass */
  bool split_accumulator;
  bool with_bias, with_aux;
  View bias; /* m values added, or the gradient's destination */
  View aux;  /* n x m: GELU's input, written forward, read backward */

  bool fp8() const { return is_fp8(a.matrix.dtype); }
};

/* Throws for combinations of dtypes, scaling modes, shapes and epilogues for which the GPU has no FP8 product. */
void check_fp8_factors(const Gemm &gemm, NVTETensor a, NVTETensor b, const Caller &caller);
void check_fp8_epilogue(const Gemm &gemm, const Caller &caller);

/* D, and what the epilogue writes besides. */
void multiply(const Gemm &gemm);

/* The bias gradient of a weight-gradient product: op(B) summed over k, n values. */
void sum_b(const Gemm &gemm);

}  // namespace chagres::reference

#endif /* CHAGRES_GEMM_H */

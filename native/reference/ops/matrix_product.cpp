/* Operations: matrix products, by the code that answers nvte_cublas_gemm. There is one way to compute them, so that every
 * plan gives the same bits; the workspace is not looked at. */
#include "cuda/capture.h"
#include "../../ops/matrix_product_checks.h"
#include "te/gemm.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

NVTEDType as_dtype(int dtype) { return static_cast<NVTEDType>(dtype); }

View matrix(const void *data, int dtype, int64_t rows, int64_t columns) {
  return {const_cast<void *>(data), as_dtype(dtype), rows, columns,
          make_shape({static_cast<size_t>(rows), static_cast<size_t>(columns)})};
}

BlockScales blocks_of_factor(const float *scale_inverse, int scaling, int64_t rows, int64_t k) {
  if (scaling == ops::kOneScale) return {};
  const auto fours = [](int64_t count) { return (count + 3) / 4 * 4; };
  const bool square = scaling == ops::kSquareBlocks;
  return {scale_inverse, square ? fours(blocks_of(k)) : fours(rows), square};
}

/* rows: M of our a, N of our b. rows_first: it lies as [rows, K]. */
Factor factor(const void *data, int dtype, Op op, bool rows_first, int64_t rows, int64_t k, const float *scale_inverse,
              int scaling) {
  Factor result{};
  result.matrix = rows_first ? matrix(data, dtype, rows, k) : matrix(data, dtype, k, rows);
  result.op = op;
  result.scale_inv = ops::is_float8(dtype) && scaling == ops::kOneScale ? *scale_inverse : 1;
  if (ops::is_float8(dtype)) result.blocks = blocks_of_factor(scale_inverse, scaling, rows, k);
  result.outer = rows;
  result.inner = k;
  return result;
}

/* gemm.h names them as cuBLAS does, which is column-major: its A is our b. */
Gemm gemm_of(const OpsMatrixProduct &p) {
  Gemm gemm{};
  gemm.a = factor(p.b, p.b_dtype, p.trans_b != 0 ? Op::T : Op::N, p.trans_b != 0, p.n, p.k, p.b_scale_inverse, p.b_scaling);
  gemm.b = factor(p.a, p.a_dtype, p.trans_a != 0 ? Op::T : Op::N, p.trans_a == 0, p.m, p.k, p.a_scale_inverse, p.a_scaling);
  gemm.d = matrix(p.d, p.d_dtype, p.m, p.n);
  gemm.alpha = 1;
  gemm.beta = p.accumulate;
  gemm.m = p.n;
  gemm.n = p.m;
  gemm.k = p.k;
  gemm.split_accumulator = p.accumulator == OPS_ACCUMULATOR_SPLIT;
  gemm.gradient = p.epilogue == OPS_EPILOGUE_GELU_GRADIENT || p.epilogue == OPS_EPILOGUE_BIAS_GRADIENT;
  gemm.with_bias = ops::reads_bias(p);
  gemm.with_aux = ops::has_pre_gelu(p);
  if (ops::has_bias(p)) gemm.bias = matrix(p.bias, ops::bias_dtype(p), 1, ops::reads_bias(p) ? p.n : p.m);
  if (gemm.with_aux) gemm.aux = matrix(p.pre_gelu, p.d_dtype, p.m, p.n);
  return gemm;
}

}  // namespace

int ops_matrix_product(const OpsMatrixProduct *product, OpsStream stream) try {
  const int status = ops::check_matrix_product(product);
  if (status != OPS_SUCCESS || ops::is_empty(*product)) return status;
  if (recorded_problem("ops_matrix_product", product, stream, ops_matrix_product)) return OPS_SUCCESS;
  const Gemm gemm = gemm_of(*product);
  if (product->epilogue == OPS_EPILOGUE_BIAS_GRADIENT) sum_b(gemm);
  multiply(gemm);
  return OPS_SUCCESS;
} OPS_CATCH

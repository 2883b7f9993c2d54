/* What a product reads: which of a tensor's copies, in which direction, with which scales; and what FP8 allows. */
#include "te/gemm.h"

namespace chagres::reference {

namespace {

bool is_block_scaled(int mode) { return mode == NVTE_BLOCK_SCALING_1D || mode == NVTE_BLOCK_SCALING_2D; }

const char *name_of(Side side) { return side == Side::A ? "A" : "B"; }

/* Records that a product reads together. */
struct Copy {
  NVTETensorParam data, scale_inv;
  const char *usage;
};

constexpr Copy kRowwise{kNVTERowwiseData, kNVTERowwiseScaleInv, "row-wise"};
constexpr Copy kColumnwise{kNVTEColumnwiseData, kNVTEColumnwiseScaleInv, "column-wise"};

View flat(const NVTEBasicTensor &record) {
  View result{record.data_ptr, record.dtype, 1, 1, record.shape};
  for (size_t i = 0; i < record.shape.ndim; ++i) {
    (i + 1 == record.shape.ndim ? result.columns : result.rows) *= static_cast<int64_t>(record.shape.data[i]);
  }
  return result;
}

size_t padded(int64_t count) { return (static_cast<size_t>(count) + 3) / 4 * 4; }

/* [inner blocks, rows rounded up to 4], or [row blocks, inner blocks rounded up to 4]. */
BlockScales read_blocks(const Tensor &tensor, const Copy &copy, int64_t rows, int64_t columns, Side side,
                        const Caller &caller) {
  const NVTEBasicTensor &scales = tensor.record(copy.scale_inv);
  const bool square = tensor.scaling_mode == NVTE_BLOCK_SCALING_2D;
  const NVTEShape expected = square ? make_shape({static_cast<size_t>(blocks_of(rows)), padded(blocks_of(columns))})
                                    : make_shape({static_cast<size_t>(blocks_of(columns)), padded(rows)});
  if (scales.data_ptr == nullptr || scales.dtype != kNVTEFloat32 || !same_shape(scales.shape, expected)) {
    fail(caller, text("Tensor \"", name_of(side), "\" must have a ", copy.usage, " scale_inv of Float32 ",
                      shape_text(expected), " in scaling mode ", static_cast<int>(tensor.scaling_mode), ", got ",
                      dtype_name(scales.dtype), " ", shape_text(scales.shape),
                      scales.data_ptr == nullptr ? " without data" : ""));
  }
  return {static_cast<const float *>(scales.data_ptr), static_cast<int64_t>(expected.data[1]), square};
}

float read_scale(const Tensor &tensor, const Copy &copy, Side side, const Caller &caller) {
  const NVTEBasicTensor &scale = tensor.record(copy.scale_inv);
  if (scale.data_ptr == nullptr || scale.dtype != kNVTEFloat32 || element_count(scale.shape) != 1) {
    fail(caller, text("Tensor \"", name_of(side), "\" is FP8 and so must have a ", copy.usage,
                      " scale_inv of one Float32, got ", dtype_name(scale.dtype), " ", shape_text(scale.shape),
                      scale.data_ptr == nullptr ? " without data" : ""));
  }
  return *static_cast<const float *>(scale.data_ptr);
}

/* FP8 lies as [outer, inner], whatever the flags; `rows_outer` says that the rowwise data does. */
Factor read_fp8(const Tensor &tensor, Side side, bool rows_outer, const Caller &caller) {
  const Copy &copy = rows_outer ? kRowwise : kColumnwise;
  if (!tensor.has(copy.data)) {
    fail(caller, text("Input ", name_of(side), " is missing ", copy.usage,
                      " usage: FP8 products of compute capability 9.0 read the inner dimension along rows, here from the ",
                      copy.usage, " data"));
  }
  Factor factor{};
  factor.matrix = flat(tensor.record(copy.data));
  if (!rows_outer) { /* [last, leading dimensions] */
    const auto first = static_cast<int64_t>(factor.matrix.shape.ndim == 0 ? 1 : factor.matrix.shape.data[0]);
    const auto all = static_cast<int64_t>(element_count(factor.matrix.shape));
    factor.matrix.rows = first;
    factor.matrix.columns = first == 0 ? 0 : all / first;
  }
  if (!is_fp8(factor.matrix.dtype)) {
    fail(caller, text("Tensor \"", name_of(side), "\" must have ", copy.usage, " data of an FP8 dtype, got ",
                      dtype_name(factor.matrix.dtype)));
  }
  expect_data(factor.matrix, name_of(side), caller);
  factor.op = side == Side::A ? Op::T : Op::N;
  factor.outer = factor.matrix.rows;
  factor.inner = factor.matrix.columns;
  factor.scale_inv = 1;
  if (is_block_scaled(tensor.scaling_mode)) {
    factor.blocks = read_blocks(tensor, copy, factor.outer, factor.inner, side, caller);
  } else {
    factor.scale_inv = read_scale(tensor, copy, side, caller);
  }
  return factor;
}

}  // namespace

Factor read_factor(NVTETensor handle, Side side, bool transposed, const Caller &caller) {
  const Tensor &found = tensor(handle, name_of(side), caller);
  const int mode = found.scaling_mode;
  if (mode != NVTE_DELAYED_TENSOR_SCALING && !is_block_scaled(mode)) {
    fail(caller, text("Tensor \"", name_of(side), "\" has scaling mode ", mode,
                      ": MXFP8 and NVFP4 need compute capability 10.0, the reference computes as 9.0 does"));
  }
  const bool rows_outer = side == Side::A ? transposed : !transposed;
  const NVTEDType wanted = found.record(rows_outer ? kNVTERowwiseData : kNVTEColumnwiseData).dtype;
  if (is_block_scaled(mode) || is_fp8(found.dtype()) || is_fp8(wanted)) return read_fp8(found, side, rows_outer, caller);
  Factor factor{};
  factor.matrix = view(handle, name_of(side), {}, caller);
  factor.op = transposed ? Op::T : Op::N;
  factor.scale_inv = 1;
  factor.outer = rows_outer ? factor.matrix.rows : factor.matrix.columns;
  factor.inner = rows_outer ? factor.matrix.columns : factor.matrix.rows;
  return factor;
}

void check_fp8_factors(const Gemm &gemm, NVTETensor a, NVTETensor b, const Caller &caller) {
  const NVTEDType a_dtype = gemm.a.matrix.dtype, b_dtype = gemm.b.matrix.dtype;
  if (!is_fp8(a_dtype) || !is_fp8(b_dtype)) {
    fail(caller, text("Tensors \"A\" and \"B\" must both be FP8 or neither, got ", dtype_name(a_dtype), " and ",
                      dtype_name(b_dtype)));
  }
  if (a_dtype == kNVTEFloat8E5M2 && b_dtype == kNVTEFloat8E5M2) {
    fail(caller, "Tensors \"A\" and \"B\" are both Float8E5M2, for which cuBLAS has no product: one must be Float8E4M3");
  }
  const int a_mode = tensor(a, "A", caller).scaling_mode, b_mode = tensor(b, "B", caller).scaling_mode;
  if (is_block_scaled(a_mode) != is_block_scaled(b_mode)) {
    fail(caller, text("Inputs A and B to GEMM need to have compatible scaling modes, but got A.scaling_mode = ", a_mode,
                      ", B.scaling_mode = ", b_mode));
  }
  if (gemm.k % 16 != 0) {
    fail(caller, text("Leading dimension requirement for FP8 GEMM: the inner dimension must be a multiple of 16, got ",
                      gemm.k, ". Caller must pad."));
  }
  if (!is_block_scaled(a_mode)) return;
  if (a_mode == NVTE_BLOCK_SCALING_2D && b_mode == NVTE_BLOCK_SCALING_2D) {
    fail(caller, "Only 1D by 1D, 1D by 2D, and 2D by 1D block scaling GEMM is supported, but got 2D by 2D");
  }
  if (gemm.m % 8 != 0 || (b_mode == NVTE_BLOCK_SCALING_1D && gemm.n % 8 != 0)) {
    fail(caller, text("Outer dimension requirement for block scaling GEMM: m, and n where B is scaled in one dimension, "
                      "must be multiples of 8, got ", gemm.m, " and ", gemm.n, ". Caller must pad."));
  }
  if (!gemm.split_accumulator) {
    fail(caller, "Block scaling GEMM needs kNVTEMatmulConfigUseSplitAccumulator: cuBLAS has no fast accumulation for it");
  }
}

void check_fp8_epilogue(const Gemm &gemm, const Caller &caller) {
  const bool blocks = gemm.a.blocks.data != nullptr, fp8_output = gemm.quantized.tensor != nullptr;
  const NVTEDType d = gemm.d.dtype;
  const auto row_bytes = gemm.m * static_cast<int64_t>(element_size(d));
  if (row_bytes % 16 != 0) {
    fail(caller, text("Unable to find suitable cuBLAS GEMM algorithm: rows of \"D\" must be a multiple of 16 bytes, got m = ",
                      gemm.m, " of ", dtype_name(d), ", ", row_bytes, " bytes"));
  }
  if (gemm.gradient && gemm.with_bias) {
    fail(caller, "cuBLAS has no FP8 product with a bias gradient: take it from nvte_quantize_dbias");
  }
  if (blocks && gemm.with_aux && !gemm.gradient) {
    fail(caller, "Epilogue requested outside of the available and tested cuBLAS functionality for float8 block scaled GEMM: "
                 "it has none, bias, or dGELU");
  }
  if (fp8_output) {
    if (blocks) fail(caller, "Tensor \"D\" must be Float32, Float16 or BFloat16 for block scaling GEMM, got FP8");
    if (gemm.beta != 0) fail(caller, text("An FP8 \"D\" cannot be accumulated into: beta must be 0, got ", gemm.beta));
    if (gemm.with_aux && gemm.gradient) fail(caller, "cuBLAS has no FP8 product with dGELU and an FP8 \"D\"");
    if (gemm.quantized.columnwise != nullptr) {
      fail(caller, "Tensor \"D\" has columnwise data, which a product does not write: it writes rowwise data alone");
    }
    if (d == kNVTEFloat8E5M2 && gemm.a.matrix.dtype == gemm.b.matrix.dtype) {
      fail(caller, "Tensor \"D\" must be Float8E4M3 when A and B are, got Float8E5M2");
    }
  }
  if (!fp8_output && gemm.with_bias) {
    if (d == kNVTEFloat32 && gemm.with_aux) fail(caller, "cuBLAS has no FP8 product with bias, GELU and a Float32 \"D\"");
    expect_dtype(gemm.bias, "bias", d == kNVTEFloat16 ? kNVTEFloat16 : kNVTEBFloat16, caller);
  } else if (gemm.with_bias && gemm.bias.dtype == kNVTEFloat32) {
    fail(caller, "Tensor \"bias\" must have dtype BFloat16 or Float16 for an FP8 \"D\", got Float32");
  }
  if (gemm.with_aux) {
    const NVTEDType aux = !fp8_output ? d : gemm.with_bias ? gemm.bias.dtype : kNVTEBFloat16;
    expect_dtype(gemm.aux, "epilogue_aux", aux, caller);
  }
}

}  // namespace chagres::reference

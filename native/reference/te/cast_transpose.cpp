/*
 * Casts that write a matrix and its transpose, alone or with more fused into them: z = dy f'(x), or z = dy without an
 * activation; output = z, its transpose too, and dbias = the sum of z over rows.
 */
#include "te/recorded.h"
#include "te/cast_transpose.h"

#include <algorithm>

#include "te/activation.h"

namespace chagres::reference {

void check_fused_shape(const View &input, NVTEDType output, Fusion fusion, const Caller &caller) {
  if (input.rows % 32 == 0 && input.columns % 32 == 0) return;
  const bool gradient = fusion == Fusion::Gradient || fusion == Fusion::GradientAndBias;
  const bool bias = fusion == Fusion::Bias || fusion == Fusion::GradientAndBias;
  const int64_t bytes = gradient ? 4 : 8; /* a thread loads and stores so many at once */
  const auto input_size = static_cast<int64_t>(element_size(input.dtype));
  const int64_t row_multiple = bytes / static_cast<int64_t>(element_size(output));
  const int64_t column_multiple = std::max(bytes / input_size, bias ? 8 / input_size : int64_t{1});
  if (input.rows % row_multiple != 0 || input.columns % column_multiple != 0) {
    fail(caller, text("Unsupported shape: rows must be a multiple of ", row_multiple, " and columns of ", column_multiple,
                      " for ", dtype_name(input.dtype), " to ", dtype_name(output), ", or both of 32; got ", input.rows,
                      " x ", input.columns));
  }
}

void cast_and_transpose(NVTETensor input, NVTETensor output, NVTETensor noop, const Caller &caller) {
  const Quantized y = quantized_output(output, "output", caller);
  if (y.columnwise == nullptr && y.rowwise.count() != 0) {
    fail(caller, "Tensor \"output\" must have rowwise and columnwise data, got rowwise data alone");
  }
  cast(input, output, noop, caller);
}

namespace {

CHAGRES_CLONES void add_run(float *sum, const float *terms, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum[i] += terms[i];
}

struct Fused {
  const Activation *activation; /* null: none */
  NVTETensor input, act_input, output, dbias, workspace;
};

/* Rows whose bias gradients one row of the workspace collects. */
int64_t rows_per_sum(bool gradient) { return gradient ? 128 : 256; }

/* True for the query, which leaves the shape that the workspace needs. Any that is as large will do. */
bool sums_query(NVTETensor workspace, int64_t rows, int64_t columns, const Caller &caller) {
  NVTEBasicTensor &data = tensor(workspace, "workspace", caller).records[kNVTERowwiseData];
  const NVTEShape needed = make_shape({static_cast<size_t>(rows), static_cast<size_t>(columns)});
  if (data.data_ptr == nullptr) {
    data.shape = needed;
    data.dtype = kNVTEFloat32;
    return true;
  }
  if (element_count(data.shape) * element_bits(data.dtype) / 8 < element_count(needed) * sizeof(float)) {
    fail(caller, text("Tensor \"workspace\" must have the bytes of Float32 ", shape_text(needed),
                      ", as the call with an unset workspace answers; got ", dtype_name(data.dtype), " ",
                      shape_text(data.shape)));
  }
  return false;
}

void check_bias(const View &dbias, const View &x, const Caller &caller) {
  expect_dtype(dbias, "dbias", x.dtype, caller);
  expect_shape(dbias, "dbias", {static_cast<size_t>(x.columns)}, caller);
}

/* Sums of blocks of rows lie in `sums`; their sum goes to `dbias`. */
void store_bias(float *sums, int64_t blocks, const View &dbias) {
  const int64_t columns = dbias.count();
  for (int64_t block = 1; block < blocks; ++block) add_run(sums, sums + block * columns, columns);
  from_float(dbias.data, sums, dbias.dtype, columns);
}

/* Rows first .. last - 1: stored, and summed into `sum`. The largest magnitude. */
float quantize_rows(const Fused &fused, const View &x, const View &act, const Quantized &y, float *sum, int64_t first,
                    int64_t last) {
  const int64_t columns = x.columns;
  Scratch run(columns), point(columns);
  std::fill(sum, sum + columns, 0.0f);
  float largest = 0;
  for (int64_t row = first; row < last; ++row) {
    to_float(run.data(), element(x.data, row * columns, x.dtype), x.dtype, columns);
    if (fused.activation != nullptr) {
      to_float(point.data(), element(act.data, row * columns, act.dtype), act.dtype, columns);
      fused.activation->gradients(run.data(), run.data(), point.data(), columns);
    }
    add_run(sum, run.data(), columns);
    largest = std::max(largest, store_run(y, row * columns, run.data(), columns));
  }
  return largest;
}

void run_fused(const Fused &fused, const Caller &caller) {
  const View x = described(fused.input, "input", {}, caller);
  const Quantized y = described_quantized(fused.output, "output", caller);
  if (!y.tensor->has(kNVTEColumnwiseData)) {
    fail(caller, "Tensor \"output\" has no columnwise data: a bias gradient with rowwise data alone is not implemented on "
                 "GPUs of compute capability below 10.0");
  }
  expect_same_shape(y.rowwise, "output", x, "input", caller);
  const View dbias = described(fused.dbias, "dbias", {}, caller);
  check_bias(dbias, x, caller);
  View act{};
  if (fused.activation != nullptr) {
    act = described(fused.act_input, "act_input", {}, caller);
    expect_dtype(act, "act_input", x.dtype, caller);
    expect_same_shape(act, "act_input", x, "input", caller);
  }
  const bool gradient = fused.activation != nullptr;
  check_fused_shape(x, y.rowwise.dtype, gradient ? Fusion::GradientAndBias : Fusion::Bias, caller);
  const int64_t block = rows_per_sum(gradient), blocks = (x.rows + block - 1) / block;
  if (sums_query(fused.workspace, blocks, x.columns, caller)) return;

  expect_unscaled(fused.input, "input", caller);
  expect_data(x, "input", caller);
  expect_data(y, "output", caller);
  expect_data(dbias, "dbias", caller);
  if (gradient) {
    expect_unscaled(fused.act_input, "act_input", caller);
    expect_data(act, "act_input", caller);
  }
  if (x.count() == 0) fail(caller, text("Tensor \"input\" must have elements, got ", shape_text(x.shape)));
  auto *sums = static_cast<float *>(tensor(fused.workspace, "workspace", caller).data().data_ptr);
  Scratch largest(blocks);
  parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      largest[i] = quantize_rows(fused, x, act, y, sums + i * x.columns, i * block, std::min((i + 1) * block, x.rows));
    }
  });
  store_bias(sums, blocks, dbias);
  finish(y, largest_magnitude(largest.data(), blocks));
}

/* [da, db] of a gated activation, with its transpose; two dimensions only. */
void run_gated(const Activation &activation, NVTETensor grad, NVTETensor input, NVTETensor output,
               Caller caller = Caller::here()) {
  const View dy = view(grad, "input", {}, caller);
  const View x = view(input, "gated_act_input", {}, caller);
  const Quantized dx = quantized_output(output, "output", caller);
  for (const auto &[matrix, argument] : {std::make_pair(&dy, "input"), std::make_pair(&x, "gated_act_input")}) {
    if (matrix->shape.ndim != 2) {
      fail(caller, text("Tensor \"", argument, "\" must have two dimensions, got ", shape_text(matrix->shape)));
    }
  }
  if (dx.columnwise == nullptr) {
    fail(caller, "Tensor \"output\" must have rowwise and columnwise data, got rowwise data alone");
  }
  const auto row_multiple = 4 / static_cast<int64_t>(element_size(dx.rowwise.dtype));
  const auto column_multiple = 4 / static_cast<int64_t>(element_size(dy.dtype));
  if (dy.rows % row_multiple != 0 || dy.columns % column_multiple != 0) {
    fail(caller, text("Unsupported shape: rows of \"input\" must be a multiple of ", row_multiple, " and columns of ",
                      column_multiple, ", got ", dy.rows, " x ", dy.columns));
  }
  gated_gradient(activation, grad, input, output, caller);
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_cast_transpose(NVTETensor input, NVTETensor output, cudaStream_t stream) {
  if (recorded(nvte_cast_transpose, input, output, stream)) return;
  cast_and_transpose(input, output, nullptr, Caller::here());
}

void nvte_cast_transpose_with_noop(NVTETensor input, NVTETensor noop, NVTETensor output, cudaStream_t stream) {
  if (recorded(nvte_cast_transpose_with_noop, input, noop, output, stream)) return;
  tensor(noop, "noop");
  cast_and_transpose(input, output, noop, Caller::here());
}

void nvte_multi_cast_transpose(size_t num_tensors, const NVTETensor *input_list, NVTETensor *output_list, cudaStream_t stream) {
  if (recorded(nvte_multi_cast_transpose, num_tensors, list(input_list, num_tensors), list(output_list, num_tensors),
               stream)) return;
  const Caller caller = Caller::here();
  CHAGRES_CHECK(num_tensors == 0 || (input_list != nullptr && output_list != nullptr),
                "Arguments \"input_list\" and \"output_list\" must be arrays of ", num_tensors, " handles, got NULL");
  for (size_t i = 0; i < num_tensors; ++i) {
    const View x = view(input_list[i], "input"), y = quantized_output(output_list[i], "output").rowwise;
    CHAGRES_CHECK(x.shape.ndim == 2, "Tensor ", i, " of \"input_list\" must have two dimensions, got ",
                  shape_text(x.shape));
    expect_dtype(x, "input", tensor(input_list[0], "input").dtype());
    expect_dtype(y, "output", tensor(output_list[0], "output").dtype());
  }
  for (size_t i = 0; i < num_tensors; ++i) cast_and_transpose(input_list[i], output_list[i], nullptr, caller);
}

void nvte_quantize_dbias(NVTETensor input, NVTETensor output, NVTETensor dbias, NVTETensor workspace, cudaStream_t stream) {
  if (!asks(workspace) && recorded(nvte_quantize_dbias, input, output, dbias, workspace, stream)) return;
  run_fused({nullptr, input, nullptr, output, dbias, workspace}, Caller::here());
}

void nvte_cast_transpose_dbias(NVTETensor input, NVTETensor output, NVTETensor dbias, NVTETensor workspace,
                               cudaStream_t stream) {
  if (!asks(workspace) && recorded(nvte_cast_transpose_dbias, input, output, dbias, workspace, stream)) return;
  run_fused({nullptr, input, nullptr, output, dbias, workspace}, Caller::here());
}

#define CHAGRES_FUSED(name, activation)                                                                        \
  void name(NVTETensor input, NVTETensor act_input, NVTETensor output, NVTETensor dbias, NVTETensor workspace, \
            cudaStream_t stream) {                                                                             \
    if (!asks(workspace) && recorded(name, input, act_input, output, dbias, workspace, stream)) return;        \
    run_fused({&activation, input, act_input, output, dbias, workspace}, Caller::here());                      \
  }

CHAGRES_FUSED(nvte_quantize_dbias_dgelu, kGelu)
CHAGRES_FUSED(nvte_quantize_dbias_dsilu, kSilu)
CHAGRES_FUSED(nvte_quantize_dbias_drelu, kRelu)
CHAGRES_FUSED(nvte_quantize_dbias_dqgelu, kQgelu)
CHAGRES_FUSED(nvte_quantize_dbias_dsrelu, kSrelu)
CHAGRES_FUSED(nvte_cast_transpose_dbias_dgelu, kGelu)
CHAGRES_FUSED(nvte_cast_transpose_dbias_dsilu, kSilu)
CHAGRES_FUSED(nvte_cast_transpose_dbias_drelu, kRelu)
CHAGRES_FUSED(nvte_cast_transpose_dbias_dqgelu, kQgelu)
CHAGRES_FUSED(nvte_cast_transpose_dbias_dsrelu, kSrelu)

#define CHAGRES_GATED_CAST_TRANSPOSE(name, activation)                                              \
  void name(NVTETensor input, NVTETensor gated_act_input, NVTETensor output, cudaStream_t stream) { \
    if (recorded(name, input, gated_act_input, output, stream)) return;                             \
    run_gated(activation, input, gated_act_input, output);                                          \
  }

CHAGRES_GATED_CAST_TRANSPOSE(nvte_dgeglu_cast_transpose, kGelu)
CHAGRES_GATED_CAST_TRANSPOSE(nvte_dswiglu_cast_transpose, kSilu)
CHAGRES_GATED_CAST_TRANSPOSE(nvte_dreglu_cast_transpose, kRelu)
CHAGRES_GATED_CAST_TRANSPOSE(nvte_dqgeglu_cast_transpose, kQgelu)
CHAGRES_GATED_CAST_TRANSPOSE(nvte_dsreglu_cast_transpose, kSrelu)

/* On raw FP8: the transpose, and the sums over rows times scale_inv. */
void nvte_fp8_transpose_dbias(NVTETensor input, NVTETensor transposed_output, NVTETensor dbias, NVTETensor workspace,
                              cudaStream_t stream) {
  if (!asks(workspace) && recorded(nvte_fp8_transpose_dbias, input, transposed_output, dbias, workspace,
                                   stream)) return;
  const Caller caller = Caller::here();
  const Fp8Input x = fp8_input(input, "input");
  CHAGRES_CHECK(x.rowwise.shape.ndim == 2, "Tensor \"input\" must have two dimensions, got ", shape_text(x.rowwise.shape));
  const Fp8Input y = fp8_input(transposed_output, "transposed_output");
  expect_dtype(y.rowwise, "transposed_output", x.rowwise.dtype);
  expect_shape(y.rowwise, "transposed_output", {x.rowwise.shape.data[1], x.rowwise.shape.data[0]});
  const View bias = view(dbias, "dbias");
  expect_shape(bias, "dbias", {x.rowwise.shape.data[1]});
  const int64_t rows = x.rowwise.rows, columns = x.rowwise.columns;
  CHAGRES_CHECK(rows % 8 == 0 && columns % 8 == 0, "Unsupported shape: rows and columns must be multiples of 8, got ",
                rows, " x ", columns);
  const int64_t block = rows_per_sum(false), blocks = (rows + block - 1) / block;
  if (sums_query(workspace, blocks, columns, caller)) return;
  CHAGRES_CHECK(rows > 0 && columns > 0, "Tensor \"input\" must have elements, got ", shape_text(x.rowwise.shape));
  auto *sums = static_cast<float *>(tensor(workspace, "workspace").data().data_ptr);
  parallel_for(0, blocks, 1, [&](int64_t first, int64_t last) {
    Scratch run(columns);
    for (int64_t i = first; i < last; ++i) {
      float *sum = sums + i * columns;
      std::fill(sum, sum + columns, 0.0f);
      for (int64_t row = i * block; row < std::min((i + 1) * block, rows); ++row) {
        to_float(run.data(), element(x.rowwise.data, row * columns, x.rowwise.dtype), x.rowwise.dtype, columns);
        rescale(run.data(), y.scale_inv, columns);
        add_run(sum, run.data(), columns);
      }
    }
  });
  store_bias(sums, blocks, bias);
  transpose_elements(x.rowwise.data, y.rowwise.data, rows, columns, 1);
}

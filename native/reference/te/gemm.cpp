/*
 * Matrix products with epilogues: nvte_cublas_gemm and its relatives.
 *
 * In row-major terms D[n, m] = alpha op(B)[n, k] op(A)[k, m] + beta D, where op(A) is A[k, m] or the transpose of
 * A[m, k] (transa) and op(B) is B[n, k] or the transpose of B[k, n] (transb). 16-bit operands are widened block by
 * block; sums are FP32.
 */
#include <algorithm>
#include <memory>

#include "te/config.h"
#include "runtime/elementary.h"

namespace chagres::reference {

namespace {

constexpr int64_t kColumnBlock = 512;
constexpr int64_t kPanelBytes = int64_t{64} << 20; /* of A, widened at a time */

struct Gemm {
  View a, b, d;
  Op op_a, op_b;
  float alpha, beta;
  int64_t m, n, k;
  bool gradient; /* epilogues of the backward pass */
  bool with_bias, with_aux;
  View bias; /* m values added, or the gradient's destination */
  View aux;  /* n x m: GELU's input, written forward, read backward */
};

/* ---- epilogues, one row at a time ---- */

CHAGRES_CLONES void add_scaled(float *values, const float *terms, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] += scale * terms[i];
}

CHAGRES_CLONES void apply_gelu(float *values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = gelu(values[i]);
}

CHAGRES_CLONES void multiply_gelu_derivative(float *values, const float *inputs, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= gelu_derivative(inputs[i]);
}

void finish_row(const Gemm &gemm, float *values, float *terms, const float *bias, int64_t row, int64_t column,
                int64_t count) {
  const int64_t index = row * gemm.m + column;
  if (gemm.beta != 0) {
    to_float(terms, element(gemm.d.data, index, gemm.d.dtype), gemm.d.dtype, count);
    add_scaled(values, terms, gemm.beta, count);
  }
  if (bias != nullptr) add_scaled(values, bias + column, 1, count);
  if (gemm.with_aux && gemm.gradient) {
    to_float(terms, element(gemm.aux.data, index, gemm.aux.dtype), gemm.aux.dtype, count);
    multiply_gelu_derivative(values, terms, count);
  } else if (gemm.with_aux) {
    from_float(element(gemm.aux.data, index, gemm.aux.dtype), values, gemm.aux.dtype, count);
    apply_gelu(values, count);
  }
  from_float(element(gemm.d.data, index, gemm.d.dtype), values, gemm.d.dtype, count);
}

/* ---- the product ---- */

/* Rows first..last of a matrix with `columns` columns, columns begin..end of them, as floats side by side. */
void widen(float *destination, const View &source, int64_t columns, int64_t first, int64_t last, int64_t begin,
           int64_t end) {
  for (int64_t row = first; row < last; ++row) {
    to_float(destination + (row - first) * (end - begin),
             element(source.data, row * columns + begin, source.dtype), source.dtype, end - begin);
  }
}

struct Operand {
  const float *data;
  int64_t stride;
};

/* The part of A that columns begin..end of D need: [k, end - begin], or [end - begin, k] when transposed. */
Operand panel_of_a(const Gemm &gemm, std::unique_ptr<Scratch> &buffer, int64_t begin, int64_t end) {
  const bool transposed = gemm.op_a == Op::T;
  const int64_t stored_columns = transposed ? gemm.k : gemm.m;
  if (gemm.a.dtype == kNVTEFloat32) {
    const auto *data = static_cast<const float *>(gemm.a.data);
    return {transposed ? data + begin * gemm.k : data + begin, stored_columns};
  }
  const int64_t rows = transposed ? end - begin : gemm.k;
  const int64_t columns = transposed ? gemm.k : end - begin;
  const int64_t first_row = transposed ? begin : 0, first_column = transposed ? 0 : begin;
  buffer = std::make_unique<Scratch>(rows * columns);
  float *panel = buffer->data();
  parallel_for(0, rows, grain_for(columns), [&](int64_t first, int64_t last) {
    widen(panel + first * columns, gemm.a, stored_columns, first_row + first, first_row + last, first_column,
          first_column + columns);
  });
  return {panel, columns};
}

/* The part of B that rows first..last of D need: [last - first, k], or [k, last - first] when transposed. */
Operand panel_of_b(const Gemm &gemm, std::unique_ptr<Scratch> &buffer, int64_t first, int64_t last) {
  const bool transposed = gemm.op_b == Op::T;
  if (gemm.b.dtype == kNVTEFloat32) {
    const auto *data = static_cast<const float *>(gemm.b.data);
    return transposed ? Operand{data + first, gemm.n} : Operand{data + first * gemm.k, gemm.k};
  }
  buffer = std::make_unique<Scratch>((last - first) * gemm.k);
  if (transposed) {
    widen(buffer->data(), gemm.b, gemm.n, 0, gemm.k, first, last);
    return {buffer->data(), last - first};
  }
  widen(buffer->data(), gemm.b, gemm.k, first, last, 0, gemm.k);
  return {buffer->data(), gemm.k};
}

/* Sums of D's columns for DGELU with a bias gradient: one row of partial sums a block of rows. */
struct ColumnSums {
  float *partial; /* null: not wanted */
  int64_t columns;
};

void compute_block(const Gemm &gemm, const Operand &a, int64_t a_offset, const float *bias, const ColumnSums &sums,
                   int64_t row_block, int64_t first, int64_t last, int64_t begin, int64_t end) {
  const int64_t rows = last - first, columns = end - begin;
  std::unique_ptr<Scratch> buffer;
  const Operand b = panel_of_b(gemm, buffer, first, last);
  const float *a_data = gemm.op_a == Op::T ? a.data + a_offset * a.stride : a.data + a_offset;
  if (gemm.d.dtype == kNVTEFloat32 && bias == nullptr && !gemm.with_aux) {
    sgemm(gemm.op_b, gemm.op_a, rows, columns, gemm.k, gemm.alpha, b.data, b.stride, a_data, a.stride, gemm.beta,
          static_cast<float *>(gemm.d.data) + first * gemm.m + begin, gemm.m);
    return;
  }
  Scratch tile(rows * columns), terms(columns);
  sgemm(gemm.op_b, gemm.op_a, rows, columns, gemm.k, gemm.alpha, b.data, b.stride, a_data, a.stride, 0, tile.data(),
        columns);
  float *sum = sums.partial == nullptr ? nullptr : sums.partial + row_block * sums.columns + begin;
  if (sum != nullptr) std::fill(sum, sum + columns, 0.0f);
  for (int64_t row = 0; row < rows; ++row) {
    float *values = tile.data() + row * columns;
    finish_row(gemm, values, terms.data(), bias, first + row, begin, columns);
    if (sum != nullptr) add_scaled(sum, values, 1, columns);
  }
}

void multiply(const Gemm &gemm) {
  const int64_t row_block = gemm.n >= 512 ? 128 : 64;
  const int64_t row_blocks = (gemm.n - 1) / row_block + 1;
  const int64_t wanted = kPanelBytes / (gemm.k * static_cast<int64_t>(sizeof(float)));
  const int64_t width = std::max(kColumnBlock, wanted / kColumnBlock * kColumnBlock);

  std::unique_ptr<Scratch> bias_values, sum_values;
  if (gemm.with_bias && !gemm.gradient) {
    bias_values = std::make_unique<Scratch>(gemm.m);
    to_float(bias_values->data(), gemm.bias.data, gemm.bias.dtype, gemm.m);
  }
  const bool sums_wanted = gemm.with_bias && gemm.gradient && gemm.with_aux;
  if (sums_wanted) sum_values = std::make_unique<Scratch>(row_blocks * gemm.m);
  const ColumnSums sums{sums_wanted ? sum_values->data() : nullptr, gemm.m};

  for (int64_t left = 0; left < gemm.m; left += width) {
    const int64_t right = std::min(left + width, gemm.m);
    std::unique_ptr<Scratch> buffer;
    const Operand a = panel_of_a(gemm, buffer, left, right);
    const int64_t column_blocks = (right - left - 1) / kColumnBlock + 1;
    parallel_for(0, row_blocks * column_blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        const int64_t row = block / column_blocks, column = block % column_blocks * kColumnBlock;
        compute_block(gemm, a, column, bias_values ? bias_values->data() : nullptr, sums, row, row * row_block,
                      std::min((row + 1) * row_block, gemm.n), left + column,
                      std::min(left + column + kColumnBlock, right));
      }
    });
  }
  if (sums_wanted) {
    for (int64_t row = 1; row < row_blocks; ++row) add_scaled(sums.partial, sums.partial + row * gemm.m, 1, gemm.m);
    from_float(gemm.bias.data, sums.partial, gemm.bias.dtype, gemm.m);
  }
}

/* The bias gradient of a weight-gradient product: op(B) summed over k, n values. */
void sum_b(const Gemm &gemm) {
  constexpr int64_t kBlock = 64;
  parallel_for(0, gemm.n, kBlock, [&](int64_t first, int64_t last) {
    const int64_t count = last - first;
    Scratch sum(count), values(std::max(count, gemm.k));
    std::fill(sum.data(), sum.data() + count, 0.0f);
    for (int64_t row = 0; gemm.op_b == Op::T && row < gemm.k; ++row) {
      to_float(values.data(), element(gemm.b.data, row * gemm.n + first, gemm.b.dtype), gemm.b.dtype, count);
      add_scaled(sum.data(), values.data(), 1, count);
    }
    for (int64_t i = 0; gemm.op_b == Op::N && i < count; ++i) {
      to_float(values.data(), element(gemm.b.data, (first + i) * gemm.k, gemm.b.dtype), gemm.b.dtype, gemm.k);
      for (int64_t j = 0; j < gemm.k; ++j) sum[i] += values[j];
    }
    from_float(element(gemm.bias.data, first, gemm.bias.dtype), sum.data(), gemm.bias.dtype, count);
  });
}

/* ---- arguments ---- */

struct Arguments {
  NVTETensor a, b, d;
  bool transa, transb;
  float alpha, beta;
  bool gradient;
  NVTETensor bias, aux; /* null: none */
};

void check_dtypes(const Gemm &gemm, const Caller &caller) {
  if (gemm.a.dtype != gemm.b.dtype) {
    fail(caller, text("Tensors \"A\" and \"B\" must have the same dtype, got ", dtype_name(gemm.a.dtype), " and ",
                      dtype_name(gemm.b.dtype)));
  }
  if (gemm.d.dtype != kNVTEFloat32 && gemm.d.dtype != gemm.a.dtype) {
    fail(caller, text("Tensor \"D\" must have dtype Float32 or that of A and B, ", dtype_name(gemm.a.dtype), ", got ",
                      dtype_name(gemm.d.dtype)));
  }
  /* cuBLASLt reads and writes bias and auxiliary values in D's dtype. */
  if (gemm.with_bias) expect_dtype(gemm.bias, gemm.gradient ? "dbias" : "bias", gemm.d.dtype, caller);
  if (gemm.with_aux) expect_dtype(gemm.aux, "epilogue_aux", gemm.d.dtype, caller);
}

/* Scaling modes other than the default are those of FP8 and FP4 tensors. */
View unscaled(NVTETensor handle, const char *argument, const Caller &caller) {
  const Tensor &found = tensor(handle, argument, caller);
  if (found.scaling_mode != NVTE_DELAYED_TENSOR_SCALING) {
    fail(caller, text("Tensor \"", argument, "\" has scaling mode ", static_cast<int>(found.scaling_mode),
                      "; the reference multiplies unquantized tensors"));
  }
  return view(handle, argument, {}, caller);
}

void run(const Arguments &arguments, const Caller &caller) {
  Gemm gemm{};
  gemm.a = unscaled(arguments.a, "A", caller);
  gemm.b = unscaled(arguments.b, "B", caller);
  gemm.op_a = arguments.transa ? Op::T : Op::N;
  gemm.op_b = arguments.transb ? Op::T : Op::N;
  gemm.alpha = arguments.alpha;
  gemm.beta = arguments.beta;
  gemm.gradient = arguments.gradient;
  gemm.m = arguments.transa ? gemm.a.rows : gemm.a.columns;
  gemm.n = arguments.transb ? gemm.b.columns : gemm.b.rows;
  gemm.k = arguments.transa ? gemm.a.columns : gemm.a.rows;
  const int64_t k_of_b = arguments.transb ? gemm.b.rows : gemm.b.columns;
  if (gemm.k != k_of_b) {
    fail(caller, text("Tensors \"A\" and \"B\" do not fit: A is ", gemm.a.rows, " x ", gemm.a.columns, " (transa ",
                      arguments.transa, "), B is ", gemm.b.rows, " x ", gemm.b.columns, " (transb ", arguments.transb,
                      "), so the inner dimensions are ", gemm.k, " and ", k_of_b));
  }
  if (gemm.m == 0 || gemm.n == 0) return;
  if (gemm.k == 0) fail(caller, "The inner dimension must be above 0, got 0");

  gemm.d = view(arguments.d, "D", {}, caller);
  expect_count(gemm.d, "D", gemm.n * gemm.m, caller);
  gemm.with_bias = arguments.bias != nullptr;
  gemm.with_aux = arguments.aux != nullptr;
  const bool sums_b = gemm.gradient && !gemm.with_aux;
  if (gemm.with_bias) {
    gemm.bias = view(arguments.bias, gemm.gradient ? "dbias" : "bias", {}, caller);
    expect_count(gemm.bias, gemm.gradient ? "dbias" : "bias", sums_b ? gemm.n : gemm.m, caller);
  }
  if (gemm.with_aux) {
    gemm.aux = view(arguments.aux, "epilogue_aux", {}, caller);
    expect_count(gemm.aux, "epilogue_aux", gemm.n * gemm.m, caller);
  }
  check_dtypes(gemm, caller);
  if (gemm.with_bias && sums_b) {
    sum_b(gemm);
    gemm.with_bias = false;
  }
  multiply(gemm);
}

/* In the older functions a living handle without data means "none". */
NVTETensor when_set(NVTETensor handle, const char *argument, const Caller &caller) {
  return tensor(handle, argument, caller).data().data_ptr == nullptr ? nullptr : handle;
}

Arguments from_config(const MatmulConfig &config, const Caller &caller) {
  const bool gradient = config.dbias_tensor != nullptr || config.with_dgelu_epilogue != 0;
  const std::string epilogue =
      text("(bias ", config.bias_tensor != nullptr, ", dbias ", config.dbias_tensor != nullptr, ", gelu ",
           static_cast<int>(config.with_gelu_epilogue), ", dgelu ", static_cast<int>(config.with_dgelu_epilogue), ")");
  if (gradient && (config.bias_tensor != nullptr || config.with_gelu_epilogue != 0)) {
    fail(caller, text("Invalid epilogue ", epilogue, ": forward and backward epilogues cannot be mixed"));
  }
  const bool with_aux = config.with_gelu_epilogue != 0 || config.with_dgelu_epilogue != 0;
  if (with_aux && config.epilogue_aux_tensor == nullptr) {
    fail(caller, text("Epilogue ", epilogue, " needs kNVTEMatmulConfigEpilogueAuxTensor, which is not set"));
  }
  Arguments arguments{};
  arguments.gradient = gradient;
  arguments.bias = gradient ? config.dbias_tensor : config.bias_tensor;
  arguments.aux = with_aux ? config.epilogue_aux_tensor : nullptr;
  return arguments;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_cublas_gemm_v2(int transa, int transb, const float *alpha, NVTETensor A, NVTETensor B, const float *beta,
                         NVTETensor C, NVTETensor D, NVTETensor workspace, NVTEMatmulConfig config, cudaStream_t) {
  const Caller caller = Caller::here();
  tensor(C, "C");
  tensor(D, "D");
  CHAGRES_CHECK(C == D, "Tensors \"C\" and \"D\" must be the same handle");
  CHAGRES_CHECK(alpha != nullptr && beta != nullptr, "Arguments \"alpha\" and \"beta\" must point to floats, got NULL");
  if (workspace != nullptr) tensor(workspace, "workspace");
  Arguments arguments = from_config(matmul_config(config), caller);
  arguments.a = A;
  arguments.b = B;
  arguments.d = D;
  arguments.transa = transa != 0;
  arguments.transb = transb != 0;
  arguments.alpha = *alpha;
  arguments.beta = *beta;
  run(arguments, caller);
}

void nvte_cublas_gemm_scaled(NVTETensor A, NVTETensor B, NVTETensor D, NVTETensor bias, NVTETensor pre_gelu_out,
                             bool transa, bool transb, bool grad, NVTETensor workspace, float alpha, float beta, bool,
                             int, cudaStream_t) {
  const Caller caller = Caller::here();
  tensor(workspace, "workspace");
  run({A, B, D, transa, transb, alpha, beta, grad, when_set(bias, "bias", caller),
       when_set(pre_gelu_out, "pre_gelu_out", caller)},
      caller);
}

void nvte_cublas_gemm(NVTETensor A, NVTETensor B, NVTETensor D, NVTETensor bias, NVTETensor pre_gelu_out, bool transa,
                      bool transb, bool grad, NVTETensor workspace, bool accumulate, bool, int, cudaStream_t) {
  const Caller caller = Caller::here();
  tensor(workspace, "workspace");
  run({A, B, D, transa, transb, 1, accumulate ? 1.0f : 0.0f, grad, when_set(bias, "bias", caller),
       when_set(pre_gelu_out, "pre_gelu_out", caller)},
      caller);
}

void nvte_multi_tensor_gemm(const NVTETensor *A, const NVTETensor *B, NVTETensor *D, const NVTETensor *bias,
                            NVTETensor *pre_gelu_out, int num_gemms, bool transa, bool transb, bool grad,
                            NVTETensor *workspace, bool accumulate, bool, int, cudaStream_t) {
  const Caller caller = Caller::here();
  CHAGRES_CHECK(A != nullptr && B != nullptr && D != nullptr && bias != nullptr && pre_gelu_out != nullptr &&
                    workspace != nullptr,
                "Arguments \"A\", \"B\", \"D\", \"bias\", \"pre_gelu_out\" and \"workspace\" must be arrays, got NULL");
  for (int i = 0; i < num_gemms; ++i) {
    run({A[i], B[i], D[i], transa, transb, 1, accumulate ? 1.0f : 0.0f, grad, when_set(bias[i], "bias", caller),
         when_set(pre_gelu_out[i], "pre_gelu_out", caller)},
        caller);
  }
}

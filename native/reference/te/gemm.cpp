/* nvte_cublas_gemm and its relatives: their arguments. */
#include "te/recorded.h"
#include "te/config.h"
#include "te/gemm.h"

namespace chagres::reference {

namespace {

struct Arguments {
  NVTETensor a, b, d;
  bool transa, transb;
  float alpha, beta;
  bool gradient;
  NVTETensor bias, aux; /* null: none */
  bool split_accumulator;
};

void check_dtypes(const Gemm &gemm, const Caller &caller) {
  const NVTEDType a = gemm.a.matrix.dtype, b = gemm.b.matrix.dtype;
  if (a != b) {
    fail(caller, text("Tensors \"A\" and \"B\" must have the same dtype, got ", dtype_name(a), " and ", dtype_name(b)));
  }
  if (gemm.d.dtype != kNVTEFloat32 && gemm.d.dtype != a) {
    fail(caller, text("Tensor \"D\" must have dtype Float32 or that of A and B, ", dtype_name(a), ", got ",
                      dtype_name(gemm.d.dtype)));
  }
  /* cuBLASLt reads and writes bias and auxiliary values in D's dtype. */
  if (gemm.with_bias) expect_dtype(gemm.bias, gemm.gradient ? "dbias" : "bias", gemm.d.dtype, caller);
  if (gemm.with_aux) expect_dtype(gemm.aux, "epilogue_aux", gemm.d.dtype, caller);
}

/* Throws unless the inner dimensions agree. */
void check_inner(const Gemm &gemm, const Arguments &arguments, const Caller &caller) {
  if (gemm.a.inner == gemm.b.inner) return;
  const auto size = [](const Factor &factor, bool outer_first) {
    return outer_first ? text(factor.outer, " x ", factor.inner) : text(factor.inner, " x ", factor.outer);
  };
  fail(caller, text("Tensors \"A\" and \"B\" do not fit: A is ", size(gemm.a, arguments.transa), " (transa ",
                    arguments.transa, "), B is ", size(gemm.b, !arguments.transb), " (transb ", arguments.transb,
                    "), so the inner dimensions are ", gemm.a.inner, " and ", gemm.b.inner));
}

void read_output(Gemm &gemm, NVTETensor d, const Caller &caller) {
  if (gemm.fp8() && is_fp8(tensor(d, "D", caller).data().dtype)) {
    gemm.quantized = quantized_output(d, "D", caller);
    gemm.d = gemm.quantized.rowwise;
  } else {
    gemm.d = view(d, "D", {}, caller);
  }
  expect_count(gemm.d, "D", gemm.n * gemm.m, caller);
}

void run(const Arguments &arguments, const Caller &caller) {
  Gemm gemm{};
  gemm.a = read_factor(arguments.a, Side::A, arguments.transa, caller);
  gemm.b = read_factor(arguments.b, Side::B, arguments.transb, caller);
  gemm.alpha = arguments.alpha;
  gemm.beta = arguments.beta;
  gemm.gradient = arguments.gradient;
  gemm.split_accumulator = arguments.split_accumulator;
  gemm.m = gemm.a.outer;
  gemm.n = gemm.b.outer;
  gemm.k = gemm.a.inner;
  check_inner(gemm, arguments, caller);
  if (gemm.m == 0 || gemm.n == 0) return;
  if (gemm.k == 0) fail(caller, "The inner dimension must be above 0, got 0");
  if (gemm.fp8() || is_fp8(gemm.b.matrix.dtype)) check_fp8_factors(gemm, arguments.a, arguments.b, caller);

  read_output(gemm, arguments.d, caller);
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
  if (gemm.fp8()) {
    check_fp8_epilogue(gemm, caller);
  } else {
    check_dtypes(gemm, caller);
  }
  if (gemm.with_bias && sums_b) {
    sum_b(gemm);
    gemm.with_bias = false;
  }
  multiply(gemm);
}

/* In the older functions a living handle without data means "none", in lists 0 does, too. */
NVTETensor when_set(NVTETensor handle, const char *argument, const Caller &caller) {
  return tensor(handle, argument, caller).data().data_ptr == nullptr ? nullptr : handle;
}

NVTETensor when_given(NVTETensor handle, const char *argument, const Caller &caller) {
  return handle == nullptr ? nullptr : when_set(handle, argument, caller);
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
  arguments.split_accumulator = config.use_split_accumulator != 0;
  return arguments;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_cublas_gemm_v2(int transa, int transb, const float *alpha, NVTETensor A, NVTETensor B, const float *beta,
                         NVTETensor C, NVTETensor D, NVTETensor workspace, NVTEMatmulConfig config, cudaStream_t stream) {
  if (recorded(nvte_cublas_gemm_v2, transa, transb, list(alpha, 1), A, B, list(beta, 1), C, D, workspace, config,
               stream)) return;
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
                             bool transa, bool transb, bool grad, NVTETensor workspace, float alpha, float beta,
                             bool use_split_accumulator, int math_sm_count, cudaStream_t stream) {
  if (recorded(nvte_cublas_gemm_scaled, A, B, D, bias, pre_gelu_out, transa, transb, grad, workspace, alpha, beta,
               use_split_accumulator, math_sm_count, stream)) return;
  const Caller caller = Caller::here();
  tensor(workspace, "workspace");
  run({A, B, D, transa, transb, alpha, beta, grad, when_set(bias, "bias", caller),
       when_set(pre_gelu_out, "pre_gelu_out", caller), use_split_accumulator},
      caller);
}

void nvte_cublas_gemm(NVTETensor A, NVTETensor B, NVTETensor D, NVTETensor bias, NVTETensor pre_gelu_out, bool transa,
                      bool transb, bool grad, NVTETensor workspace, bool accumulate, bool use_split_accumulator,
                      int math_sm_count,
                      cudaStream_t stream) {
  if (recorded(nvte_cublas_gemm, A, B, D, bias, pre_gelu_out, transa, transb, grad, workspace, accumulate,
               use_split_accumulator, math_sm_count, stream)) return;
  const Caller caller = Caller::here();
  tensor(workspace, "workspace");
  run({A, B, D, transa, transb, 1, accumulate ? 1.0f : 0.0f, grad, when_set(bias, "bias", caller),
       when_set(pre_gelu_out, "pre_gelu_out", caller), use_split_accumulator},
      caller);
}

void nvte_multi_tensor_gemm(const NVTETensor *A, const NVTETensor *B, NVTETensor *D, const NVTETensor *bias,
                            NVTETensor *pre_gelu_out, int num_gemms, bool transa, bool transb, bool grad,
                            NVTETensor *workspace, bool accumulate, bool use_split_accumulator, int math_sm_count,
                            cudaStream_t stream) {
  const auto count = static_cast<size_t>(std::max(num_gemms, 0));
  /* Nobody looks at the workspaces. */
  if (recorded(nvte_multi_tensor_gemm, list(A, count), list(B, count), list(D, count), list(bias, count),
               list(pre_gelu_out, count), num_gemms, transa, transb, grad, workspace, accumulate, use_split_accumulator,
               math_sm_count, stream)) return;
  if (num_gemms <= 0) return;
  const Caller caller = Caller::here();
  CHAGRES_CHECK(A != nullptr && B != nullptr && D != nullptr && bias != nullptr && pre_gelu_out != nullptr &&
                    workspace != nullptr,
                "Arguments \"A\", \"B\", \"D\", \"bias\", \"pre_gelu_out\" and \"workspace\" must be arrays, got NULL");
  for (int i = 0; i < num_gemms; ++i) {
    run({A[i], B[i], D[i], transa, transb, 1, accumulate ? 1.0f : 0.0f, grad, when_given(bias[i], "bias", caller),
         when_given(pre_gelu_out[i], "pre_gelu_out", caller), use_split_accumulator},
        caller);
  }
}

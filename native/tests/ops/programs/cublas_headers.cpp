/*
 * NVIDIA's headers against native/ops/cublas.h: equal numbers and layouts, and functions that take the same arguments.
 * Compiled by cublas_headers.sh.
 */
#include <cublasLt.h>

#include <cstddef>

#include "cublas.h"

namespace ours = chagres::ops::cublas;

#define SAME(mine, theirs) static_assert(static_cast<long>(ours::mine) == static_cast<long>(theirs), #theirs)

SAME(kR32F, CUDA_R_32F);
SAME(kR16F, CUDA_R_16F);
SAME(kR16BF, CUDA_R_16BF);
SAME(kR8FE4M3, CUDA_R_8F_E4M3);
SAME(kR8FE5M2, CUDA_R_8F_E5M2);
SAME(kCompute32F, CUBLAS_COMPUTE_32F);
SAME(kCompute32FFastTf32, CUBLAS_COMPUTE_32F_FAST_TF32);
SAME(kOperationN, CUBLAS_OP_N);
SAME(kOperationT, CUBLAS_OP_T);
SAME(kTransA, CUBLASLT_MATMUL_DESC_TRANSA);
SAME(kTransB, CUBLASLT_MATMUL_DESC_TRANSB);
SAME(kEpilogue, CUBLASLT_MATMUL_DESC_EPILOGUE);
SAME(kBiasPointer, CUBLASLT_MATMUL_DESC_BIAS_POINTER);
SAME(kEpilogueAuxPointer, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
SAME(kEpilogueAuxLd, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD);
SAME(kSmCountTarget, CUBLASLT_MATMUL_DESC_SM_COUNT_TARGET);
SAME(kAScalePointer, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER);
SAME(kBScalePointer, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER);
SAME(kEpilogueAuxDataType, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE);
SAME(kFastAccum, CUBLASLT_MATMUL_DESC_FAST_ACCUM);
SAME(kBiasDataType, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE);
SAME(kAScaleMode, CUBLASLT_MATMUL_DESC_A_SCALE_MODE);
SAME(kBScaleMode, CUBLASLT_MATMUL_DESC_B_SCALE_MODE);
SAME(kDefault, CUBLASLT_EPILOGUE_DEFAULT);
SAME(kBias, CUBLASLT_EPILOGUE_BIAS);
SAME(kGeluAux, CUBLASLT_EPILOGUE_GELU_AUX);
SAME(kGeluAuxBias, CUBLASLT_EPILOGUE_GELU_AUX_BIAS);
SAME(kDGelu, CUBLASLT_EPILOGUE_DGELU);
SAME(kBGradB, CUBLASLT_EPILOGUE_BGRADB);
SAME(kScalar32F, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
SAME(kVec128, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F);
SAME(kBlock128x128, CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F);
SAME(kMaxWorkspaceBytes, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES);
SAME(kReductionSchemeMask, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK);
SAME(kMinAlignmentA, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES);
SAME(kMinAlignmentB, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES);
SAME(kMinAlignmentC, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES);
SAME(kMinAlignmentD, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES);
SAME(kReductionInComputeType, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
SAME(kNotSupported, CUBLAS_STATUS_NOT_SUPPORTED);

static_assert(sizeof(ours::Algorithm) == sizeof(cublasLtMatmulAlgo_t), "");
static_assert(sizeof(ours::Heuristic) == sizeof(cublasLtMatmulHeuristicResult_t), "");
static_assert(offsetof(ours::Heuristic, workspace_bytes) == offsetof(cublasLtMatmulHeuristicResult_t, workspaceSize), "");
static_assert(offsetof(ours::Heuristic, state) == offsetof(cublasLtMatmulHeuristicResult_t, state), "");
static_assert(offsetof(ours::Heuristic, waves) == offsetof(cublasLtMatmulHeuristicResult_t, wavesCount), "");
static_assert(sizeof(cudaDeviceProp) <= 8192 && offsetof(cudaDeviceProp, name) == 0, "");
static_assert(sizeof(cudaDeviceProp::name) == 256, "");

/* Never called: compiles when the arguments that native/ops passes are those of the header. */
void calls() {
  cublasLtMatmulDesc_t descriptor = nullptr;
  cublasLtMatrixLayout_t layout = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulAlgo_t algorithm = {};
  cublasLtMatmulHeuristicResult_t result = {};
  const float one = 1;
  const int64_t leading = 1;
  const uint64_t size = 1;
  int count = 0;
  cublasLtMatmulDescCreate(&descriptor, CUBLAS_COMPUTE_32F, CUDA_R_32F);
  cublasLtMatmulDescSetAttribute(descriptor, CUBLASLT_MATMUL_DESC_TRANSA, &count, sizeof count);
  cublasLtMatrixLayoutCreate(&layout, CUDA_R_32F, size, size, leading);
  cublasLtMatmulPreferenceCreate(&preference);
  cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &size, sizeof size);
  cublasLtMatmulAlgoGetHeuristic(nullptr, descriptor, layout, layout, layout, layout, preference, 1, &result, &count);
  cublasLtMatmulAlgoCheck(nullptr, descriptor, layout, layout, layout, layout, &algorithm, &result);
  cublasLtMatmul(nullptr, descriptor, &one, nullptr, layout, nullptr, layout, &one, nullptr, layout, nullptr, layout,
                 &algorithm, nullptr, size_t{0}, nullptr);
}

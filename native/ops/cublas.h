/* cuBLASLt, and the functions of the CUDA runtime that time its kernels, opened at the first product: the functions
 * used here with the types and numbers of cublasLt.h (cuBLAS 13), so that building needs no header. The test
 * ops_cublas_headers compares them with NVIDIA's header.
 */
#ifndef CHAGRES_OPS_CUBLAS_H
#define CHAGRES_OPS_CUBLAS_H

#include <cstddef>
#include <cstdint>

#include "cuda.h"

namespace chagres::ops::cublas {

using Handle = void *;     /* cublasLtHandle_t */
using Descriptor = void *; /* cublasLtMatmulDesc_t */
using Layout = void *;     /* cublasLtMatrixLayout_t */
using Preference = void *; /* cublasLtMatmulPreference_t */

enum DataType : int { kR32F = 0, kR16F = 2, kR16BF = 14, kR8FE4M3 = 28, kR8FE5M2 = 29 }; /* cudaDataType_t */
enum ComputeType : int { kCompute32F = 68, kCompute32FFastTf32 = 77 };                 /* cublasComputeType_t */
enum Operation : int { kOperationN = 0, kOperationT = 1 };                              /* cublasOperation_t */

enum Attribute : int { /* cublasLtMatmulDescAttributes_t */
  kTransA = 3,
  kTransB = 4,
  kEpilogue = 7,
  kBiasPointer = 8,
  kEpilogueAuxPointer = 11,
  kEpilogueAuxLd = 12,
  kSmCountTarget = 15,
  kAScalePointer = 17,
  kBScalePointer = 18,
  kEpilogueAuxDataType = 22,
  kFastAccum = 25,
  kBiasDataType = 26,
  kAScaleMode = 31,
  kBScaleMode = 32
};

enum Epilogue : int { /* cublasLtEpilogue_t */
  kDefault = 1,
  kBias = 4,
  kGeluAux = 160,
  kGeluAuxBias = 164,
  kDGelu = 192,
  kBGradB = 512
};

enum ScaleMode : int { kScalar32F = 0, kVec128 = 4, kBlock128x128 = 5 }; /* cublasLtMatmulMatrixScale_t */

enum PreferenceAttribute : int { /* cublasLtMatmulPreferenceAttributes_t */
  kMaxWorkspaceBytes = 1,
  kReductionSchemeMask = 3,
  kMinAlignmentA = 5,
  kMinAlignmentB = 6,
  kMinAlignmentC = 7,
  kMinAlignmentD = 8
};

constexpr uint32_t kReductionInComputeType = 2; /* CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE */
constexpr int kNotSupported = 15;               /* CUBLAS_STATUS_NOT_SUPPORTED */

struct Algorithm { /* cublasLtMatmulAlgo_t */
  uint64_t data[8];
};

struct Heuristic { /* cublasLtMatmulHeuristicResult_t */
  Algorithm algorithm;
  size_t workspace_bytes;
  int state;
  float waves;
  int reserved[4];
};

struct Library {
  size_t (*version)();
  const char *(*status_name)(int status);
  int (*create)(Handle *handle);
  int (*descriptor_create)(Descriptor *descriptor, int compute, int scale);
  int (*descriptor_destroy)(Descriptor descriptor);
  int (*descriptor_set)(Descriptor descriptor, int attribute, const void *value, size_t bytes);
  int (*layout_create)(Layout *layout, int type, uint64_t rows, uint64_t columns, int64_t leading);
  int (*layout_destroy)(Layout layout);
  int (*preference_create)(Preference *preference);
  int (*preference_destroy)(Preference preference);
  int (*preference_set)(Preference preference, int attribute, const void *value, size_t bytes);
  int (*heuristic)(Handle handle, Descriptor descriptor, Layout a, Layout b, Layout c, Layout d, Preference preference,
                   int wanted, Heuristic *results, int *count);
  int (*check)(Handle handle, Descriptor descriptor, Layout a, Layout b, Layout c, Layout d, const Algorithm *algorithm,
               Heuristic *result);
  int (*matmul)(Handle handle, Descriptor descriptor, const void *alpha, const void *a, Layout a_layout, const void *b,
                Layout b_layout, const void *beta, const void *c, Layout c_layout, void *d, Layout d_layout,
                const Algorithm *algorithm, void *workspace, size_t workspace_bytes, OpsStream stream);
  /* of the CUDA runtime */
  int (*event_create)(void **event);
  int (*event_destroy)(void *event);
  int (*event_record)(void *event, OpsStream stream);
  int (*event_synchronize)(void *event);
  int (*event_elapsed)(float *milliseconds, void *start, void *stop);
  int (*is_capturing)(OpsStream stream, int *status);
  int (*device_properties)(void *properties, int device);
};

/* The opened library; null, with the text set and *status, when it cannot be had. The program's own comes first, then the
 * one beside the CUDA runtime, then the system's. */
const Library *library(const char *function, int &status);

/* OPS_CUDA_ERROR with "`function`: `call` failed with code 15 (CUBLAS_STATUS_NOT_SUPPORTED)". */
int failure(const char *function, const Library &library, const char *call, int status);

}  // namespace chagres::ops::cublas

#endif /* CHAGRES_OPS_CUBLAS_H */

/*
 * The CUDA runtime and NVRTC, opened by path: the functions used here with the prototypes of cuda_runtime_api.h and
 * nvrtc.h (CUDA 13.0), so that building needs neither header.
 */
#ifndef CHAGRES_OPS_CUDA_H
#define CHAGRES_OPS_CUDA_H

#include <cstddef>
#include <string>

#include "error.h"

namespace chagres::ops {

struct Dim3 { /* dim3 */
  unsigned x, y, z;
};

constexpr int kMultiprocessorCount = 16; /* enum cudaDeviceAttr, as the next two */
constexpr int kComputeCapabilityMajor = 75;
constexpr int kComputeCapabilityMinor = 76;
constexpr int kMaxDynamicSharedMemorySize = 8; /* enum cudaFuncAttribute */

struct CudaRuntime {
  int (*get_device)(int *device);
  int (*device_get_attribute)(int *value, int attribute, int device);
  const char *(*get_error_name)(int error);
  const char *(*get_error_string)(int error);
  int (*get_last_error)();
  int (*library_load_data)(void **library, const void *code, int *jit_options, void **jit_values, unsigned jit_count,
                           int *library_options, void **library_values, unsigned library_count);
  int (*library_get_kernel)(void **kernel, void *library, const char *name);
  int (*kernel_set_attribute_for_device)(void *kernel, int attribute, int value, int device);
  int (*launch_kernel)(const void *kernel, Dim3 grid, Dim3 block, void **arguments, size_t shared_bytes,
                       OpsStream stream);
  int (*malloc)(void **memory, size_t bytes);
  int (*malloc_async)(void **memory, size_t bytes, OpsStream stream);
  int (*free_async)(void *memory, OpsStream stream);
};

struct Nvrtc {
  int (*version)(int *major, int *minor);
  const char *(*get_error_string)(int result);
  int (*create_program)(void **program, const char *source, const char *name, int header_count,
                        const char *const *headers, const char *const *header_names);
  int (*destroy_program)(void **program);
  int (*compile_program)(void *program, int option_count, const char *const *options);
  int (*get_cubin_size)(void *program, size_t *size);
  int (*get_cubin)(void *program, char *cubin);
  int (*get_program_log_size)(void *program, size_t *size);
  int (*get_program_log)(void *program, char *log);
};

/* What ops_open was given and found. */
struct Libraries {
  CudaRuntime cuda;
  Nvrtc nvrtc;
  std::string cuda_runtime_path, nvrtc_path, include_directory, cache_directory;
  int nvrtc_major, nvrtc_minor;
};

/* The opened libraries; null before ops_open has succeeded. */
const Libraries *libraries();

/* OPS_CUDA_ERROR with "`function`: `call` failed with code 2 (cudaErrorMemoryAllocation): text"; also takes the error
 * out of the runtime's own last-error cell, where another library would find and report it as its own. */
int cuda_failure(const char *function, const char *call, int error);

int not_open(const char *function);

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_CUDA_H */

// CUDA runtime functions that say yes, for tests without a GPU: loaded for all before the real runtime they make
// Transformer Engine believe in an H200, so that its code on the host runs on to the kernel launches, which do nothing.
// The library registers its kernels with the real runtime, which is loaded as well.

#include <cuda_runtime_api.h>

#include <cstdlib>
#include <cstring>

#undef cudaGetDeviceProperties
#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

constexpr int multiprocessors = 132;
constexpr int shared_bytes_per_block = 232448;
constexpr int shared_bytes_per_multiprocessor = 233472;
constexpr int threads_per_multiprocessor = 2048;
constexpr int warp = 32;
constexpr std::size_t object_bytes = 64;

template <typename Object>
cudaError_t make(Object *object) {
  *object = reinterpret_cast<Object>(std::malloc(object_bytes));
  return cudaSuccess;
}

template <typename Value>
cudaError_t answer(Value *place, Value value) {
  *place = value;
  return cudaSuccess;
}

int compute_capability_major() {
  const char *const set = std::getenv("PRETEND_CUDA_MAJOR");
  return set == nullptr ? 9 : std::atoi(set);
}

int driver_success(...) { return 0; }
int driver_current_context(void **context) {
  *context = std::malloc(object_bytes);
  return 0;
}
int driver_current_device(int *device) {
  *device = 0;
  return 0;
}

}  // namespace

EXPORT cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrComputeCapabilityMajor: return answer(value, compute_capability_major());
    case cudaDevAttrComputeCapabilityMinor: return answer(value, 0);
    case cudaDevAttrMultiProcessorCount: return answer(value, multiprocessors);
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: return answer(value, shared_bytes_per_block);
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor: return answer(value, shared_bytes_per_multiprocessor);
    case cudaDevAttrMaxThreadsPerMultiProcessor: return answer(value, threads_per_multiprocessor);
    case cudaDevAttrWarpSize: return answer(value, warp);
    default: return answer(value, 1024);
  }
}

EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int) {
  std::memset(properties, 0, sizeof(*properties));
  properties->major = compute_capability_major();
  properties->multiProcessorCount = multiprocessors;
  properties->sharedMemPerBlockOptin = shared_bytes_per_block;
  properties->sharedMemPerMultiprocessor = shared_bytes_per_multiprocessor;
  properties->maxThreadsPerMultiProcessor = threads_per_multiprocessor;
  properties->warpSize = warp;
  return cudaSuccess;
}

EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
  std::memset(attributes, 0, sizeof(*attributes));
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  return cudaSuccess;
}

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult *result) {
  if (result != nullptr) *result = cudaDriverEntryPointSuccess;
  *function = reinterpret_cast<void *>(driver_success);
  if (std::strcmp(name, "cuCtxGetCurrent") == 0) *function = reinterpret_cast<void *>(driver_current_context);
  if (std::strcmp(name, "cuCtxGetDevice") == 0) *function = reinterpret_cast<void *>(driver_current_device);
  return cudaSuccess;
}

EXPORT cudaError_t cudaGetDevice(int *device) { return answer(device, 0); }
EXPORT cudaError_t cudaGetDeviceCount(int *count) { return answer(count, 1); }
EXPORT cudaError_t cudaSetDevice(int) { return cudaSuccess; }
EXPORT cudaError_t cudaDriverGetVersion(int *version) { return answer(version, 13000); }
EXPORT cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) { return answer(can, 1); }
EXPORT cudaError_t cudaDeviceSynchronize() { return cudaSuccess; }
EXPORT cudaError_t cudaGetLastError() { return cudaSuccess; }
EXPORT cudaError_t cudaPeekAtLastError() { return cudaSuccess; }

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
  *least = 0;
  return answer(greatest, -5);
}
EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned, int) { return make(stream); }
EXPORT cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }
EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t) { return cudaSuccess; }
EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return cudaSuccess; }
EXPORT cudaError_t cudaEventCreate(cudaEvent_t *event) { return make(event); }
EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned) { return make(event); }
EXPORT cudaError_t cudaEventDestroy(cudaEvent_t) { return cudaSuccess; }
EXPORT cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return cudaSuccess; }

EXPORT cudaError_t cudaMalloc(void **memory, std::size_t bytes) {
  *memory = std::malloc(bytes < object_bytes ? object_bytes : bytes);
  return *memory == nullptr ? cudaErrorMemoryAllocation : cudaSuccess;
}
EXPORT cudaError_t cudaMallocAsync(void **memory, std::size_t bytes, cudaStream_t) { return cudaMalloc(memory, bytes); }
EXPORT cudaError_t cudaFree(void *) { return cudaSuccess; }
EXPORT cudaError_t cudaFreeAsync(void *, cudaStream_t) { return cudaSuccess; }
EXPORT cudaError_t cudaMemcpy(void *, const void *, std::size_t, cudaMemcpyKind) { return cudaSuccess; }
EXPORT cudaError_t cudaMemcpyAsync(void *, const void *, std::size_t, cudaMemcpyKind, cudaStream_t) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaMemset(void *, int, std::size_t) { return cudaSuccess; }
EXPORT cudaError_t cudaMemsetAsync(void *, int, std::size_t, cudaStream_t) { return cudaSuccess; }
EXPORT cudaError_t cudaMemcpyToSymbol(const void *, const void *, std::size_t, std::size_t, cudaMemcpyKind) {
  return cudaSuccess;
}
EXPORT cudaError_t cudaGetSymbolAddress(void **address, const void *) { return make(address); }

EXPORT cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }
EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, const void *, int, std::size_t,
                                                                          unsigned) {
  return answer(blocks, 2);
}
EXPORT cudaError_t cudaOccupancyMaxActiveClusters(int *clusters, const void *, const cudaLaunchConfig_t *) {
  return answer(clusters, 2);
}
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *, const void *, void **) { return cudaSuccess; }
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void **, std::size_t, cudaStream_t) {
  return cudaSuccess;
}
EXPORT cudaError_t __cudaGetKernel(cudaKernel_t *kernel, const void *stub) {
  return answer(kernel, reinterpret_cast<cudaKernel_t>(const_cast<void *>(stub)));
}

#include "kernel.h"

#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "compile.h"

namespace chagres::ops {
namespace {

std::mutex load_mutex;

const Source &source_named(const char *name) {
  for (int i = 0; i < kSourceCount; ++i)
    if (strcmp(kSources[i].name, name) == 0) return kSources[i];
  return kSources[0]; /* not reached: every Kernel names an embedded file, as the device check proves */
}

/* The loaded library of a source; devices of one architecture share it. Under load_mutex. */
int library_of(const char *function, const Libraries &libraries, const char *source, int device, void *&library) {
  static std::map<std::pair<std::string, int>, void *> loaded;
  const CudaRuntime &cuda = libraries.cuda;
  int major = 0, minor = 0;
  int error = cuda.device_get_attribute(&major, kComputeCapabilityMajor, device);
  if (error == 0) error = cuda.device_get_attribute(&minor, kComputeCapabilityMinor, device);
  if (error != 0) return cuda_failure(function, "cudaDeviceGetAttribute", error);
  void *&entry = loaded[{source, 10 * major + minor}];
  if (entry == nullptr) {
    std::string cubin, store_problem; /* a cubin that cannot be stored is compiled again by the next process */
    const int status = compile(function, libraries, source_named(source), major, minor, cubin, store_problem);
    if (status != OPS_SUCCESS) return status;
    error = cuda.library_load_data(&entry, cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0);
    if (error != 0) return cuda_failure(function, "cudaLibraryLoadData", error);
  }
  library = entry;
  return OPS_SUCCESS;
}

}  // namespace

void *Kernel::load(const char *function, const Libraries &libraries, int device, int &status) {
  std::lock_guard<std::mutex> lock(load_mutex);
  void *library = nullptr, *kernel = nullptr;
  status = library_of(function, libraries, source_, device, library);
  if (status != OPS_SUCCESS) return nullptr;
  const CudaRuntime &cuda = libraries.cuda;
  int error = cuda.library_get_kernel(&kernel, library, name_);
  /* A kernel may have 48 KiB unasked, of which its own static shared memory is a part. */
  if (error == 0 && shared_bytes_ > 0)
    error = cuda.kernel_set_attribute_for_device(kernel, kMaxDynamicSharedMemorySize, shared_bytes_, device);
  if (error != 0) {
    status = cuda_failure(function, name_, error);
    return nullptr;
  }
  handles_[device].store(kernel, std::memory_order_release);
  return kernel;
}

int current_device(const char *function, int &device) {
  const Libraries *libraries = chagres::ops::libraries();
  if (libraries == nullptr) return not_open(function);
  const int error = libraries->cuda.get_device(&device);
  if (error != 0) return cuda_failure(function, "cudaGetDevice", error);
  if (device < kDevices) return OPS_SUCCESS;
  return fail(OPS_CUDA_ERROR, format("%s: the current device is %d; this library drives devices 0 to %d", function,
                                     device, kDevices - 1));
}

int multiprocessors_of_device(const char *function, int &count) {
  static std::atomic<int> counts[kDevices] = {};
  int device = 0;
  const int status = current_device(function, device);
  if (status != OPS_SUCCESS) return status;
  count = counts[device].load(std::memory_order_relaxed);
  if (count != 0) return OPS_SUCCESS;
  const int error = libraries()->cuda.device_get_attribute(&count, kMultiprocessorCount, device);
  if (error != 0) return cuda_failure(function, "cudaDeviceGetAttribute", error);
  counts[device].store(count, std::memory_order_relaxed);
  return OPS_SUCCESS;
}

int launch_kernel(const char *function, Kernel &kernel, const Grid &grid, void **arguments, OpsStream stream) {
  int device = 0;
  int status = current_device(function, device);
  if (status != OPS_SUCCESS) return status;
  const Libraries &libraries = *chagres::ops::libraries();
  void *handle = kernel.on(function, libraries, device, status);
  if (handle == nullptr) return status;
  const int error = libraries.cuda.launch_kernel(handle, {grid.x, grid.y, 1}, {grid.threads, 1, 1}, arguments,
                                                 grid.shared_bytes, stream);
  return error == 0 ? OPS_SUCCESS : cuda_failure(function, "cudaLaunchKernel", error);
}

}  // namespace chagres::ops

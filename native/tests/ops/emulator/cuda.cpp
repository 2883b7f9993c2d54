/* The functions of the CUDA runtime and NVRTC that chagres_ops and its tests call, over the emulator. */
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <functional>
#include <memory>
#include <vector>

#include "emulator.h"
#include "faults.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

using namespace chagres::emulator;

namespace {

constexpr int kInvalidValue = 1, kInvalidDevice = 101, kNoImage = 209, kSymbolNotFound = 500, kLaunchFailure = 719,
              kCaptureUnsupported = 900;
/* Of the 48 KiB that a kernel may have unasked, less what its static shared memory may take, which nobody counts here. */
constexpr int kAlwaysAllowed = 47 * 1024;
constexpr int kDevices = 3; /* two of one architecture */
constexpr int kCapability[kDevices] = {90, 90, 80};
constexpr int kMultiprocessorCount[kDevices] = {4, 4, 6};

Faults faults;
thread_local int current_device = 0;
thread_local int last_error = 0;

/* "cubin rows.cu sm_90" */
struct Library {
  std::string source;
  int capability;
};

struct LoadedKernel {
  const Kernel *kernel;
  int capability;
  std::atomic<int> allowed_shared[kDevices] = {};
};

struct Graph {
  std::vector<std::function<void()>> launches;
};

thread_local std::unique_ptr<Graph> capturing;

int failed(int error) {
  last_error = error;
  return error;
}

bool takes_fault(const char *call) {
  if (faults.call == nullptr || strcmp(faults.call, call) != 0) return false;
  faults.call = nullptr;
  return true;
}

}  // namespace

EXPORT Faults *emulator_faults() { return &faults; }

__attribute__((visibility("default"))) void emulator_enqueue(const std::function<void()> &work);

void emulator_enqueue(const std::function<void()> &work) {
  if (capturing != nullptr) return capturing->launches.push_back(work);
  work();
}

EXPORT int cudaGetDevice(int *device) {
  *device = current_device;
  return 0;
}

EXPORT int cudaSetDevice(int device) {
  if (device < 0 || device >= kDevices) return failed(kInvalidDevice);
  current_device = device;
  return 0;
}

EXPORT int cudaDeviceGetAttribute(int *value, int attribute, int device) {
  constexpr int kMajor = 75, kMinor = 76, kMultiprocessors = 16;
  if (attribute != kMajor && attribute != kMinor && attribute != kMultiprocessors) return failed(kInvalidValue);
  *value = attribute == kMajor   ? kCapability[device] / 10
           : attribute == kMinor ? kCapability[device] % 10
                                 : kMultiprocessorCount[device];
  return 0;
}

EXPORT int cudaGetDeviceProperties(void *properties, int device) {
  snprintf(static_cast<char *>(properties), 256, "emulated %d", kCapability[device]);
  return 0;
}

EXPORT const char *cudaGetErrorName(int error) {
  return error == kNoImage ? "cudaErrorNoKernelImageForDevice" : "cudaErrorOther";
}
EXPORT const char *cudaGetErrorString(int) { return "text of the runtime"; }
EXPORT int cudaGetLastError() {
  const int error = last_error;
  last_error = 0;
  return error;
}

EXPORT int cudaLibraryLoadData(void **library, const void *code, int *, void **, unsigned, int *, void **, unsigned) {
  char source[64];
  int capability = 0;
  if (sscanf(static_cast<const char *>(code), "cubin %63s sm_%d", source, &capability) != 2)
    return failed(kInvalidValue);
  if (takes_fault("cudaLibraryLoadData") || capability != kCapability[current_device]) return failed(kNoImage);
  ++faults.loads;
  *library = new Library{source, capability};
  return 0;
}

EXPORT int cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  const auto *loaded = static_cast<Library *>(library);
  const Kernel *found = find_kernel(loaded->source, name);
  if (found == nullptr) return failed(kSymbolNotFound);
  auto *handle = new LoadedKernel;
  handle->kernel = found;
  handle->capability = loaded->capability;
  *kernel = handle;
  return 0;
}

EXPORT int cudaKernelSetAttributeForDevice(void *kernel, int attribute, int value, int device) {
  if (attribute != 8) return failed(kInvalidValue);
  static_cast<LoadedKernel *>(kernel)->allowed_shared[device] = value;
  return 0;
}

EXPORT int cudaLaunchKernel(const void *handle, Index grid, Index block, void **arguments, size_t shared_bytes,
                            void *) {
  const auto *loaded = static_cast<const LoadedKernel *>(handle);
  if (takes_fault("cudaLaunchKernel")) return failed(kLaunchFailure);
  if (loaded->capability != kCapability[current_device]) return failed(kNoImage);
  const auto allowed = static_cast<size_t>(std::max(loaded->allowed_shared[current_device].load(), kAlwaysAllowed));
  if (grid.x == 0 || grid.y == 0 || grid.y > 65535 || block.x == 0 || block.x > 256 || shared_bytes > allowed)
    return failed(kInvalidValue);
  const Launch launch = {grid, block, {0, 0, 0}, shared_bytes};
  const auto work = [launch, body = loaded->kernel->adapter(arguments)] { run(launch, body); };
  ++faults.launches;
  if (grid.x > faults.blocks) faults.blocks = grid.x;
  if (capturing != nullptr) {
    capturing->launches.emplace_back(work);
    return 0;
  }
  try {
    work();
  } catch (const std::exception &exception) {
    fprintf(stderr, "emulator: %s: %s\n", loaded->kernel->name.c_str(), exception.what());
    abort(); /* the fibers are lost, and so would the results be */
  }
  return 0;
}

EXPORT int cudaMalloc(void **memory, size_t bytes) {
  if (capturing != nullptr || takes_fault("cudaMalloc")) return failed(kCaptureUnsupported);
  ++faults.allocations;
  *memory = aligned_alloc(256, (bytes + 255) / 256 * 256);
  return 0;
}

EXPORT int cudaFree(void *memory) {
  free(memory);
  return 0;
}

EXPORT int cudaMallocAsync(void **memory, size_t bytes, void *) { return cudaMalloc(memory, bytes); }
EXPORT int cudaFreeAsync(void *memory, void *) { return cudaFree(memory); }

EXPORT int cudaMemcpy(void *destination, const void *source, size_t bytes, int) {
  memcpy(destination, source, bytes);
  return 0;
}

EXPORT int cudaStreamCreateWithFlags(void **stream, unsigned) {
  *stream = malloc(8);
  return 0;
}
EXPORT int cudaStreamSynchronize(void *) { return capturing == nullptr ? 0 : failed(kCaptureUnsupported); }

EXPORT int cudaEventCreate(void **event) {
  *event = new int64_t;
  return 0;
}
EXPORT int cudaEventDestroy(void *event) {
  delete static_cast<int64_t *>(event);
  return 0;
}
EXPORT int cudaEventSynchronize(void *) { return capturing == nullptr ? 0 : failed(kCaptureUnsupported); }
EXPORT int cudaEventRecord(void *event, void *) {
  *static_cast<int64_t *>(event) = emulator_faults()->nanoseconds;
  return 0;
}
EXPORT int cudaEventElapsedTime(float *milliseconds, void *start, void *stop) {
  *milliseconds = static_cast<float>(*static_cast<int64_t *>(stop) - *static_cast<int64_t *>(start)) / 1e6f;
  return 0;
}

EXPORT int cudaStreamIsCapturing(void *, int *status) {
  *status = capturing == nullptr ? 0 : 1;
  return 0;
}
EXPORT int cudaStreamBeginCapture(void *, int) {
  capturing = std::make_unique<Graph>();
  return 0;
}
EXPORT int cudaStreamEndCapture(void *, void **graph) {
  *graph = capturing.release();
  return 0;
}
EXPORT int cudaGraphInstantiate(void **executable, void *graph, unsigned long long) {
  *executable = graph;
  return 0;
}
EXPORT int cudaGraphLaunch(void *executable, void *) {
  for (const auto &launch : static_cast<Graph *>(executable)->launches) launch();
  return 0;
}

/* NVRTC: a "cubin" names its source and architecture. */

struct Program {
  std::string name, cubin;
};

EXPORT int nvrtcVersion(int *major, int *minor) {
  *major = 13;
  *minor = 0;
  return 0;
}
EXPORT const char *nvrtcGetErrorString(int) { return "NVRTC_ERROR_COMPILATION"; }
EXPORT int nvrtcCreateProgram(void **program, const char *, const char *name, int, const char *const *,
                              const char *const *) {
  *program = new Program{name, ""};
  return 0;
}
EXPORT int nvrtcDestroyProgram(void **program) {
  delete static_cast<Program *>(*program);
  *program = nullptr;
  return 0;
}
EXPORT int nvrtcCompileProgram(void *program, int count, const char *const *options) {
  constexpr const char *kArchitecture = "--gpu-architecture=";
  if (takes_fault("nvrtcCompileProgram")) return 6;
  for (int i = 0; i < count; ++i)
    if (strncmp(options[i], kArchitecture, strlen(kArchitecture)) == 0) {
      auto *compiled = static_cast<Program *>(program);
      compiled->cubin = "cubin " + compiled->name + " " + (options[i] + strlen(kArchitecture));
      ++faults.compiles;
      return 0;
    }
  return 5;
}
EXPORT int nvrtcGetCUBINSize(void *program, size_t *size) {
  *size = static_cast<Program *>(program)->cubin.size() + 1;
  return 0;
}
EXPORT int nvrtcGetCUBIN(void *program, char *cubin) {
  const std::string &text = static_cast<Program *>(program)->cubin;
  memcpy(cubin, text.c_str(), text.size() + 1);
  return 0;
}
EXPORT int nvrtcGetProgramLogSize(void *, size_t *size) {
  *size = sizeof("log of the compiler");
  return 0;
}
EXPORT int nvrtcGetProgramLog(void *, char *log) {
  strcpy(log, "log of the compiler");
  return 0;
}

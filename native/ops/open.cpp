/* ops_open, ops_last_error: the libraries behind the operations. */
#include <dlfcn.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <mutex>

#include "arguments.h"
#include "cuda.h"
#include "opened.h"

namespace chagres::ops {
namespace {

std::mutex open_mutex;
std::atomic<const Libraries *> opened{nullptr}; /* never freed: kernels run until the process ends */

int open_failure(const char *argument, const std::string &problem) {
  return fail(OPS_INVALID_ARGUMENT, std::string("ops_open: ") + argument + ": " + problem);
}

std::string find_cuda(const char *path, CudaRuntime &cuda) {
  return Opened(path)
      .find("cudaGetDevice", cuda.get_device)
      .find("cudaDeviceGetAttribute", cuda.device_get_attribute)
      .find("cudaGetErrorName", cuda.get_error_name)
      .find("cudaGetErrorString", cuda.get_error_string)
      .find("cudaGetLastError", cuda.get_last_error)
      .find("cudaLibraryLoadData", cuda.library_load_data)
      .find("cudaLibraryGetKernel", cuda.library_get_kernel)
      .find("cudaKernelSetAttributeForDevice", cuda.kernel_set_attribute_for_device)
      .find("cudaLaunchKernel", cuda.launch_kernel)
      .find("cudaMalloc", cuda.malloc)
      .find("cudaMallocAsync", cuda.malloc_async)
      .find("cudaFreeAsync", cuda.free_async)
      .problem();
}

std::string find_nvrtc(const char *path, Nvrtc &nvrtc) {
  return Opened(path)
      .find("nvrtcVersion", nvrtc.version)
      .find("nvrtcGetErrorString", nvrtc.get_error_string)
      .find("nvrtcCreateProgram", nvrtc.create_program)
      .find("nvrtcDestroyProgram", nvrtc.destroy_program)
      .find("nvrtcCompileProgram", nvrtc.compile_program)
      .find("nvrtcGetCUBINSize", nvrtc.get_cubin_size)
      .find("nvrtcGetCUBIN", nvrtc.get_cubin)
      .find("nvrtcGetProgramLogSize", nvrtc.get_program_log_size)
      .find("nvrtcGetProgramLog", nvrtc.get_program_log)
      .problem();
}

/* NVRTC opens the library of its built-in functions by bare name, which is not found if both are in a folder outside
 * the search path. So it is opened here by path before NVRTC asks for it. Otherwise the system's search finds it. */
void open_builtins(const Libraries &found) {
  const size_t slash = found.nvrtc_path.rfind('/');
  const std::string folder = slash == std::string::npos ? "" : found.nvrtc_path.substr(0, slash + 1);
  const std::string path = folder + format("libnvrtc-builtins.so.%d.%d", found.nvrtc_major, found.nvrtc_minor);
  dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
}

/* Creates a folder and its parents. */
std::string create_folder(const std::string &path) {
  for (size_t slash = path.find('/', 1);; slash = path.find('/', slash + 1)) {
    const std::string part = path.substr(0, slash);
    if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST && slash == std::string::npos)
      return "cannot create " + part + ": " + strerror(errno);
    if (slash == std::string::npos) break;
  }
  struct stat status;
  if (stat(path.c_str(), &status) != 0) return "cannot create " + path + ": " + strerror(errno);
  return S_ISDIR(status.st_mode) ? "" : path + " is no folder";
}

int open_libraries(Libraries &found) {
  std::string problem = find_cuda(found.cuda_runtime_path.c_str(), found.cuda);
  if (!problem.empty()) return open_failure("cuda_runtime", problem);
  problem = find_nvrtc(found.nvrtc_path.c_str(), found.nvrtc);
  if (!problem.empty()) return open_failure("nvrtc", problem);
  const int result = found.nvrtc.version(&found.nvrtc_major, &found.nvrtc_minor);
  if (result != 0) return open_failure("nvrtc", found.nvrtc.get_error_string(result));
  open_builtins(found);
  problem = create_folder(found.cache_directory);
  return problem.empty() ? OPS_SUCCESS : open_failure("cache_directory", problem);
}

bool same_paths(const Libraries &a, const Libraries &b) {
  return a.cuda_runtime_path == b.cuda_runtime_path && a.nvrtc_path == b.nvrtc_path &&
         a.include_directory == b.include_directory && a.cache_directory == b.cache_directory;
}

}  // namespace

const Libraries *libraries() { return opened.load(std::memory_order_acquire); }

int cuda_failure(const char *function, const char *call, int error) {
  const CudaRuntime &cuda = libraries()->cuda;
  const int status = fail(OPS_CUDA_ERROR, format("%s: %s failed with code %d (%s): %s", function, call, error,
                                                 cuda.get_error_name(error), cuda.get_error_string(error)));
  cuda.get_last_error();
  return status;
}

int64_t known_bytes(const void *) { return INT64_MAX; }

int not_open(const char *function) {
  return fail(OPS_NOT_OPEN, std::string(function) + ": ops_open has not succeeded in this process");
}

}  // namespace chagres::ops

using namespace chagres::ops;

int ops_open(const char *cuda_runtime, const char *nvrtc, const char *include_directory, const char *cache_directory) try {
  Arguments arguments("ops_open");
  if (cuda_runtime == nullptr) arguments.refuse("cuda_runtime", "null", "the path of the CUDA runtime library");
  if (nvrtc == nullptr) arguments.refuse("nvrtc", "null", "the path of the NVRTC library");
  if (cache_directory == nullptr) arguments.refuse("cache_directory", "null", "a folder for compiled kernels");
  if (arguments.wrong()) return arguments.status();

  std::lock_guard<std::mutex> lock(open_mutex);
  auto found = std::make_unique<Libraries>();
  found->cuda_runtime_path = cuda_runtime;
  found->nvrtc_path = nvrtc;
  found->include_directory = include_directory == nullptr ? "" : include_directory;
  found->cache_directory = cache_directory;
  if (const Libraries *before = libraries()) {
    if (same_paths(*before, *found)) return OPS_SUCCESS;
    return open_failure("already open", "with " + before->cuda_runtime_path + ", " + before->nvrtc_path + " and " +
                                            before->cache_directory + "; a process has one set of libraries");
  }
  const int status = open_libraries(*found);
  if (status == OPS_SUCCESS) opened.store(found.release(), std::memory_order_release);
  return status;
} OPS_CATCH

const char *ops_last_error(void) { return error_text().c_str(); }

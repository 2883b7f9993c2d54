#include "cublas.h"

#include <atomic>
#include <memory>
#include <mutex>

#include "opened.h"

namespace chagres::ops::cublas {
namespace {

constexpr const char *kName = "libcublasLt.so.13";

std::mutex open_mutex;
std::atomic<const Library *> opened{nullptr}; /* never freed: kernels run until the process ends */

Opened open_cublas(const Libraries &libraries) {
  Opened present(kName, RTLD_NOW | RTLD_NOLOAD);
  if (present.is_open()) return present;
  const size_t slash = libraries.cuda_runtime_path.rfind('/');
  if (slash != std::string::npos) {
    Opened beside(libraries.cuda_runtime_path.substr(0, slash + 1) + kName);
    if (beside.is_open()) return beside;
  }
  return Opened(kName);
}

std::string find_matmul(Opened opened, Library &found) {
  return opened.find("cublasLtGetVersion", found.version)
      .find("cublasLtGetStatusName", found.status_name)
      .find("cublasLtCreate", found.create)
      .find("cublasLtMatmulDescCreate", found.descriptor_create)
      .find("cublasLtMatmulDescDestroy", found.descriptor_destroy)
      .find("cublasLtMatmulDescSetAttribute", found.descriptor_set)
      .find("cublasLtMatrixLayoutCreate", found.layout_create)
      .find("cublasLtMatrixLayoutDestroy", found.layout_destroy)
      .find("cublasLtMatmulPreferenceCreate", found.preference_create)
      .find("cublasLtMatmulPreferenceDestroy", found.preference_destroy)
      .find("cublasLtMatmulPreferenceSetAttribute", found.preference_set)
      .find("cublasLtMatmulAlgoGetHeuristic", found.heuristic)
      .find("cublasLtMatmulAlgoCheck", found.check)
      .find("cublasLtMatmul", found.matmul)
      .problem();
}

std::string find_clock(Opened opened, Library &found) {
  return opened.find("cudaEventCreate", found.event_create)
      .find("cudaEventDestroy", found.event_destroy)
      .find("cudaEventRecord", found.event_record)
      .find("cudaEventSynchronize", found.event_synchronize)
      .find("cudaEventElapsedTime", found.event_elapsed)
      .find("cudaStreamIsCapturing", found.is_capturing)
      .find("cudaGetDeviceProperties", found.device_properties)
      .problem();
}

}  // namespace

const Library *library(const char *function, int &status) {
  status = OPS_SUCCESS;
  if (const Library *found = opened.load(std::memory_order_acquire)) return found;
  const Libraries *libraries = chagres::ops::libraries();
  if (libraries == nullptr) {
    status = not_open(function);
    return nullptr;
  }
  std::lock_guard<std::mutex> lock(open_mutex);
  if (const Library *found = opened.load(std::memory_order_acquire)) return found;
  auto found = std::make_unique<Library>();
  std::string problem = find_matmul(open_cublas(*libraries), *found);
  if (problem.empty()) problem = find_clock(Opened(libraries->cuda_runtime_path), *found);
  if (!problem.empty()) {
    status = fail(OPS_NOT_OPEN, format("%s: cuBLASLt cannot be had: %s", function, problem.c_str()));
    return nullptr;
  }
  opened.store(found.get(), std::memory_order_release);
  return found.release();
}

int failure(const char *function, const Library &library, const char *call, int status) {
  return fail(OPS_CUDA_ERROR,
              format("%s: %s failed with code %d (%s)", function, call, status, library.status_name(status)));
}

}  // namespace chagres::ops::cublas

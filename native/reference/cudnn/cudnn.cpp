/* Versions, names of codes, and the text of the last refusal. The backend is in the files beside this one; functions
 * that are in none are in unsupported.cpp.
 */
#include <algorithm>
#include <cstdio>
#include <iterator>
#include <new>

#include "cudnn/backend.h"

namespace chagres::reference {

namespace {

constexpr size_t kVersion = 91900;
constexpr size_t kCudartVersion = 13000;

struct StatusName {
  int code;
  const char *name;
};

/* cudnnStatus_t of cuDNN 9.19, by code. */
constexpr StatusName kStatusNames[] = {
    {0, "CUDNN_STATUS_SUCCESS"},
    {1001, "CUDNN_STATUS_NOT_INITIALIZED"},
    {1002, "CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH"},
    {1003, "CUDNN_STATUS_SERIALIZATION_VERSION_MISMATCH"},
    {1004, "CUDNN_STATUS_DEPRECATED"},
    {1005, "CUDNN_STATUS_LICENSE_ERROR"},
    {1006, "CUDNN_STATUS_RUNTIME_IN_PROGRESS"},
    {1007, "CUDNN_STATUS_RUNTIME_FP_OVERFLOW"},
    {1008, "CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"},
    {2000, "CUDNN_STATUS_BAD_PARAM"},
    {2002, "CUDNN_STATUS_BAD_PARAM_NULL_POINTER"},
    {2003, "CUDNN_STATUS_BAD_PARAM_MISALIGNED_POINTER"},
    {2004, "CUDNN_STATUS_BAD_PARAM_NOT_FINALIZED"},
    {2005, "CUDNN_STATUS_BAD_PARAM_OUT_OF_BOUND"},
    {2006, "CUDNN_STATUS_BAD_PARAM_SIZE_INSUFFICIENT"},
    {2007, "CUDNN_STATUS_BAD_PARAM_STREAM_MISMATCH"},
    {2008, "CUDNN_STATUS_BAD_PARAM_SHAPE_MISMATCH"},
    {2009, "CUDNN_STATUS_BAD_PARAM_DUPLICATED_ENTRIES"},
    {2010, "CUDNN_STATUS_BAD_PARAM_ATTRIBUTE_TYPE"},
    {2011, "CUDNN_STATUS_BAD_PARAM_CUDA_GRAPH_MISMATCH"},
    {2012, "CUDNN_STATUS_BAD_PARAM_DESCRIPTOR_TYPE"},
    {3000, "CUDNN_STATUS_NOT_SUPPORTED"},
    {3001, "CUDNN_STATUS_NOT_SUPPORTED_GRAPH_PATTERN"},
    {3002, "CUDNN_STATUS_NOT_SUPPORTED_SHAPE"},
    {3003, "CUDNN_STATUS_NOT_SUPPORTED_DATA_TYPE"},
    {3004, "CUDNN_STATUS_NOT_SUPPORTED_LAYOUT"},
    {3005, "CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDA_DRIVER"},
    {3006, "CUDNN_STATUS_NOT_SUPPORTED_INCOMPATIBLE_CUDART"},
    {3007, "CUDNN_STATUS_NOT_SUPPORTED_ARCH_MISMATCH"},
    {3008, "CUDNN_STATUS_NOT_SUPPORTED_RUNTIME_PREREQUISITE_MISSING"},
    {3009, "CUDNN_STATUS_NOT_SUPPORTED_SUBLIBRARY_UNAVAILABLE"},
    {3010, "CUDNN_STATUS_NOT_SUPPORTED_SHARED_MEMORY_INSUFFICIENT"},
    {3011, "CUDNN_STATUS_NOT_SUPPORTED_PADDING"},
    {3012, "CUDNN_STATUS_NOT_SUPPORTED_BAD_LAUNCH_PARAM"},
    {3013, "CUDNN_STATUS_NOT_SUPPORTED_CUDA_GRAPH_NATIVE_API"},
    {3014, "CUDNN_STATUS_NOT_SUPPORTED_INVALID_DYNAMIC_SHAPE"},
    {4000, "CUDNN_STATUS_INTERNAL_ERROR"},
    {4001, "CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED"},
    {4002, "CUDNN_STATUS_INTERNAL_ERROR_UNEXPECTED_VALUE"},
    {4003, "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"},
    {4004, "CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"},
    {4005, "CUDNN_STATUS_INTERNAL_ERROR_BAD_LAUNCH_PARAM"},
    {4006, "CUDNN_STATUS_INTERNAL_ERROR_TEXTURE_CREATION_FAILED"},
    {5000, "CUDNN_STATUS_EXECUTION_FAILED"},
    {5001, "CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER"},
    {5002, "CUDNN_STATUS_EXECUTION_FAILED_CUBLAS"},
    {5003, "CUDNN_STATUS_EXECUTION_FAILED_CUDART"},
    {5004, "CUDNN_STATUS_EXECUTION_FAILED_CURAND"},
};

thread_local std::string last_error;

}  // namespace

void keep_cudnn_error(const std::string &error) { last_error = error; }

namespace cudnn {

namespace {

/* Without a text where there is no memory for it. */
void keep_text(const char *message) noexcept try {
  last_error = message;
} catch (...) {
  last_error.clear();
}

}  // namespace

int caught() noexcept {
  try {
    throw;
  } catch (const Refusal &refusal) {
    keep_text(refusal.what());
    return refusal.status();
  } catch (const std::bad_alloc &) {
    keep_text("the host has no memory for it");
    return kHostAllocationFailed;
  } catch (const std::exception &failure) {
    keep_text(failure.what());
    return kInternalError;
  } catch (...) {
    keep_text("");
    return kInternalError;
  }
}

}  // namespace cudnn

}  // namespace chagres::reference

using namespace chagres::reference;

CHAGRES_EXPORT size_t cudnnGetVersion(void) { return kVersion; }

CHAGRES_EXPORT size_t cudnnGetMaxDeviceVersion(void) { return kVersion; }

CHAGRES_EXPORT size_t cudnnGetCudartVersion(void) { return kCudartVersion; }

CHAGRES_EXPORT const char *cudnnGetErrorString(int status) {
  const auto *found = std::lower_bound(std::begin(kStatusNames), std::end(kStatusNames), status,
                                       [](const StatusName &entry, int wanted) { return entry.code < wanted; });
  return found != std::end(kStatusNames) && found->code == status ? found->name : "CUDNN_UNKNOWN_STATUS";
}

/* cuDNN forgets the text when it has been asked for. */
CHAGRES_EXPORT void cudnnGetLastErrorString(char *message, size_t size) {
  if (message == nullptr || size == 0) return;
  std::snprintf(message, size, "%s", last_error.c_str());
  last_error.clear();
}

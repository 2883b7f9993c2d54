/*
 * What the files of the CUDA runtime share. Types are our own with the binary interface of CUDA 13.0, so that no CUDA
 * header is needed; streams are synchronous: work is done when the call returns, but for what a capture records.
 */
#ifndef CHAGRES_CUDA_H
#define CHAGRES_CUDA_H

#include <memory>
#include <mutex>
#include <unordered_set>

#include "runtime/reference.h"

typedef int cudaError_t;

namespace chagres::reference {

enum CudaError {
  kCudaSuccess = 0,
  kCudaInvalidValue = 1,
  kCudaMemoryAllocation = 2,
  kCudaInvalidPitchValue = 12,
  kCudaInvalidMemcpyDirection = 21,
  kCudaInvalidDevice = 101,
  kCudaInvalidResourceHandle = 400,
  kCudaIllegalState = 401,
  kCudaPeerAccessAlreadyEnabled = 704,
  kCudaPeerAccessNotEnabled = 705,
  kCudaHostMemoryAlreadyRegistered = 712,
  kCudaHostMemoryNotRegistered = 713,
  kCudaLaunchFailure = 719,
  kCudaNotSupported = 801,
  kCudaStreamCaptureUnsupported = 900,
  kCudaStreamCaptureInvalidated = 901,
  kCudaStreamCaptureMerge = 902,
  kCudaStreamCaptureUnmatched = 903,
  kCudaStreamCaptureUnjoined = 904,
  kCudaStreamCaptureIsolation = 905,
  kCudaStreamCaptureImplicit = 906,
  kCudaCapturedEvent = 907,
  kCudaStreamCaptureWrongThread = 908,
  kCudaUnknown = 999,
};

/* Keeps the code for cudaGetLastError of this thread and returns it. */
cudaError_t cuda_status(int code);

/* What cudaGetErrorString answers for the code. */
const char *cuda_error_text(int code);

/* Sets what cudaGetErrorString says on this thread of a graph whose launch failed. */
void keep_launch_failure(const char *refused);

/* To be called inside a catch: the status of what was thrown. */
cudaError_t cuda_caught() noexcept;

/* Ends every exported function, so that none throws into C: `cudaError_t cudaMalloc(…) try { … } CHAGRES_CUDA_CATCH`. */
#define CHAGRES_CUDA_CATCH                      \
  catch (...) {                                 \
    return ::chagres::reference::cuda_caught(); \
  }

/* Sets what ncclGetLastError answers on this thread. */
void keep_nccl_error(const std::string &error);

/* Sets what cudnnGetLastErrorString answers on this thread. */
void keep_cudnn_error(const std::string &error);

/* Keeps the name of a function that the reference lacks, for reference_last_unsupported(). */
void keep_unsupported(const char *function);
const char *last_unsupported_function(); /* "" when there was none */

int device_count();
int current_device(); /* of this thread */
inline bool is_device(int device) { return device >= 0 && device < device_count(); }

/* Device memory in bytes: the machine's, or CHAGRES_REFERENCE_MEMORY. */
size_t device_memory();
size_t device_memory_used(int device);
void free_device_memory(int device);
int allocate_device_memory(void **pointer, size_t size); /* as cudaMalloc; a CudaError */
int release_device_memory(void *pointer);                /* as cudaFree */

/* Bytes from the pointer to the end of its allocation or registered range; 0 outside of any. */
size_t accessible_bytes(const void *pointer);

/* Whether `stream` is null, one of the two predefined streams or a living one. */
bool is_stream(const void *stream);

/* Whether the legacy stream waits for this one. */
bool is_blocking_stream(const void *stream);

/* Whether the event lives and was recorded outside of captures. */
bool was_recorded(const void *event);

/* Living objects behind opaque handles. */
template <class Object>
class Objects {
 public:
  /* The object is whole when `each` on another thread first sees it. */
  template <class... Parts>
  Object *add(Parts &&...parts) {
    std::unique_ptr<Object> object(new Object{std::forward<Parts>(parts)...});
    std::lock_guard<std::mutex> lock(mutex_);
    living_.insert(object.get());
    return object.release();
  }
  /* null when the handle is not alive. */
  Object *find(const void *handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = living_.find(static_cast<Object *>(const_cast<void *>(handle)));
    return found == living_.end() ? nullptr : *found;
  }
  template <class Visit>
  void each(const Visit &visit) {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const Object *object : living_) visit(*object);
  }
  bool remove(const void *handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = living_.find(static_cast<Object *>(const_cast<void *>(handle)));
    if (found == living_.end()) return false;
    Object *object = *found;
    living_.erase(found);
    delete object;
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_set<Object *> living_;
};

}  // namespace chagres::reference

#endif /* CHAGRES_CUDA_H */

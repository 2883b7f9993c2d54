/* Streams and events of the CUDA runtime. Work is done, or recorded, when a call returns: waiting never waits. */
#include <atomic>
#include <chrono>

#include "cuda/capture.h"

namespace chagres::reference {

namespace {

constexpr unsigned int kStreamFlags = 1;                  /* cudaStreamNonBlocking */
constexpr unsigned int kEventDisableTiming = 2;
constexpr unsigned int kEventFlags = 7;                   /* blocking sync, disable timing, interprocess */
constexpr int kGreatestPriority = -5;

struct Stream {
  int device;
  int priority;
  unsigned int flags;
  unsigned long long id;
  bool counts;
};

struct Event {
  int device;
  unsigned int flags;
  std::atomic<int64_t> recorded_at{-1}; /* nanoseconds; -1: never recorded */
};

Objects<Stream> &streams() {
  static auto *objects = new Objects<Stream>;
  return *objects;
}

Objects<Event> &events() {
  static auto *objects = new Objects<Event>;
  return *objects;
}

/* Null, cudaStreamLegacy and cudaStreamPerThread. */
bool is_predefined(const void *stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

int64_t now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int mark(void *handle, const void *stream) {
  Event *event = events().find(handle);
  if (event == nullptr || !is_stream(stream)) return kCudaInvalidResourceHandle;
  if (!capture_event(handle, stream)) event->recorded_at = now();
  return kCudaSuccess;
}

int known(const void *stream) { return cuda_status(is_stream(stream) ? kCudaSuccess : kCudaInvalidResourceHandle); }

}  // namespace

bool is_blocking_stream(const void *stream) {
  const Stream *found = streams().find(stream);
  return found != nullptr && (found->flags & kStreamFlags) == 0;
}

bool is_counting_stream(const void *stream) {
  const Stream *found = streams().find(stream);
  return found != nullptr && found->counts;
}

bool was_recorded(const void *event) {
  const Event *found = events().find(event);
  return found != nullptr && found->recorded_at >= 0;
}

bool is_stream(const void *stream) { return is_predefined(stream) || streams().find(stream) != nullptr; }

}  // namespace chagres::reference

using namespace chagres::reference;

CHAGRES_EXPORT cudaError_t cudaStreamCreateWithPriority(void **stream, unsigned int flags, int priority) try {
  static std::atomic<unsigned long long> next_id{3};
  if (stream == nullptr || flags > kStreamFlags) return cuda_status(kCudaInvalidValue);
  Stream *created = streams().add();
  *created = {current_device(), std::min(0, std::max(kGreatestPriority, priority)), flags, next_id++, thread_counts};
  if (thread_counts) ++captures_under_way;
  *stream = created;
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

/* Makes the calling thread count, or work again: no function of CUDA. Answers what it did before. */
CHAGRES_EXPORT int reference_count_only(int counts) {
  const bool before = thread_counts;
  thread_counts = counts != 0;
  return before;
}

CHAGRES_EXPORT cudaError_t cudaStreamCreateWithFlags(void **stream, unsigned int flags) try {
  return cudaStreamCreateWithPriority(stream, flags, 0);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaStreamCreate(void **stream) try {
  return cudaStreamCreateWithPriority(stream, 0, 0);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaStreamDestroy(void *stream) try {
  forget_capture(stream);
  if (is_counting_stream(stream)) --captures_under_way;
  return cuda_status(streams().remove(stream) ? kCudaSuccess : kCudaInvalidResourceHandle);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaStreamSynchronize(const void *stream) try {
  const int code = refuse_while_capturing(stream);
  return code == kCudaSuccess ? known(stream) : cuda_status(code);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaStreamQuery(const void *stream) try {
  const int code = refuse_while_capturing(stream);
  return code == kCudaSuccess ? known(stream) : cuda_status(code);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaStreamGetPriority(const void *stream, int *priority) try {
  const Stream *found = streams().find(stream);
  if (priority == nullptr) return cuda_status(kCudaInvalidValue);
  *priority = found == nullptr ? 0 : found->priority;
  return known(stream);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaStreamGetFlags(const void *stream, unsigned int *flags) try {
  const Stream *found = streams().find(stream);
  if (flags == nullptr) return cuda_status(kCudaInvalidValue);
  *flags = found == nullptr ? 0 : found->flags;
  return known(stream);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaStreamGetId(const void *stream, unsigned long long *id) try {
  const Stream *found = streams().find(stream);
  if (id == nullptr) return cuda_status(kCudaInvalidValue);
  *id = found == nullptr ? reinterpret_cast<uintptr_t>(stream) : found->id;
  return known(stream);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaStreamGetDevice(const void *stream, int *device) try {
  const Stream *found = streams().find(stream);
  if (device == nullptr) return cuda_status(kCudaInvalidValue);
  *device = found == nullptr ? current_device() : found->device;
  return known(stream);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaStreamWaitEvent(const void *stream, const void *event, unsigned int flags) try {
  if (flags > 1) return cuda_status(kCudaInvalidValue);
  if (events().find(event) == nullptr || !is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return cuda_status(capture_wait(stream, event));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaLaunchHostFunc(const void *stream, void (*function)(void *), void *data) try {
  if (function == nullptr) return cuda_status(kCudaInvalidValue);
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  if (is_capturing(stream) && !is_counting_stream(stream)) record(stream, [=](void *) { function(data); }, kHostNode);
  else function(data);
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaStreamAddCallback(void *stream, void (*function)(void *, cudaError_t, void *), void *data,
                                                 unsigned int flags) try {
  if (function == nullptr || flags != 0) return cuda_status(kCudaInvalidValue);
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  const int code = refuse_while_capturing(stream);
  if (code != kCudaSuccess) return cuda_status(code);
  function(stream, kCudaSuccess, data);
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaEventCreateWithFlags(void **event, unsigned int flags) try {
  if (event == nullptr || flags > kEventFlags) return cuda_status(kCudaInvalidValue);
  Event *created = events().add();
  created->device = current_device();
  created->flags = flags;
  *event = created;
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaEventCreate(void **event) try {
  return cudaEventCreateWithFlags(event, 0);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaEventDestroy(void *event) try {
  forget_event(event);
  return cuda_status(events().remove(event) ? kCudaSuccess : kCudaInvalidResourceHandle);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaEventRecord(void *event, const void *stream) try {
  return cuda_status(mark(event, stream));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaEventRecordWithFlags(void *event, const void *stream, unsigned int flags) try {
  if (flags > 1) return cuda_status(kCudaInvalidValue);
  if (flags == 0 || !is_stream(stream) || !is_capturing(stream) || is_counting_stream(stream)) return cuda_status(mark(event, stream));
  /* cudaEventRecordExternal: a node of the graph, which marks the event at each launch. */
  if (events().find(event) == nullptr) return cuda_status(kCudaInvalidResourceHandle);
  const auto call = [event](void *into) {
    if (const int code = mark(event, into); code != kCudaSuccess) throw CudaFailure(code);
  };
  record(stream, call, kEventNode);
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaEventQuery(const void *event) try {
  return cuda_status(events().find(event) == nullptr ? static_cast<int>(kCudaInvalidResourceHandle) : refuse_captured(event));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaEventSynchronize(const void *event) try {
  return cudaEventQuery(event);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaEventElapsedTime(float *milliseconds, const void *start, const void *end) try {
  if (milliseconds == nullptr) return cuda_status(kCudaInvalidValue);
  const Event *first = events().find(start);
  const Event *last = events().find(end);
  if (first == nullptr || last == nullptr || ((first->flags | last->flags) & kEventDisableTiming) != 0 ||
      first->recorded_at < 0 || last->recorded_at < 0) {
    return cuda_status(kCudaInvalidResourceHandle);
  }
  *milliseconds = static_cast<float>(static_cast<double>(last->recorded_at - first->recorded_at) * 1e-6);
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

/* What captures record, who takes part in them, and what they forbid. */
#include "cuda/capture.h"

#include <map>
#include <thread>
#include <unordered_map>

namespace chagres::reference {

namespace {

enum Mode { kGlobal = 0, kThreadLocal = 1, kRelaxed = 2 };
enum Status { kNone = 0, kActive = 1, kInvalidated = 2 };

/* The work that is known to come before: for each stream, the number of nodes up to the latest one of it. */
using Reached = std::map<const void *, size_t>;

struct Capture {
  unsigned long long id;
  const void *origin;
  int mode;
  std::thread::id thread;
  bool invalidated;
  std::vector<Node> nodes;
  std::unordered_map<const void *, Reached> streams; /* by stream: the work that its next node comes after */
};

struct CapturedEvent {
  unsigned long long capture;
  Reached reached;
};

std::mutex mutex;
std::map<unsigned long long, Capture> captures;
std::unordered_map<const void *, CapturedEvent> captured_events;
thread_local int thread_mode = kGlobal;

Capture *capture_of(const void *stream) {
  for (auto &[id, capture] : captures) {
    if (capture.streams.count(stream) != 0) return &capture;
  }
  return nullptr;
}

/* The legacy stream waits for every stream that was not created as non-blocking. */
bool is_legacy(const void *stream) { return reinterpret_cast<uintptr_t>(stream) <= 1; }

Capture *blocking_capture() {
  for (auto &[id, capture] : captures) {
    for (const auto &[stream, reached] : capture.streams) {
      if (is_blocking_stream(stream)) return &capture;
    }
  }
  return nullptr;
}

bool forbids_unsafe(const Capture &capture) {
  if (thread_mode == kRelaxed || capture.mode == kRelaxed) return false;
  return capture.thread == std::this_thread::get_id() || (thread_mode == kGlobal && capture.mode == kGlobal);
}

void merge(Reached &into, const Reached &more) {
  for (const auto &[stream, nodes] : more) into[stream] = std::max(into[stream], nodes);
}

void end(unsigned long long id) {
  captures.erase(id);
  for (auto event = captured_events.begin(); event != captured_events.end();) {
    event = event->second.capture == id ? captured_events.erase(event) : std::next(event);
  }
  --captures_under_way;
}

/* Whether the origin comes after all work of the other streams. */
bool is_joined(const Capture &capture) {
  const Reached &reached = capture.streams.at(capture.origin);
  for (const auto &[stream, own] : capture.streams) {
    if (stream == capture.origin) continue;
    const auto latest = own.find(stream);
    const auto seen = reached.find(stream);
    if (seen == reached.end() || (latest != own.end() && seen->second < latest->second)) return false;
  }
  return true;
}

}  // namespace

std::atomic<int> captures_under_way{0};
thread_local bool thread_counts = false;

CudaFailure::CudaFailure(int code) : std::runtime_error(text("CUDA error ", code, ": ", cuda_error_text(code))), code_(code) {}

bool stream_captures(const void *stream) {
  if (is_counting_stream(stream)) return true;
  std::lock_guard<std::mutex> lock(mutex);
  if (is_legacy(stream)) {
    Capture *implicit = blocking_capture();
    if (implicit == nullptr) return false;
    implicit->invalidated = true;
    throw CudaFailure(kCudaStreamCaptureImplicit);
  }
  const Capture *capture = capture_of(stream);
  if (capture == nullptr) return false;
  if (capture->invalidated) throw CudaFailure(kCudaStreamCaptureInvalidated);
  return true;
}

void record(const void *stream, std::function<void(void *stream)> call, NodeType type) {
  std::lock_guard<std::mutex> lock(mutex);
  Capture *capture = capture_of(stream);
  if (is_counting_stream(stream)) {
    if (capture != nullptr) capture->streams[stream][stream] = capture->nodes.size();
    return;
  }
  if (capture == nullptr || capture->invalidated) throw CudaFailure(kCudaStreamCaptureInvalidated);
  capture->nodes.push_back({std::move(call), type});
  capture->streams[stream][stream] = capture->nodes.size();
}

int refuse_while_capturing() {
  if (captures_under_way == 0) return kCudaSuccess;
  std::lock_guard<std::mutex> lock(mutex);
  int code = kCudaSuccess;
  for (auto &[id, capture] : captures) {
    if (!forbids_unsafe(capture)) continue;
    capture.invalidated = true;
    code = kCudaStreamCaptureUnsupported;
  }
  return code;
}

int refuse_while_capturing(const void *stream) {
  if (captures_under_way == 0) return kCudaSuccess;
  std::lock_guard<std::mutex> lock(mutex);
  Capture *capture = is_legacy(stream) ? blocking_capture() : capture_of(stream);
  if (capture == nullptr) return kCudaSuccess;
  capture->invalidated = true;
  return is_legacy(stream) ? kCudaStreamCaptureImplicit : kCudaStreamCaptureUnsupported;
}

int refuse_captured(const void *event) {
  if (captures_under_way == 0) return kCudaSuccess;
  {
    std::lock_guard<std::mutex> lock(mutex);
    const auto found = captured_events.find(event);
    if (found != captured_events.end()) {
      captures.at(found->second.capture).invalidated = true;
      return kCudaCapturedEvent;
    }
  }
  return refuse_while_capturing();
}

bool capture_event(const void *event, const void *stream) {
  if (captures_under_way == 0) return false;
  const bool captures_now = stream_captures(stream);
  std::lock_guard<std::mutex> lock(mutex);
  captured_events.erase(event);
  const Capture *capture = captures_now ? capture_of(stream) : nullptr;
  if (capture == nullptr) return false;
  Reached reached = capture->streams.at(stream);
  reached.emplace(stream, 0);
  captured_events[event] = {capture->id, std::move(reached)};
  return true;
}

int capture_wait(const void *stream, const void *event) {
  if (captures_under_way == 0) return kCudaSuccess;
  const bool captures_now = stream_captures(stream);
  std::lock_guard<std::mutex> lock(mutex);
  const auto found = captured_events.find(event);
  if (found == captured_events.end()) {
    Capture *own = captures_now ? capture_of(stream) : nullptr;
    if (own == nullptr || !was_recorded(event)) return kCudaSuccess;
    own->invalidated = true;
    return kCudaStreamCaptureIsolation;
  }
  Capture &capture = captures.at(found->second.capture);
  if (capture.invalidated) return kCudaStreamCaptureInvalidated;
  if (is_legacy(stream)) {
    capture.invalidated = true;
    return kCudaStreamCaptureImplicit;
  }
  Capture *present = capture_of(stream);
  if (present != nullptr && present != &capture) {
    present->invalidated = true;
    capture.invalidated = true;
    return kCudaStreamCaptureMerge;
  }
  merge(capture.streams[stream], found->second.reached);
  return kCudaSuccess;
}

void forget_event(const void *event) {
  if (captures_under_way == 0) return;
  std::lock_guard<std::mutex> lock(mutex);
  captured_events.erase(event);
}

void forget_capture(const void *stream) {
  if (captures_under_way == 0) return;
  std::lock_guard<std::mutex> lock(mutex);
  Capture *capture = capture_of(stream);
  if (capture == nullptr) return;
  if (capture->origin == stream) {
    end(capture->id);
  } else {
    capture->invalidated = true;
    capture->streams.erase(stream);
  }
}

int begin_capture(const void *stream, int mode) {
  static unsigned long long next_id = 1;
  if (mode < kGlobal || mode > kRelaxed) return kCudaInvalidValue;
  if (!is_stream(stream)) return kCudaInvalidResourceHandle;
  if (is_legacy(stream)) return kCudaStreamCaptureUnsupported;
  std::lock_guard<std::mutex> lock(mutex);
  if (capture_of(stream) != nullptr) return kCudaIllegalState;
  Capture begun{next_id, stream, mode, std::this_thread::get_id(), false, {}, {}};
  begun.streams[stream];
  captures.emplace(next_id++, std::move(begun));
  ++captures_under_way;
  return kCudaSuccess;
}

int end_capture(const void *stream, std::vector<Node> *nodes) {
  if (!is_stream(stream)) return kCudaInvalidResourceHandle;
  std::lock_guard<std::mutex> lock(mutex);
  Capture *capture = capture_of(stream);
  if (capture == nullptr) return kCudaIllegalState;
  if (capture->origin != stream) {
    capture->invalidated = true;
    return kCudaStreamCaptureUnmatched;
  }
  if (capture->mode != kRelaxed && capture->thread != std::this_thread::get_id()) return kCudaStreamCaptureWrongThread;
  int code = kCudaSuccess;
  if (capture->invalidated) code = kCudaStreamCaptureInvalidated;
  else if (!is_joined(*capture)) code = kCudaStreamCaptureUnjoined;
  else *nodes = std::move(capture->nodes);
  end(capture->id);
  return code;
}

int exchange_capture_mode(int *mode) {
  if (mode == nullptr || *mode < kGlobal || *mode > kRelaxed) return kCudaInvalidValue;
  std::swap(*mode, thread_mode);
  return kCudaSuccess;
}

int capture_info(const void *stream, CaptureInfo *info) {
  *info = {kNone, 0, 0};
  if (!is_stream(stream)) return kCudaInvalidResourceHandle;
  if (captures_under_way == 0) return kCudaSuccess;
  std::lock_guard<std::mutex> lock(mutex);
  if (is_legacy(stream)) return blocking_capture() == nullptr ? kCudaSuccess : kCudaStreamCaptureImplicit;
  const Capture *capture = capture_of(stream);
  if (capture != nullptr) {
    *info = {capture->invalidated ? kInvalidated : kActive, capture->id, capture->nodes.size()};
  }
  return kCudaSuccess;
}

}  // namespace chagres::reference

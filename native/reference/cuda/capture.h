/*
 * Captures: while a stream captures, what is enqueued on it is recorded and not run.
 *
 * Everything that takes a stream asks here before it works. Where no stream of the process captures, that is one read of an
 * atomic number.
 *
 * A counting stream is like one that captures for ever and forgets what it records: its work has sizes and no results. What the
 * host compares or reads, up to kSmallCopy bytes, is still copied, so that programs go the way they always go.
 */
#ifndef CHAGRES_CAPTURE_H
#define CHAGRES_CAPTURE_H

#include <atomic>
#include <functional>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "cuda/cuda.h"

namespace chagres::reference {

/* cudaGraphNodeType */
enum NodeType { kKernelNode = 0, kMemcpyNode = 1, kMemsetNode = 2, kHostNode = 3, kGraphNode = 4, kEventNode = 7 };

/* A recorded call; it gets the stream that the graph is launched into. */
struct Node {
  std::function<void(void *stream)> run;
  NodeType type;
};

/* Thrown where a CUDA code must leave a function that returns none, or another library's. */
class CudaFailure : public std::runtime_error {
 public:
  explicit CudaFailure(int code);
  int code() const { return code_; }

 private:
  int code_;
};

/* Captures that were begun and not ended, and counting streams that live. */
extern std::atomic<int> captures_under_way;

constexpr size_t kSmallCopy = size_t{64} << 10;

/* Whether what this thread makes from now on only counts: memory has addresses and no pages that anyone has written. */
extern thread_local bool thread_counts;

/* Whether `stream` was made by a thread that counted. */
bool is_counting_stream(const void *stream);
inline bool is_counting(const void *stream) { return captures_under_way != 0 && is_counting_stream(stream); }

/* Whether work on `bytes` bytes of a stream is left out. */
inline bool leaves_out(const void *stream, size_t bytes) { return bytes > kSmallCopy && is_counting(stream); }

/* Whether work enqueued on `stream` is recorded. Throws CudaFailure where a capture forbids work on that stream. */
bool stream_captures(const void *stream);
inline bool is_capturing(const void *stream) { return captures_under_way != 0 && stream_captures(stream); }

/* Adds a call to what the stream records. */
void record(const void *stream, std::function<void(void *stream)> call, NodeType type = kKernelNode);

/* cudaErrorStreamCaptureUnsupported, with the captures that forbid it invalidated, for a call that is not safe while streams
 * capture: one that waits, allocates or copies at once. */
int refuse_while_capturing();

/* The same for a call that waits for the work of one stream. */
int refuse_while_capturing(const void *stream);

/* The same for a call that looks at an event: cudaErrorCapturedEvent where a capture has recorded it last. */
int refuse_captured(const void *event);

/* Tells a capture that an event is recorded in a stream; true when the stream captures. */
bool capture_event(const void *event, const void *stream);

/* Tells the captures that a stream waits for an event, which makes the stream join the event's capture. */
int capture_wait(const void *stream, const void *event);

void forget_event(const void *event);   /* which is destroyed */
void forget_capture(const void *stream); /* which is destroyed: its capture ends, and the graph is lost */

int begin_capture(const void *stream, int mode);
int end_capture(const void *stream, std::vector<Node> *nodes);
int exchange_capture_mode(int *mode);

struct CaptureInfo {
  int status; /* cudaStreamCaptureStatus */
  unsigned long long id;
  size_t nodes;
};
int capture_info(const void *stream, CaptureInfo *info);

/* An argument of a recorded call that can be copied by value: a number, or an address on the device. */
template <class T>
struct ByValue {
  T value;
  explicit ByValue(T argument) : value(argument) {}
  T get() const { return value; }
};

/* Records the call of `function` with these arguments, the last of which is the stream. False: the stream does not
 * capture, so that the caller works now. */
template <template <class> class Kept, class Result, class... Parameters, class... Arguments>
bool record_call(Result (*function)(Parameters...), Arguments... arguments) {
  const std::tuple<Arguments...> all(arguments...);
  constexpr size_t last = sizeof...(Arguments) - 1;
  const void *stream = std::get<last>(all);
  if (!is_capturing(stream)) return false;
  if (is_counting_stream(stream)) return true;
  using Stream = std::tuple_element_t<last, std::tuple<Arguments...>>;
  record(stream, [function, kept = std::tuple<Kept<Arguments>...>(Kept<Arguments>(arguments)...)](void *into) {
    const auto call = [&](const auto &...values) {
      auto now = std::make_tuple(values.get()...);
      std::get<last>(now) = static_cast<Stream>(into);
      return std::apply(function, now);
    };
    if constexpr (std::is_void_v<Result>) {
      std::apply(call, kept);
    } else if (const auto status = std::apply(call, kept); status != 0) {
      throw std::runtime_error(text("a call returned status ", static_cast<int>(status)));
    }
  });
  return true;
}

/* record_call for functions that take numbers and device addresses alone. */
template <class Result, class... Parameters, class... Arguments>
bool recorded_by_value(Result (*function)(Parameters...), Arguments... arguments) {
  return captures_under_way != 0 && record_call<ByValue>(function, arguments...);
}

/* The same for a function whose arguments lie in one struct of such values, of which the record keeps a copy:
 * call(problem, stream) repeats it, `what` names it where it fails. */
template <class Problem, class Call>
bool recorded_problem(const char *what, const Problem *problem, OpsStream stream, Call call) {
  if (!is_capturing(stream)) return false;
  record(stream, [what, call, copy = *problem](void *into) {
    const int status = call(&copy, static_cast<OpsStream>(into));
    if (status != 0) throw std::runtime_error(text(what, " returned status ", status));
  });
  return true;
}

}  // namespace chagres::reference

#endif /* CHAGRES_CAPTURE_H */

/* What ran when, for both libraries that export ops.h: ranges of host time (range.h) and what a GPU tells of its kernels. */
#ifndef CHAGRES_OPS_ACTIVITY_H
#define CHAGRES_OPS_ACTIVITY_H

#include <atomic>
#include <chrono>
#include <mutex>
#include <string>
#include <unordered_set>
#include <vector>

#include "arguments.h"

namespace chagres::ops::activity {

inline int64_t host_nanos() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/* Hears of ranges while a recording runs, on the thread that begins and ends them. */
struct Listener {
  int64_t (*now)();
  void (*entered)(int64_t range);
  void (*left)();
};

/* Collects records from any thread. Names are kept once each, until the next recording. */
class Recorder {
 public:
  static constexpr size_t kMost = size_t{1} << 22; /* 256 MiB of records: more than a few steps make */

  bool records() const { return recording_.load(std::memory_order_acquire); }

  bool begin(const Listener &listener) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (recording_) return false;
    records_.clear();
    names_.clear();
    dropped_ = 0;
    listener_ = listener;
    ++recording_number_;
    recording_.store(true, std::memory_order_release);
    return true;
  }

  /* Ranges that are open keep the end 0. */
  void end() {
    const std::lock_guard<std::mutex> lock(mutex_);
    recording_.store(false, std::memory_order_release);
  }

  /* Returns the index of the record, or -1 where there is no room. */
  int64_t add(const char *name, OpsActivity record) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (records_.size() >= kMost) return ++dropped_, -1;
    record.name = names_.insert(name == nullptr ? "" : name).first->c_str();
    records_.push_back(record);
    return static_cast<int64_t>(records_.size()) - 1;
  }

  void count_dropped(int64_t count) {
    const std::lock_guard<std::mutex> lock(mutex_);
    dropped_ += count;
  }

  void push_range(const char *name) {
    if (!records()) return;
    std::vector<Open> &open = open_ranges_of_thread();
    while (!open.empty() && open.back().recording != recording_number_) leave(open); /* of a recording that ended before they did */
    const int64_t number = ++last_range_;
    OpsActivity record{};
    record.begin = listener_.now();
    record.range = open.empty() ? 0 : open.back().number;
    record.number = number;
    record.stream = thread_number();
    record.kind = OPS_ACTIVITY_RANGE;
    open.push_back({recording_number_, number, add(name, record), listener_.left});
    if (listener_.entered != nullptr) listener_.entered(number);
  }

  void pop_range() {
    std::vector<Open> &open = open_ranges_of_thread();
    if (open.empty()) return; /* begun before the recording */
    const Open last = leave(open);
    if (last.recording != recording_number_ || !records()) return;
    const int64_t now = listener_.now();
    const std::lock_guard<std::mutex> lock(mutex_);
    if (last.index >= 0 && last.index < static_cast<int64_t>(records_.size())) records_[last.index].end = now;
  }

  std::vector<OpsActivity> &held() { return records_; } /* once the recording has ended */
  std::mutex &mutex() { return mutex_; }
  int64_t dropped() const { return dropped_; }
  int64_t now() const { return listener_.now(); }

 private:
  struct Open {
    int64_t recording;
    int64_t number;
    int64_t index;
    void (*left)();
  };

  static Open leave(std::vector<Open> &open) {
    const Open last = open.back();
    open.pop_back();
    if (last.left != nullptr) last.left();
    return last;
  }

  static std::vector<Open> &open_ranges_of_thread() {
    static thread_local std::vector<Open> open;
    return open;
  }

  int64_t thread_number() {
    static thread_local const int64_t number = ++last_thread_;
    return number;
  }

  std::mutex mutex_;
  std::atomic<bool> recording_{false};
  std::atomic<int64_t> recording_number_{0};
  std::atomic<int64_t> last_range_{0};
  std::atomic<int64_t> last_thread_{0};
  Listener listener_{host_nanos, nullptr, nullptr};
  std::vector<OpsActivity> records_;
  std::unordered_set<std::string> names_;
  int64_t dropped_ = 0;
};

/* Never destroyed: threads of a profiler may outlive the library's other statics. */
inline Recorder &recorder() {
  static Recorder *const only = new Recorder;
  return *only;
}

inline int check_begin(const char *cupti, const int64_t *now) {
  Arguments arguments("ops_activity_begin");
  if (cupti == nullptr) arguments.refuse("cupti", "null", "a path, or an empty text");
  if (now == nullptr) arguments.refuse("now", "null", "memory for a number");
  return arguments.status();
}

inline int refuse_second() {
  return fail(OPS_INVALID_ARGUMENT, "ops_activity_begin: a recording runs already; expected ops_activity_end before");
}

inline int check_end(const int64_t *count, const int64_t *dropped) {
  Arguments arguments("ops_activity_end");
  if (count == nullptr) arguments.refuse("count", "null", "memory for a number");
  if (dropped == nullptr) arguments.refuse("dropped", "null", "memory for a number");
  if (arguments.status() != OPS_SUCCESS) return arguments.status();
  if (recorder().records()) return OPS_SUCCESS;
  return fail(OPS_INVALID_ARGUMENT, "ops_activity_end: no recording runs; expected ops_activity_begin before");
}

inline void tell(int64_t *count, int64_t *dropped) {
  const std::lock_guard<std::mutex> lock(recorder().mutex());
  *count = static_cast<int64_t>(recorder().held().size());
  *dropped = recorder().dropped();
}

inline int read(OpsActivity *activities, int64_t count) {
  Arguments arguments("ops_activity_read");
  if (recorder().records())
    return fail(OPS_INVALID_ARGUMENT, "ops_activity_read: a recording runs; expected ops_activity_end before");
  const std::lock_guard<std::mutex> lock(recorder().mutex());
  const std::vector<OpsActivity> &held = recorder().held();
  arguments.between("count", count, 0, static_cast<int64_t>(held.size()));
  if (!arguments.wrong() && activities == nullptr && count > 0) arguments.refuse("activities", "null", "memory for them");
  if (arguments.status() != OPS_SUCCESS) return arguments.status();
  std::copy_n(held.begin(), count, activities);
  return OPS_SUCCESS;
}

}  // namespace chagres::ops::activity

#endif /* CHAGRES_OPS_ACTIVITY_H */

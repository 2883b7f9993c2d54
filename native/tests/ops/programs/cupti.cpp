/* A CUPTI as far as activities go. A test enqueues what never ran; records come in small buffers, on a thread of this library. */
#include "cupti_records.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <set>
#include <string>
#include <thread>
#include <vector>

using namespace chagres::ops::cupti;

namespace {

BufferRequested requested;
BufferCompleted completed;
std::set<uint32_t> enabled;
std::vector<std::string> pending; /* the bytes of records, in their order */
uint32_t last_call = 0;
uint64_t nanos = 1000;
Result refusal = kSuccess; /* what cuptiActivityEnable says */
thread_local std::vector<uint64_t> external_ids;

template <class Record>
void add(const Record &record, size_t bytes = sizeof(Record)) {
  std::string all(bytes, '\x5a'); /* what lies behind the fields that are read */
  std::memcpy(&all[0], &record, sizeof record);
  if (enabled.count(record.kind) != 0) pending.push_back(all);
}

/* Each buffer holds three records at most; those that hold none are given back, too. */
void deliver() {
  for (size_t next = 0; next <= pending.size();) {
    uint8_t *buffer = nullptr;
    size_t size = 0, most = 0;
    requested(&buffer, &size, &most);
    size_t used = 0;
    for (int i = 0; i < 3 && next < pending.size() && used + pending[next].size() <= size; ++i, ++next) {
      std::memcpy(buffer + used, pending[next].data(), pending[next].size());
      used += pending[next].size();
    }
    completed(nullptr, 0, buffer, size, used);
    if (used == 0) break;
  }
  pending.clear();
}

uint32_t call() {
  const uint32_t number = ++last_call;
  if (!external_ids.empty()) add(External{kExternalCorrelation, kCustom, external_ids.back(), number, 0});
  struct Api {
    uint32_t kind, callback;
    uint64_t start, end;
    uint32_t process, thread, correlation, result;
  };
  add(Api{kRuntime, 211, 1, 2, 0, 0, number, 0});
  return number;
}

size_t bytes_of(const uint8_t *record) {
  switch (*reinterpret_cast<const uint32_t *>(record)) {
    case kConcurrentKernel: return 216;
    case kMemcpy: return 128;
    case kMemset: return 104;
    case kExternalCorrelation: return sizeof(External);
    default: return 40;
  }
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT Result cuptiActivityRegisterCallbacks(BufferRequested request, BufferCompleted complete) {
  requested = request;
  completed = complete;
  return kSuccess;
}
EXPORT Result cuptiActivityEnable(Kind kind) {
  if (refusal == kSuccess) enabled.insert(kind);
  return refusal;
}
EXPORT Result cuptiActivityDisable(Kind kind) { return enabled.erase(kind), kSuccess; }
EXPORT Result cuptiActivityFlushAll(uint32_t) { return std::thread(deliver).join(), kSuccess; }
EXPORT Result cuptiActivityGetNextRecord(uint8_t *buffer, size_t valid, Activity **record) {
  uint8_t *next = *record == nullptr ? buffer : reinterpret_cast<uint8_t *>(*record) + bytes_of(reinterpret_cast<uint8_t *>(*record));
  if (next >= buffer + valid) return kMaxLimitReached;
  *record = reinterpret_cast<Activity *>(next);
  return kSuccess;
}
EXPORT Result cuptiActivityGetNumDroppedRecords(void *, uint32_t, size_t *dropped) { return *dropped = 0, kSuccess; }
EXPORT Result cuptiActivityPushExternalCorrelationId(int, uint64_t id) { return external_ids.push_back(id), kSuccess; }
EXPORT Result cuptiActivityPopExternalCorrelationId(int, uint64_t *last) {
  if (external_ids.empty()) return 22; /* CUPTI_ERROR_QUEUE_EMPTY */
  *last = external_ids.back();
  external_ids.pop_back();
  return kSuccess;
}
EXPORT Result cuptiGetTimestamp(uint64_t *now) { return *now = nanos += 10, kSuccess; }
EXPORT Result cuptiGetResultString(Result, const char **text) { return *text = "made up", kSuccess; }

/* What the test calls in the place of CUDA. */
EXPORT void made_up_kernel(const char *name, uint64_t start, uint64_t end, uint32_t device, uint32_t stream) {
  Kernel kernel{};
  kernel.kind = kConcurrentKernel;
  kernel.start = start;
  kernel.end = end;
  kernel.device = device;
  kernel.stream = stream;
  kernel.name = name;
  kernel.correlation = call();
  add(kernel, 216);
}
EXPORT void made_up_copy(uint8_t kind, uint64_t bytes, uint64_t start, uint64_t end) {
  add(Copy{kMemcpy, kind, 0, 0, 0, bytes, start, end, 0, 1, 7, call()}, 128);
}
EXPORT void made_up_fill(uint64_t bytes, uint64_t start, uint64_t end) {
  add(Fill{kMemset, 0, bytes, start, end, 0, 1, 7, call()}, 104);
}
EXPORT void made_up_refusal(Result result) { refusal = result; }
EXPORT size_t made_up_ids() { return external_ids.size(); }

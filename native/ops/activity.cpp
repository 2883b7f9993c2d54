#include "activity.h"

#include <cxxabi.h>

#include <cstdlib>
#include <memory>
#include <unordered_map>

#include "cupti_records.h"
#include "opened.h"

using namespace chagres::ops;
using activity::recorder;

namespace {

constexpr size_t kBufferBytes = size_t{4} << 20;
constexpr cupti::Kind kKinds[] = {cupti::kExternalCorrelation, cupti::kRuntime, cupti::kDriver,
                                  cupti::kConcurrentKernel,    cupti::kMemcpy,  cupti::kMemset};

cupti::Functions functions;
std::string opened_path; /* "" before a CUPTI was opened; it stays open: its threads may call the callbacks until the process ends */

/* Records whose range is not known yet: CUPTI tells the range of a call in a record of its own, in another buffer perhaps. */
std::mutex correlations_mutex;
std::unordered_map<uint32_t, int64_t> range_of_call;
std::vector<std::pair<size_t, uint32_t>> calls_of_records;

int64_t cupti_now() {
  uint64_t nanos = 0;
  functions.timestamp(&nanos);
  return static_cast<int64_t>(nanos);
}

void entered(int64_t range) { functions.push_external(cupti::kCustom, static_cast<uint64_t>(range)); }

void left() {
  uint64_t last = 0;
  functions.pop_external(cupti::kCustom, &last);
}

constexpr activity::Listener kHost = {activity::host_nanos, nullptr, nullptr};
constexpr activity::Listener kCupti = {cupti_now, entered, left};
bool with_cupti = false;

std::string readable(const std::string &name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void *)> text(abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status), std::free);
  return text == nullptr ? name : text.get();
}

template <class Record>
OpsActivity made(const Record &record, int kind, int64_t bytes) {
  OpsActivity result{};
  result.begin = static_cast<int64_t>(record.start);
  result.end = static_cast<int64_t>(record.end);
  result.bytes = bytes;
  result.stream = record.stream;
  result.device = static_cast<int32_t>(record.device);
  result.kind = kind;
  return result;
}

void keep(const std::string &name, const OpsActivity &record, uint32_t call) {
  const int64_t index = recorder().add(name.c_str(), record);
  if (index >= 0) calls_of_records.emplace_back(static_cast<size_t>(index), call);
}

void take(const cupti::Activity *record) {
  static std::unordered_map<std::string, std::string> readable_names;
  switch (record->kind) {
    case cupti::kConcurrentKernel: {
      const auto &kernel = *reinterpret_cast<const cupti::Kernel *>(record);
      const std::string name = kernel.name == nullptr ? "" : kernel.name;
      auto found = readable_names.find(name);
      if (found == readable_names.end()) found = readable_names.emplace(name, readable(name)).first;
      keep(found->second, made(kernel, OPS_ACTIVITY_KERNEL, 0), kernel.correlation);
      break;
    }
    case cupti::kMemcpy: {
      const auto &copy = *reinterpret_cast<const cupti::Copy *>(record);
      static const char *const names_of_kinds[] = {"copy", "copy host to device", "copy device to host"};
      keep(copy.copy_kind == 8 ? "copy device to device" : names_of_kinds[copy.copy_kind <= 2 ? copy.copy_kind : 0],
           made(copy, OPS_ACTIVITY_COPY, static_cast<int64_t>(copy.bytes)), copy.correlation);
      break;
    }
    case cupti::kMemset: {
      const auto &fill = *reinterpret_cast<const cupti::Fill *>(record);
      keep("fill", made(fill, OPS_ACTIVITY_FILL, static_cast<int64_t>(fill.bytes)), fill.correlation);
      break;
    }
    case cupti::kExternalCorrelation: {
      const auto &external = *reinterpret_cast<const cupti::External *>(record);
      if (external.external_kind == cupti::kCustom)
        range_of_call[external.correlation] = static_cast<int64_t>(external.external_id);
      break;
    }
    default: /* calls of the runtime and the driver: they are recorded so that CUPTI tells their ranges */
      break;
  }
}

/* Callbacks come on threads of CUPTI's: nothing may be thrown into it. */
void buffer_requested(uint8_t **buffer, size_t *size, size_t *most_records) noexcept {
  void *memory = nullptr;
  *buffer = posix_memalign(&memory, cupti::kAlignment, kBufferBytes) == 0 ? static_cast<uint8_t *>(memory) : nullptr;
  *size = *buffer == nullptr ? 0 : kBufferBytes;
  *most_records = 0;
}

void buffer_completed(void *context, uint32_t stream, uint8_t *buffer, size_t, size_t valid) noexcept {
  try {
    const std::lock_guard<std::mutex> lock(correlations_mutex);
    cupti::Activity *record = nullptr;
    while (valid > 0 && recorder().records() && functions.next_record(buffer, valid, &record) == cupti::kSuccess) take(record);
    size_t dropped = 0;
    if (functions.dropped_records(context, stream, &dropped) == cupti::kSuccess && dropped > 0)
      recorder().count_dropped(static_cast<int64_t>(dropped));
  } catch (...) { /* no memory: what is lost is counted where it can be */
    recorder().count_dropped(1);
  }
  std::free(buffer);
}

int refuse(const char *call, cupti::Result result) {
  const char *text = nullptr;
  functions.result_string(result, &text);
  const char *other = "; another profiler of this process listens to CUPTI, such as that of PyTorch or Nsight Systems: end it before";
  return fail(OPS_CUDA_ERROR, format("ops_activity_begin: %s says %d, %s%s", call, result, text == nullptr ? "unknown" : text,
                                     result == cupti::kMultipleSubscribers ? other : ""));
}

int open_cupti(const char *path) {
  if (opened_path == path) return OPS_SUCCESS;
  if (!opened_path.empty())
    return fail(OPS_INVALID_ARGUMENT, std::string("ops_activity_begin: cupti is ") + path + "; expected " + opened_path +
                                          ", which this process has opened");
  cupti::Functions found{};
  Opened library(path);
  library.find("cuptiActivityRegisterCallbacks", found.register_callbacks)
      .find("cuptiActivityEnable", found.enable)
      .find("cuptiActivityDisable", found.disable)
      .find("cuptiActivityFlushAll", found.flush_all)
      .find("cuptiActivityGetNextRecord", found.next_record)
      .find("cuptiActivityGetNumDroppedRecords", found.dropped_records)
      .find("cuptiActivityPushExternalCorrelationId", found.push_external)
      .find("cuptiActivityPopExternalCorrelationId", found.pop_external)
      .find("cuptiGetTimestamp", found.timestamp)
      .find("cuptiGetResultString", found.result_string);
  if (!library.problem().empty()) return fail(OPS_NOT_OPEN, "ops_activity_begin: " + library.problem());
  functions = found;
  const cupti::Result result = functions.register_callbacks(buffer_requested, buffer_completed);
  if (result != cupti::kSuccess) return refuse("cuptiActivityRegisterCallbacks", result);
  opened_path = path;
  return OPS_SUCCESS;
}

void disable_all() {
  for (cupti::Kind kind : kKinds) functions.disable(kind);
}

/* Each record gets the range of the call that enqueued it. */
void join_ranges() {
  const std::lock_guard<std::mutex> lock(correlations_mutex);
  const std::lock_guard<std::mutex> records_lock(recorder().mutex());
  for (const auto &[index, call] : calls_of_records) {
    const auto found = range_of_call.find(call);
    if (found != range_of_call.end()) recorder().held()[index].range = found->second;
  }
  calls_of_records.clear();
  range_of_call.clear();
}

}  // namespace

int ops_activity_begin(const char *cupti, int64_t *now) try {
  int status = activity::check_begin(cupti, now);
  if (status != OPS_SUCCESS) return status;
  if (recorder().records()) return activity::refuse_second();
  const bool wanted = *cupti != '\0';
  if (wanted && (status = open_cupti(cupti)) != OPS_SUCCESS) return status;
  if (!recorder().begin(wanted ? kCupti : kHost)) return activity::refuse_second();
  with_cupti = wanted;
  for (size_t i = 0; wanted && i < sizeof(kKinds) / sizeof(*kKinds); ++i) {
    const cupti::Result result = functions.enable(kKinds[i]);
    if (result != cupti::kSuccess) {
      recorder().end();
      disable_all();
      return refuse("cuptiActivityEnable", result);
    }
  }
  *now = recorder().now();
  return OPS_SUCCESS;
} OPS_CATCH

int ops_activity_end(int64_t *count, int64_t *dropped) try {
  const int status = activity::check_end(count, dropped);
  if (status != OPS_SUCCESS) return status;
  if (with_cupti) {
    disable_all();
    functions.flush_all(cupti::kFlushForced);
  }
  recorder().end();
  join_ranges();
  activity::tell(count, dropped);
  return OPS_SUCCESS;
} OPS_CATCH

int ops_activity_read(OpsActivity *activities, int64_t count) try {
  return activity::read(activities, count);
} OPS_CATCH

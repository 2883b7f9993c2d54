/*
 * The parts of CUPTI's activity API that tell which kernels ran when: layouts and numbers of cupti_activity.h (CUDA 12 and 13, the
 * leading fields of CUpti_ActivityKernel9 to 13, Memcpy5 to 7, Memset4 and 5), so that building needs no header. The test ops_cupti_headers
 * compares them with NVIDIA's.
 */
#ifndef CHAGRES_OPS_CUPTI_RECORDS_H
#define CHAGRES_OPS_CUPTI_RECORDS_H

#include <cstddef>
#include <cstdint>

namespace chagres::ops::cupti {

using Result = int;
constexpr Result kSuccess = 0, kMaxLimitReached = 12; /* CUPTI_ERROR_MAX_LIMIT_REACHED: no record is left */
constexpr Result kMultipleSubscribers = 39;           /* CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED: another profiler listens */

enum Kind : uint32_t { /* CUpti_ActivityKind */
  kMemcpy = 1,
  kMemset = 2,
  kDriver = 4,
  kRuntime = 5,
  kConcurrentKernel = 10,
  kExternalCorrelation = 39
};
constexpr int kCustom = 3;          /* CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0 */
constexpr uint32_t kFlushForced = 1; /* CUPTI_ACTIVITY_FLAG_FLUSH_FORCED */
constexpr size_t kAlignment = 8;     /* ACTIVITY_RECORD_ALIGNMENT */

struct Activity { /* CUpti_Activity */
  uint32_t kind;
};

struct Kernel { /* CUpti_ActivityKernel9 and later, as far as they are read */
  uint32_t kind;
  uint8_t configuration[12];
  uint64_t start, end, completed;
  uint32_t device, context, stream;
  int32_t sizes[10];
  uint32_t correlation;
  int64_t grid;
  const char *name;
};

struct Copy { /* CUpti_ActivityMemcpy */
  uint32_t kind;
  uint8_t copy_kind, source_kind, target_kind, flags;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
};

struct Fill { /* CUpti_ActivityMemset */
  uint32_t kind;
  uint32_t value;
  uint64_t bytes, start, end;
  uint32_t device, context, stream, correlation;
};

struct External { /* CUpti_ActivityExternalCorrelation */
  uint32_t kind;
  int32_t external_kind;
  uint64_t external_id;
  uint32_t correlation;
  uint32_t reserved;
};

using BufferRequested = void (*)(uint8_t **buffer, size_t *size, size_t *most_records);
using BufferCompleted = void (*)(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);

/* CUPTI's functions by their names. */
struct Functions {
  Result (*register_callbacks)(BufferRequested requested, BufferCompleted completed);
  Result (*enable)(Kind kind);
  Result (*disable)(Kind kind);
  Result (*flush_all)(uint32_t flag);
  Result (*next_record)(uint8_t *buffer, size_t valid, Activity **record);
  Result (*dropped_records)(void *context, uint32_t stream, size_t *dropped);
  Result (*push_external)(int kind, uint64_t id);
  Result (*pop_external)(int kind, uint64_t *last);
  Result (*timestamp)(uint64_t *nanos);
  Result (*result_string)(Result result, const char **text);
};

}  // namespace chagres::ops::cupti

#endif /* CHAGRES_OPS_CUPTI_RECORDS_H */

/* NVIDIA's headers against native/ops/cupti_records.h: equal numbers and layouts of what is read. Compiled by cupti_headers.sh. */
#include <cupti.h>

#include <type_traits>

#include "../../../ops/cupti_records.h"

namespace ours = chagres::ops::cupti;

#if CUPTI_API_VERSION >= 130500
using Kernel = CUpti_ActivityKernel13;
using Copy = CUpti_ActivityMemcpy7;
using Fill = CUpti_ActivityMemset5;
#else
using Kernel = CUpti_ActivityKernel10;
using Copy = CUpti_ActivityMemcpy6;
using Fill = CUpti_ActivityMemset4;
#endif

#define SAME(ours_struct, our_field, their_struct, their_field)                                                      \
  static_assert(offsetof(ours::ours_struct, our_field) == offsetof(their_struct, their_field) &&                     \
                    sizeof(ours::ours_struct::our_field) == sizeof(their_struct::their_field),                       \
                "")

SAME(Kernel, kind, Kernel, kind);
SAME(Kernel, start, Kernel, start);
SAME(Kernel, end, Kernel, end);
SAME(Kernel, device, Kernel, deviceId);
SAME(Kernel, stream, Kernel, streamId);
SAME(Kernel, correlation, Kernel, correlationId);
SAME(Kernel, name, Kernel, name);
SAME(Copy, copy_kind, Copy, copyKind);
SAME(Copy, bytes, Copy, bytes);
SAME(Copy, start, Copy, start);
SAME(Copy, end, Copy, end);
SAME(Copy, device, Copy, deviceId);
SAME(Copy, stream, Copy, streamId);
SAME(Copy, correlation, Copy, correlationId);
SAME(Fill, bytes, Fill, bytes);
SAME(Fill, start, Fill, start);
SAME(Fill, end, Fill, end);
SAME(Fill, device, Fill, deviceId);
SAME(Fill, stream, Fill, streamId);
SAME(Fill, correlation, Fill, correlationId);
SAME(External, external_kind, CUpti_ActivityExternalCorrelation, externalKind);
SAME(External, external_id, CUpti_ActivityExternalCorrelation, externalId);
SAME(External, correlation, CUpti_ActivityExternalCorrelation, correlationId);

static_assert(int{ours::kMemcpy} == CUPTI_ACTIVITY_KIND_MEMCPY && int{ours::kMemset} == CUPTI_ACTIVITY_KIND_MEMSET, "");
static_assert(int{ours::kDriver} == CUPTI_ACTIVITY_KIND_DRIVER && int{ours::kRuntime} == CUPTI_ACTIVITY_KIND_RUNTIME, "");
static_assert(int{ours::kConcurrentKernel} == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL, "");
static_assert(int{ours::kExternalCorrelation} == CUPTI_ACTIVITY_KIND_EXTERNAL_CORRELATION, "");
static_assert(ours::kCustom == CUPTI_EXTERNAL_CORRELATION_KIND_CUSTOM0 && ours::kSuccess == CUPTI_SUCCESS, "");
static_assert(ours::kMaxLimitReached == CUPTI_ERROR_MAX_LIMIT_REACHED, "");
static_assert(ours::kMultipleSubscribers == CUPTI_ERROR_MULTIPLE_SUBSCRIBERS_NOT_SUPPORTED, "");
static_assert(ours::kFlushForced == CUPTI_ACTIVITY_FLAG_FLUSH_FORCED && ours::kAlignment == ACTIVITY_RECORD_ALIGNMENT, "");
static_assert(CUPTI_ACTIVITY_MEMCPY_KIND_HTOD == 1 && CUPTI_ACTIVITY_MEMCPY_KIND_DTOH == 2, "");
static_assert(CUPTI_ACTIVITY_MEMCPY_KIND_DTOD == 8, "");

int main() { return 0; }

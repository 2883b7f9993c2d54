/* Ranges alone: each function computes before it returns, so the time of a range is that of what it computes. */
#include "../../ops/activity.h"

using namespace chagres::ops;
using activity::recorder;

int ops_activity_begin(const char *cupti, int64_t *now) try {
  const int status = activity::check_begin(cupti, now);
  if (status != OPS_SUCCESS) return status;
  if (!recorder().begin({activity::host_nanos, nullptr, nullptr})) return activity::refuse_second();
  *now = recorder().now();
  return OPS_SUCCESS;
} OPS_CATCH

int ops_activity_end(int64_t *count, int64_t *dropped) try {
  const int status = activity::check_end(count, dropped);
  if (status != OPS_SUCCESS) return status;
  recorder().end();
  activity::tell(count, dropped);
  return OPS_SUCCESS;
} OPS_CATCH

int ops_activity_read(OpsActivity *activities, int64_t count) try {
  return activity::read(activities, count);
} OPS_CATCH

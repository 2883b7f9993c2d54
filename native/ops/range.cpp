#include "range.h"

#include "activity.h"
#include "nvtx.h"

using namespace chagres::ops;

int ops_range_push(const char *name) try {
  const int status = check_range_push(name);
  if (status != OPS_SUCCESS) return status;
  if (const auto push = nvtx::profiler().range_push) push(name);
  activity::recorder().push_range(name);
  ++open_ranges();
  return OPS_SUCCESS;
} OPS_CATCH

int ops_range_pop(void) try {
  const int status = check_range_pop();
  if (status != OPS_SUCCESS) return status;
  if (const auto pop = nvtx::profiler().range_pop) pop();
  activity::recorder().pop_range();
  --open_ranges();
  return OPS_SUCCESS;
} OPS_CATCH

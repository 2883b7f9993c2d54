/* Ranges for profilers: counted alone, since no GPU computes. */
#include "../../ops/range.h"

using namespace chagres::ops;

int ops_range_push(const char *name) try {
  const int status = check_range_push(name);
  if (status == OPS_SUCCESS) ++open_ranges();
  return status;
} OPS_CATCH

int ops_range_pop(void) try {
  const int status = check_range_pop();
  if (status == OPS_SUCCESS) --open_ranges();
  return status;
} OPS_CATCH

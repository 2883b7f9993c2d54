/* The ranges that a thread has open, for both libraries that export ops.h: each counts those begun through it. */
#ifndef CHAGRES_OPS_RANGE_H
#define CHAGRES_OPS_RANGE_H

#include "arguments.h"

namespace chagres::ops {

inline int64_t &open_ranges() {
  static thread_local int64_t count = 0;
  return count;
}

inline int check_range_push(const char *name) {
  Arguments arguments("ops_range_push");
  if (name == nullptr) arguments.refuse("name", "null", "a text");
  return arguments.status();
}

inline int check_range_pop() {
  if (open_ranges() > 0) return OPS_SUCCESS;
  return fail(OPS_INVALID_ARGUMENT, "ops_range_pop: this thread has no range open; expected ops_range_push before");
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_RANGE_H */

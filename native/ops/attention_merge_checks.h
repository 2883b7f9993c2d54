/* The checks of ops_attention_merge, shared by both libraries that export it; as checks.h. */
#ifndef CHAGRES_OPS_ATTENTION_MERGE_CHECKS_H
#define CHAGRES_OPS_ATTENTION_MERGE_CHECKS_H

#include "arguments.h"

namespace chagres::ops {

inline int check_attention_merge(const void *partial, const void *log_sum_exp, const void *merged,
                                 const void *merged_log_sum_exp, int64_t rows, int64_t columns, int first, int dtype) {
  Arguments arguments("ops_attention_merge");
  arguments.float_dtype("dtype", dtype)
      .between("rows", rows, 0)
      .between("columns", columns, 1)
      .between("first", first, 0, 1);
  if (arguments.wrong()) return arguments.status();
  arguments.countable("rows * columns", {rows, columns, 4});
  if (arguments.wrong() || rows == 0) return arguments.status();
  return arguments.pointer("partial", partial, size_of(dtype), bytes_of({rows, columns, size_of(dtype)}))
      .pointer("log_sum_exp", log_sum_exp, 4, bytes_of({rows, 4}))
      .pointer("merged", merged, 4, bytes_of({rows, columns, 4}))
      .pointer("merged_log_sum_exp", merged_log_sum_exp, 4, bytes_of({rows, 4}))
      .status();
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_ATTENTION_MERGE_CHECKS_H */

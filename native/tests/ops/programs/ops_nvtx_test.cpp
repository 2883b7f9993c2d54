/*
 * Ranges reach a profiler, and a path that leads to none is no failure.
 * usage: ops_nvtx_test OPS_LIBRARY PROFILER [none]
 */
#include <cstdlib>
#include <cstring>

#include "harness/expect.h"
#include "harness/library.h"

using namespace chagres::tests;

int main(int count, char **arguments) {
  if (count < 3) stop(__FILE__, __LINE__, "see the usage in this file");
  const bool none = count > 3;
  setenv("NVTX_INJECTION64_PATH", none ? "/nowhere/libprofiler.so" : arguments[2], 1);
  const Ops ops = open_library(arguments[1]);
  EXPECT_EQUAL(ops.range_push("layers.3"), OPS_SUCCESS);
  EXPECT_EQUAL(ops.range_push("attention"), OPS_SUCCESS);
  EXPECT_EQUAL(ops.range_pop(), OPS_SUCCESS);
  EXPECT_EQUAL(ops.range_push("mlp"), OPS_SUCCESS);
  EXPECT_EQUAL(ops.range_pop(), OPS_SUCCESS);
  EXPECT_EQUAL(ops.range_pop(), OPS_SUCCESS);
  EXPECT_EQUAL(ops.range_pop(), OPS_INVALID_ARGUMENT); /* the profiler does not hear of it */
  void *const profiler = open_shared(arguments[2]);
  const auto recorded = reinterpret_cast<const char *(*)()>(find_symbol(profiler, "recorded_ranges"));
  const char *const wanted = none ? "" : "(layers.3(attention)(mlp))";
  if (strcmp(recorded(), wanted) != 0) stop(__FILE__, __LINE__, std::string("recorded: ") + recorded());
  return 0;
}

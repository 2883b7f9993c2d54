/*
 * Compiles every kernel with the real NVRTC, without a GPU, for an architecture (90: compute capability 9.0); a second
 * process finds them all in the cache. Skipped where the vendor libraries are not fetched.
 * usage: ops_vendor_test first|again OPS_LIBRARY CACHE_FOLDER NUMBER_OF_SOURCES ARCHITECTURE [NVRTC_THAT_FORWARDS]
 */
#include <cstring>
#include <filesystem>
#include <map>

#include "harness/expect.h"
#include "harness/library.h"
#include "harness/vendor_libraries.h"

using namespace chagres::tests;
namespace fs = std::filesystem;

namespace {

using Times = std::map<std::string, fs::file_time_type>;

Times cubin_times(const fs::path &cache) {
  Times times;
  for (const auto &entry : fs::directory_iterator(cache)) times[entry.path().filename()] = entry.last_write_time();
  return times;
}

/* Without a driver the first launch says what the runtime said; with one there is nothing to see here. */
void launch(const Ops &ops) {
  float x[4] = {};
  const int status = ops.add(x, x, nullptr, 4, 4, nullptr);
  EXPECT_EQUAL(status, OPS_INVALID_ARGUMENT);
  if (fs::exists("/proc/driver/nvidia/version")) return;
  EXPECT_EQUAL(ops.add(x, x, x, 4, 4, nullptr), OPS_CUDA_ERROR);
  EXPECT_CONTAINS(ops.last_error(), "ops_add: cudaGetDevice failed with code ");
}

}  // namespace

int main(int count, char **arguments) {
  if (count != 6 && count != 7) stop(__FILE__, __LINE__, "see the usage in this file");
  const bool again = strcmp(arguments[1], "again") == 0;
  const fs::path libraries = cuda_libraries(), cache = arguments[3];
  const int sources = atoi(arguments[4]), architecture = atoi(arguments[5]);
  if (!again) fs::remove_all(cache);
  const Ops ops = open_library(arguments[2]);
  const std::string runtime = libraries / "libcudart.so.13";
  const std::string nvrtc = count == 7 ? arguments[6] : (libraries / "libnvrtc.so.13").string();
  if (ops.open(runtime.c_str(), nvrtc.c_str(), nullptr, cache.c_str()) != OPS_SUCCESS)
    stop(__FILE__, __LINE__, ops.last_error());
  const Times before = cubin_times(cache);
  int compiled = -1;
  if (ops.compile_all(architecture / 10, architecture % 10, &compiled) != OPS_SUCCESS)
    stop(__FILE__, __LINE__, ops.last_error());
  EXPECT_EQUAL(compiled, sources);
  const Times after = cubin_times(cache);
  EXPECT_EQUAL(after.size(), static_cast<size_t>(sources));
  if (again && before != after) stop(__FILE__, __LINE__, "the second process compiled again");
  EXPECT_EQUAL(ops.compile_all(1, 0, &compiled), OPS_COMPILE_ERROR);
  EXPECT_CONTAINS(ops.last_error(), "refused adam.cu for sm_10 (");
  launch(ops);
  printf("%d kernel files compiled%s\n", sources, again ? ", all from the cache" : "");
  return 0;
}

/*
 * Compiles every kernel with the real NVRTC, without a GPU, for an architecture (90: compute capability 9.0); a second
 * process finds them all in the cache. Skipped where the vendor libraries are not fetched.
 * usage: ops_vendor_test first|kept|again OPS_LIBRARY CACHE_FOLDER NUMBER_OF_SOURCES ARCHITECTURE [NVRTC_THAT_FORWARDS]
 * "first" compiles every source; "kept" those whose cubin no run of the last days has kept: a cubin's name has the hash of all
 * that it was made from.
 */
#include <unistd.h>

#include <chrono>
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

/* Cubins that tests have compiled, of every checkout: copied to and fro, since this test counts what lies in its own folder. */
class Kept {
 public:
  explicit Kept(int architecture)
      : folder_(vendor_folder().parent_path() / "tested_kernels"), mark_("-sm_" + std::to_string(architecture) + "-") {
    fs::create_directories(folder_);
    const auto oldest = fs::file_time_type::clock::now() - std::chrono::hours(24 * 30);
    std::error_code gone; /* another checkout's test may remove it first */
    for (const fs::path &file : cubins(folder_)) {
      const auto time = fs::last_write_time(file, gone);
      if (!gone && time < oldest) fs::remove(file, gone);
    }
  }
  int lend(const fs::path &cache) const {
    int count = 0;
    for (const fs::path &file : cubins(folder_)) count += fs::copy_file(file, cache / file.filename());
    return count;
  }
  void keep(const fs::path &cache) const {
    for (const fs::path &file : cubins(cache)) {
      const fs::path kept = folder_ / file.filename(), half = kept.string() + "." + std::to_string(getpid());
      if (fs::exists(kept)) continue;
      fs::copy_file(file, half);
      fs::rename(half, kept); /* whole or not at all */
    }
  }

 private:
  std::vector<fs::path> cubins(const fs::path &folder) const {
    std::vector<fs::path> found;
    for (const auto &entry : fs::directory_iterator(folder)) {
      const fs::path name = entry.path().filename();
      if (name.extension() == ".cubin" && name.string().find(mark_) != std::string::npos) found.push_back(entry.path());
    }
    return found;
  }

  fs::path folder_;
  std::string mark_;
};

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
  const bool again = strcmp(arguments[1], "again") == 0, keeps = strcmp(arguments[1], "kept") == 0;
  const fs::path libraries = cuda_libraries(), cache = arguments[3];
  const int sources = atoi(arguments[4]), architecture = atoi(arguments[5]);
  if (!again) fs::remove_all(cache);
  const Ops ops = open_library(arguments[2]);
  const std::string runtime = libraries / "libcudart.so.13";
  const std::string nvrtc = count == 7 ? arguments[6] : (libraries / "libnvrtc.so.13").string();
  if (ops.open(runtime.c_str(), nvrtc.c_str(), nullptr, cache.c_str()) != OPS_SUCCESS)
    stop(__FILE__, __LINE__, ops.last_error());
  const int lent = keeps ? Kept(architecture).lend(cache) : 0;
  const Times before = cubin_times(cache);
  int compiled = -1;
  if (ops.compile_all(architecture / 10, architecture % 10, &compiled) != OPS_SUCCESS)
    stop(__FILE__, __LINE__, ops.last_error());
  EXPECT_EQUAL(compiled, sources);
  const Times after = cubin_times(cache);
  const int made = static_cast<int>(after.size() - before.size());
  if (keeps) Kept(architecture).keep(cache);
  if (strcmp(arguments[1], "first") == 0) EXPECT_EQUAL(made, sources);
  if (again && before != after) stop(__FILE__, __LINE__, "the second process compiled again");
  EXPECT_EQUAL(ops.compile_all(1, 0, &compiled), OPS_COMPILE_ERROR);
  EXPECT_CONTAINS(ops.last_error(), "refused adafactor.cu for sm_10 (");
  launch(ops);
  printf("%d kernel files for sm_%d, %d of them compiled now (%d cubins were kept)\n", sources, architecture, made, lent);
  return 0;
}

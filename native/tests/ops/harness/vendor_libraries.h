/* The fetched vendor libraries, for tests that need no GPU. */
#ifndef CHAGRES_TESTS_OPS_VENDOR_LIBRARIES_H
#define CHAGRES_TESTS_OPS_VENDOR_LIBRARIES_H

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

namespace chagres::tests {

constexpr int kSkipped = 77; /* what CTest takes for skipped */

inline std::filesystem::path vendor_folder() {
  const auto variable = [](const char *name) {
    const char *value = std::getenv(name);
    return std::string(value != nullptr ? value : "");
  };
  const std::string cache = variable("CHAGRES_CACHE");
  return (cache.empty() ? std::filesystem::path(variable("HOME")) / ".cache/chagres" : std::filesystem::path(cache)) /
         "vendor";
}

/* The folder with libcudart.so.13 and libnvrtc.so.13; exits with kSkipped and the reason when there is none. */
inline std::filesystem::path cuda_libraries() {
  std::error_code ignored;
  for (const auto &entry : std::filesystem::directory_iterator(vendor_folder(), ignored)) {
    const std::filesystem::path folder = entry.path() / "nvidia/cu13/lib";
    if (std::filesystem::exists(folder / "libcudart.so.13") && std::filesystem::exists(folder / "libnvrtc.so.13"))
      return folder;
  }
  printf(
      "skipped: no libcudart.so.13 and libnvrtc.so.13 in %s/*/nvidia/cu13/lib; native/vendor/fetch.sh fetches them\n",
      vendor_folder().c_str());
  exit(kSkipped);
}

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_VENDOR_LIBRARIES_H */

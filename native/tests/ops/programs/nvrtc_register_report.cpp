/*
 * The vendor's NVRTC with ptxas's report: prints the registers of each kernel, and refuses a source with a kernel that
 * keeps registers in memory (spills). A stack of its own, as sincosf has, is no spill.
 */
#include <regex>
#include <string>
#include <vector>

#include "harness/library.h"
#include "harness/vendor_libraries.h"

using namespace chagres::tests;
namespace fs = std::filesystem;

namespace {

constexpr int kCompilationError = 6; /* NVRTC_ERROR_COMPILATION */

void *vendor_nvrtc() {
  static void *const library = [] {
    const fs::path folder = cuda_libraries();
    for (const auto &entry : fs::directory_iterator(folder)) /* NVRTC looks for it by bare name */
      if (entry.path().filename().string().rfind("libnvrtc-builtins.so", 0) == 0) open_shared(entry.path());
    return open_shared(folder / "libnvrtc.so.13");
  }();
  return library;
}

/* Calls the vendor's function of this name and of the type of `same`. */
template <class Result, class... Arguments>
Result forward(const char *name, Result (*same)(Arguments...), Arguments... arguments) {
  return reinterpret_cast<decltype(same)>(find_symbol(vendor_nvrtc(), name))(arguments...);
}

/* Prints the kernels that a log reports; whether there are some and none of them spills. */
bool print_registers(const std::string &log) {
  static const std::regex pattern(
      "Compiling entry function '(\\w+)'[^]*?(\\d+) bytes stack frame, (\\d+) bytes spill stores, (\\d+) bytes spill "
      "loads[^]*?Used (\\d+) registers[^\\n]*");
  bool kernels = false, spills = false;
  for (std::sregex_iterator match(log.begin(), log.end(), pattern), end; match != end; ++match) {
    const std::smatch &found = *match;
    kernels = true;
    printf("%-44s %s registers\n", found[1].str().c_str(), found[5].str().c_str());
    if (found[3] == "0" && found[4] == "0") continue;
    spills = true;
    printf("%s spills: %s bytes of stores, %s of loads\n", found[1].str().c_str(), found[3].str().c_str(),
           found[4].str().c_str());
  }
  if (!kernels) printf("ptxas reported no kernel\n");
  return kernels && !spills;
}

}  // namespace

#define NVRTC extern "C" __attribute__((visibility("default")))

NVRTC int nvrtcVersion(int *major, int *minor) { return forward("nvrtcVersion", nvrtcVersion, major, minor); }

NVRTC const char *nvrtcGetErrorString(int result) {
  return forward("nvrtcGetErrorString", nvrtcGetErrorString, result);
}

NVRTC int nvrtcCreateProgram(void **program, const char *source, const char *name, int header_count,
                             const char *const *headers, const char *const *header_names) {
  printf("%s\n", name);
  return forward("nvrtcCreateProgram", nvrtcCreateProgram, program, source, name, header_count, headers, header_names);
}

NVRTC int nvrtcDestroyProgram(void **program) { return forward("nvrtcDestroyProgram", nvrtcDestroyProgram, program); }

NVRTC int nvrtcGetCUBINSize(void *program, size_t *size) {
  return forward("nvrtcGetCUBINSize", nvrtcGetCUBINSize, program, size);
}

NVRTC int nvrtcGetCUBIN(void *program, char *cubin) { return forward("nvrtcGetCUBIN", nvrtcGetCUBIN, program, cubin); }

NVRTC int nvrtcGetProgramLogSize(void *program, size_t *size) {
  return forward("nvrtcGetProgramLogSize", nvrtcGetProgramLogSize, program, size);
}

NVRTC int nvrtcGetProgramLog(void *program, char *log) {
  return forward("nvrtcGetProgramLog", nvrtcGetProgramLog, program, log);
}

NVRTC int nvrtcCompileProgram(void *program, int count, const char *const *options) {
  std::vector<const char *> all(options, options + count);
  all.push_back("--ptxas-options=-v");
  const int result = forward<int, void *, int, const char *const *>("nvrtcCompileProgram", nvrtcCompileProgram, program,
                                                                   count + 1, all.data());
  if (result != 0) return result;
  size_t size = 0;
  if (nvrtcGetProgramLogSize(program, &size) != 0) return kCompilationError;
  std::string log(size, '\0');
  if (nvrtcGetProgramLog(program, &log[0]) != 0) return kCompilationError;
  return print_registers(log) ? 0 : kCompilationError;
}

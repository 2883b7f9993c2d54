/*
 * Compiles the kernels for an H200 with ptxas's report and prints it: registers and shared memory of each. A kernel
 * that keeps registers in memory (spills) is a failure; a stack of its own, as sincosf has, is none. Skipped where the
 * vendor libraries are not fetched.
 * usage: ops_registers_test FOLDER_OF_KERNELS
 */
#include <fstream>
#include <regex>
#include <sstream>
#include <vector>

#include "harness/expect.h"
#include "harness/library.h"
#include "harness/vendor_libraries.h"

using namespace chagres::tests;
namespace fs = std::filesystem;

namespace {

struct Nvrtc {
  int (*create_program)(void **, const char *, const char *, int, const char *const *, const char *const *);
  int (*compile_program)(void *, int, const char *const *);
  int (*get_log_size)(void *, size_t *);
  int (*get_log)(void *, char *);
  int (*destroy_program)(void **);
};

template <class Function>
void find(void *library, const char *name, Function &function) {
  function = reinterpret_cast<Function>(find_symbol(library, name));
}

Nvrtc open_nvrtc(const fs::path &folder) {
  for (const auto &entry : fs::directory_iterator(folder)) /* NVRTC looks for it by bare name */
    if (entry.path().filename().string().rfind("libnvrtc-builtins.so", 0) == 0) open_shared(entry.path());
  void *library = open_shared(folder / "libnvrtc.so.13");
  Nvrtc nvrtc = {};
  find(library, "nvrtcCreateProgram", nvrtc.create_program);
  find(library, "nvrtcCompileProgram", nvrtc.compile_program);
  find(library, "nvrtcGetProgramLogSize", nvrtc.get_log_size);
  find(library, "nvrtcGetProgramLog", nvrtc.get_log);
  find(library, "nvrtcDestroyProgram", nvrtc.destroy_program);
  return nvrtc;
}

std::string read(const fs::path &path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

std::string compile(const Nvrtc &nvrtc, const fs::path &source, const std::vector<fs::path> &headers) {
  std::vector<std::string> names, texts;
  for (const fs::path &header : headers) {
    names.push_back(header.filename());
    texts.push_back(read(header));
  }
  std::vector<const char *> name_pointers, text_pointers;
  for (const std::string &name : names) name_pointers.push_back(name.c_str());
  for (const std::string &text : texts) text_pointers.push_back(text.c_str());
  const char *const options[] = {"--gpu-architecture=sm_90", "--std=c++17", "--ptxas-options=-v"};
  void *program = nullptr;
  EXPECT_EQUAL(nvrtc.create_program(&program, read(source).c_str(), source.filename().c_str(),
                                    static_cast<int>(headers.size()), text_pointers.data(), name_pointers.data()),
               0);
  const int result = nvrtc.compile_program(program, 3, options);
  size_t size = 0;
  EXPECT_EQUAL(nvrtc.get_log_size(program, &size), 0);
  std::string log(size, '\0');
  EXPECT_EQUAL(nvrtc.get_log(program, &log[0]), 0);
  nvrtc.destroy_program(&program);
  if (result != 0) stop(__FILE__, __LINE__, log);
  return log;
}

/* Prints the kernels of a log and adds to `spills` what ptxas says of those that spill; their number. */
int check_log(const fs::path &source, const std::string &log, std::string &spills) {
  static const std::regex pattern(
      "Compiling entry function '(\\w+)'[^]*?(\\d+) bytes stack frame, (\\d+) bytes spill stores, (\\d+) bytes spill "
      "loads[^]*?Used (\\d+) registers[^\\n]*");
  int kernels = 0;
  for (std::sregex_iterator match(log.begin(), log.end(), pattern), end; match != end; ++match, ++kernels) {
    const std::smatch &found = *match;
    printf("%-18s %-44s %s registers\n", source.filename().c_str(), found[1].str().c_str(), found[5].str().c_str());
    if (found[3] != "0" || found[4] != "0") spills += source.filename().string() + ": " + found.str() + "\n";
  }
  return kernels;
}

}  // namespace

int main(int count, char **arguments) {
  if (count != 2) stop(__FILE__, __LINE__, "see the usage in this file");
  const Nvrtc nvrtc = open_nvrtc(cuda_libraries());
  std::vector<fs::path> sources, headers;
  for (const auto &entry : fs::directory_iterator(arguments[1])) {
    if (entry.path().extension() == ".cu") sources.push_back(entry.path());
    if (entry.path().extension() == ".cuh") headers.push_back(entry.path());
  }
  std::string spills;
  for (const fs::path &source : sources)
    if (check_log(source, compile(nvrtc, source, headers), spills) == 0)
      stop(__FILE__, __LINE__, source.string() + ": ptxas reported no kernel");
  if (!spills.empty()) stop(__FILE__, __LINE__, "kernels that spill registers:\n" + spills);
  return 0;
}

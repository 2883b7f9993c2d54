#include "compile.h"

#include <cstring>
#include <vector>

#include "cached_file.h"
#include "content_hash.h"
#include "error.h"

namespace chagres::ops {
namespace {

std::vector<std::string> options_for(const Libraries &libraries, int major, int minor) {
  std::vector<std::string> options = {format("--gpu-architecture=sm_%d%d", major, minor), "--std=c++17"};
  if (!libraries.include_directory.empty()) options.push_back("--include-path=" + libraries.include_directory);
  return options;
}

std::string cache_path(const Libraries &libraries, const Source &source, const std::vector<std::string> &options,
                       int major, int minor) {
  Hash hash;
  hash.add(source.text).add(format("NVRTC %d.%d", libraries.nvrtc_major, libraries.nvrtc_minor));
  for (int i = 0; i < kHeaderCount; ++i) hash.add(kHeaders[i]);
  for (const std::string &option : options) hash.add(option);
  const std::string stem(source.name, strlen(source.name) - strlen(".cu"));
  return libraries.cache_directory + '/' + stem + format("-sm_%d%d-%s.cubin", major, minor, hash.hexadecimal().c_str());
}

/* An NVRTC program that goes with its scope. */
class Program {
 public:
  explicit Program(const Nvrtc &nvrtc) : nvrtc_(nvrtc) {}
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;
  ~Program() {
    if (program_ != nullptr) nvrtc_.destroy_program(&program_);
  }

  int compile(const Source &source, const std::vector<std::string> &options) {
    int result = nvrtc_.create_program(&program_, source.text, source.name, kHeaderCount, kHeaders, kHeaderNames);
    if (result != 0) return result;
    std::vector<const char *> pointers;
    for (const std::string &option : options) pointers.push_back(option.c_str());
    return nvrtc_.compile_program(program_, static_cast<int>(pointers.size()), pointers.data());
  }

  std::string log() const {
    size_t size = 0;
    if (program_ == nullptr || nvrtc_.get_program_log_size(program_, &size) != 0 || size == 0) return "";
    std::string text(size, '\0');
    nvrtc_.get_program_log(program_, &text[0]);
    return text.c_str(); /* up to the terminating zero */
  }

  int cubin(std::string &cubin) const {
    size_t size = 0;
    const int result = nvrtc_.get_cubin_size(program_, &size);
    if (result != 0) return result;
    cubin.resize(size);
    return nvrtc_.get_cubin(program_, &cubin[0]);
  }

 private:
  const Nvrtc &nvrtc_;
  void *program_ = nullptr;
};

}  // namespace

int compile(const char *function, const Libraries &libraries, const Source &source, int major, int minor,
            std::string &cubin, std::string &store_problem) {
  const auto options = options_for(libraries, major, minor);
  const std::string path = cache_path(libraries, source, options, major, minor);
  store_problem.clear();
  if (read_cached(path, cubin)) return OPS_SUCCESS;
  Program program(libraries.nvrtc);
  int result = program.compile(source, options);
  if (result == 0) result = program.cubin(cubin);
  if (result != 0)
    return fail(OPS_COMPILE_ERROR, format("%s: NVRTC %d.%d refused %s for sm_%d%d (%s):\n%s", function,
                                          libraries.nvrtc_major, libraries.nvrtc_minor, source.name, major, minor,
                                          libraries.nvrtc.get_error_string(result), program.log().c_str()));
  store_problem = write_cached(path, cubin);
  return OPS_SUCCESS;
}

}  // namespace chagres::ops

using namespace chagres::ops;

int ops_compile_all(int major, int minor, int *compiled) try {
  const char *function = "ops_compile_all";
  const Libraries *libraries = chagres::ops::libraries();
  if (libraries == nullptr) return not_open(function);
  if (compiled == nullptr) return fail(OPS_INVALID_ARGUMENT, "ops_compile_all: compiled is null; expected an int");
  *compiled = 0;
  for (int i = 0; i < kSourceCount; ++i) {
    std::string cubin, store_problem;
    const int status = compile(function, *libraries, kSources[i], major, minor, cubin, store_problem);
    if (status != OPS_SUCCESS) return status;
    if (!store_problem.empty()) return fail(OPS_COMPILE_ERROR, std::string(function) + ": " + store_problem);
    ++*compiled;
  }
  return OPS_SUCCESS;
} OPS_CATCH

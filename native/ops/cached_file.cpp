#include "cached_file.h"

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

#include "content_hash.h"

namespace chagres::ops {
namespace {

constexpr size_t kHashLength = 32;

}  // namespace

bool read_cached(const std::string &path, std::string &content) {
  std::ifstream file(path, std::ios::binary);
  if (!file) return false;
  std::ostringstream all;
  all << file.rdbuf();
  const std::string whole = all.str();
  if (whole.size() <= kHashLength) return false;
  content = whole.substr(kHashLength);
  return whole.compare(0, kHashLength, Hash().add(content.data(), content.size()).hexadecimal()) == 0;
}

std::string write_cached(const std::string &path, const std::string &content) {
  static std::atomic<int> sequence{0};
  const std::string temporary = path + format(".%ld.%d", static_cast<long>(getpid()), sequence.fetch_add(1));
  std::ofstream file(temporary, std::ios::binary | std::ios::trunc);
  file << Hash().add(content.data(), content.size()).hexadecimal() << content;
  file.close();
  if (file.good() && rename(temporary.c_str(), path.c_str()) == 0) return "";
  const std::string problem = "cannot write " + path + ": " + strerror(errno);
  unlink(temporary.c_str());
  return problem;
}

}  // namespace chagres::ops

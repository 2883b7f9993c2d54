/* A shared library and its functions by name. */
#ifndef CHAGRES_OPS_OPENED_H
#define CHAGRES_OPS_OPENED_H

#include <dlfcn.h>

#include <string>

namespace chagres::ops {

/* Opens a library and looks functions up; keeps the first problem. */
class Opened {
 public:
  explicit Opened(const std::string &path, int flags = RTLD_NOW | RTLD_LOCAL)
      : path_(path), handle_(dlopen(path.c_str(), flags)) {
    if (handle_ == nullptr) problem_ = text_of_loader();
  }

  template <class Function>
  Opened &find(const char *name, Function &function) {
    if (handle_ == nullptr) return *this;
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    if (function == nullptr && problem_.empty()) problem_ = path_ + " has no function " + name + ": another library?";
    return *this;
  }

  bool is_open() const { return handle_ != nullptr; }
  const std::string &problem() const { return problem_; }

 private:
  std::string text_of_loader() const {
    const char *text = dlerror(); /* none where RTLD_NOLOAD finds nothing */
    return text == nullptr ? path_ + " is not open" : text;
  }

  std::string path_;
  void *handle_;
  std::string problem_;
};

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_OPENED_H */

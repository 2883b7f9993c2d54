#include "guard.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <string>
#include <vector>

#include "absent.hpp"
#include "rules.hpp"
#include "text.hpp"
#include "unresolved.hpp"

namespace chagres::guard {

namespace {

std::mutex open_mutex;
std::string opened_path;              // written before `opened`, then constant
std::atomic<void *> opened{nullptr};  // set last: who sees it sees the functions and the path

thread_local std::string text;

bool is_missing(const std::vector<std::string> &unresolved, const char *symbol) {
  for (const std::string &name : unresolved) {
    if (name == symbol) return true;
  }
  return false;
}

bool is_needed_by_some(const std::string &symbol) {
  for (int i = 0; i < entry_count; ++i) {
    if (entries[i].needs != nullptr && symbol == entries[i].needs) return true;
  }
  return false;
}

/* Symbols that the library would look for at a call and not find, which ends the process: those that only some
 * functions need make these refuse; any other is an error now. */
bool accept_unresolved(const std::vector<std::string> &unresolved, const char *path) {
  std::string fatal;
  for (const std::string &symbol : unresolved) {
    if (!is_needed_by_some(symbol)) fatal += (fatal.empty() ? "" : ", ") + symbol;
  }
  if (fatal.empty()) return true;
  store("te_open: %s needs symbols that no loaded library has: %s. Load the libraries that bring them (for nvrtc*: "
        "libnvrtc) with RTLD_GLOBAL first", path, fatal.c_str());
  return false;
}

/* False, with this thread's text stored, for an address where no text can be. */
bool is_text(const char *function, const char *argument, const char *expected, const char *value) {
  if (value == nullptr) {
    store("%s: argument %s: expected %s, got null", function, argument, expected);
  } else if (reinterpret_cast<std::uintptr_t>(value) < lowest_address) {
    store("%s: argument %s: expected %s, got %p, where no memory can be", function, argument, expected, value);
  } else {
    return true;
  }
  return false;
}

int open_library(const char *path) {
  void *const library = dlopen(path, RTLD_LAZY | RTLD_GLOBAL);
  if (library == nullptr) {
    store("te_open: %s", dlerror());
    return TE_ERROR;
  }
  const std::vector<std::string> unresolved = unresolved_symbols(library);
  if (!accept_unresolved(unresolved, path)) {
    dlclose(library);
    return TE_ERROR;
  }
  int found = 0;
  for (int i = 0; i < entry_count; ++i) {
    const char *const needs = entries[i].needs;
    if (needs != nullptr && is_missing(unresolved, needs)) continue;
    functions[i] = find(library, entries[i].name);
    found += functions[i] != nullptr;
  }
  if (found == 0) {
    store("te_open: %s has no nvte_ function", path);
    dlclose(library);
    return TE_ERROR;
  }
  look_up_asked_functions(library);
  opened_path = path;
  opened.store(library, std::memory_order_release);
  return TE_SUCCESS;
}

}  // namespace

void store(const char *format, ...) {
  va_list values;
  va_start(values, format);
  va_list again;
  va_copy(again, values);
  const int length = std::vsnprintf(nullptr, 0, format, values);
  va_end(values);
  try {
    text.resize(length < 0 ? 0 : static_cast<std::size_t>(length));
    std::vsnprintf(text.data(), text.size() + 1, format, again);
  } catch (const std::exception &) {
    text.clear();
  }
  va_end(again);
}

void *find(void *library, const char *name) { return dlsym(library, (std::string("nvte_") + name).c_str()); }

int unavailable(int function) try {
  const Entry &entry = entries[function];
  void *const library = opened.load(std::memory_order_acquire);
  if (library == nullptr) {
    store("te_%s: te_open has not succeeded in this process; call it first", entry.name);
    return TE_NOT_OPEN;
  }
  if (find(library, entry.name) != nullptr) {
    store("te_%s: refused: it needs %s, which no loaded library has; load a newer version of the library that has it",
          entry.name, entry.needs);
    return TE_REFUSED;
  }
  const bool reference = dlsym(library, "reference_last_unsupported") != nullptr;
  const char *const reason = reference ? absent_because(entry.name) : nullptr;
  store("nvte_%s is not in %s%s%s", entry.name, opened_path.c_str(), reason == nullptr ? "" : ": ",
        reason == nullptr ? "" : reason);
  return TE_MISSING;
} catch (...) {
  return caught(function);
}

int caught(int function) noexcept {
  try {
    throw;
  } catch (const std::exception &error) {
    store("%s", error.what());
  } catch (...) {
    store("nvte_%s threw an object that is no std::exception", entries[function].name);
  }
  return TE_ERROR;
}

}  // namespace chagres::guard

using namespace chagres::guard;

TE_EXPORT int te_open(const char *path) {
  if (!is_text("te_open", "path", "the path of a library", path)) return TE_REFUSED;
  try {
    const std::lock_guard<std::mutex> lock(open_mutex);
    if (opened.load(std::memory_order_acquire) == nullptr) return open_library(path);
    if (opened_path == path) return TE_SUCCESS;
    store("te_open: this process has opened %s; it cannot open %s as well", opened_path.c_str(), path);
  } catch (const std::exception &error) {
    store("te_open: %s", error.what());
  } catch (...) {
    store("te_open: an object was thrown that is no std::exception");
  }
  return TE_ERROR;
}

TE_EXPORT const char *te_last_error(void) { return text.c_str(); }

TE_EXPORT int te_has(const char *name) {
  if (!is_text("te_has", "name", "the name of a function", name)) return 0;
  void *const library = opened.load(std::memory_order_acquire);
  if (library == nullptr) return 0;
  try {
    return find(library, name) != nullptr;
  } catch (...) {
    return 0;
  }
}

TE_EXPORT int te_set_environment(const char *name, const char *value) {
  if (!is_text("te_set_environment", "name", "a text", name)) return TE_REFUSED;
  if (!is_text("te_set_environment", "value", "a text", value)) return TE_REFUSED;
  if (setenv(name, value, 1) != 0) {
    store("te_set_environment: argument name: \"%s\": %s", name, std::strerror(errno));
    return TE_ERROR;
  }
  return TE_SUCCESS;
}

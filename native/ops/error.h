/*
 * ops.h, exported, and the text behind ops_last_error(), for both libraries that have these functions: each library has
 * its own text for each thread.
 */
#ifndef CHAGRES_OPS_ERROR_H
#define CHAGRES_OPS_ERROR_H

#include <cstdarg>
#include <cstdio>
#include <exception>
#include <new>
#include <string>

#pragma GCC visibility push(default) /* the libraries are built with hidden visibility */
#include "chagres/ops.h"
#pragma GCC visibility pop

namespace chagres::ops {

inline std::string &error_text() {
  static thread_local std::string text;
  return text;
}

/* Sets the calling thread's text and returns the status. */
inline int fail(int status, const std::string &text) {
  error_text() = text;
  return status;
}

/* To be called inside a catch: sets the text and returns the status of what was thrown. */
inline int caught(const char *function) noexcept {
  try {
    try {
      throw;
    } catch (const std::bad_alloc &) {
      return fail(OPS_CUDA_ERROR, std::string(function) + ": out of host memory");
    } catch (const std::exception &exception) {
      return fail(OPS_CUDA_ERROR, std::string(function) + ": " + exception.what());
    } catch (...) {
      return fail(OPS_CUDA_ERROR, std::string(function) + ": an object was thrown that is no std::exception");
    }
  } catch (const std::exception &) { /* no memory for the text */
    error_text().clear();
    return OPS_CUDA_ERROR;
  }
}

/* Ends every exported function, so that none throws into C: `int ops_add(…) try { … } OPS_CATCH`. */
#define OPS_CATCH                          \
  catch (...) {                            \
    return ::chagres::ops::caught(__func__); \
  }

inline std::string format(const char *pattern, ...) __attribute__((format(printf, 1, 2)));
inline std::string format(const char *pattern, ...) {
  va_list arguments;
  va_start(arguments, pattern);
  va_list again;
  va_copy(again, arguments);
  const int length = vsnprintf(nullptr, 0, pattern, arguments);
  std::string text(length > 0 ? length : 0, '\0');
  vsnprintf(&text[0], text.size() + 1, pattern, again);
  va_end(again);
  va_end(arguments);
  return text;
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_ERROR_H */

/*
 * ops.h, exported, and the text behind ops_last_error(), for both libraries that have these functions: each library has
 * its own text for each thread.
 */
#ifndef CHAGRES_OPS_ERROR_H
#define CHAGRES_OPS_ERROR_H

#include <cstdarg>
#include <cstdio>
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

/* Assertions that name what came. */
#ifndef CHAGRES_TESTS_OPS_EXPECT_H
#define CHAGRES_TESTS_OPS_EXPECT_H

#include <cstdio>
#include <cstdlib>
#include <string>

namespace chagres::tests {

[[noreturn]] inline void stop(const char *file, int line, const std::string &text) {
  fprintf(stderr, "%s:%d: %s\n", file, line, text.c_str());
  exit(1);
}

inline void expect_equal(const char *file, int line, const char *what, long long got, long long wanted) {
  if (got != wanted)
    stop(file, line, std::string(what) + " is " + std::to_string(got) + "; expected " + std::to_string(wanted));
}

inline void expect_contains(const char *file, int line, const std::string &text, const std::string &part) {
  if (text.find(part) == std::string::npos) stop(file, line, "\"" + text + "\" lacks \"" + part + "\"");
}

#define EXPECT_EQUAL(got, wanted) ::chagres::tests::expect_equal(__FILE__, __LINE__, #got, (got), (wanted))
#define EXPECT_CONTAINS(text, part) ::chagres::tests::expect_contains(__FILE__, __LINE__, (text), (part))

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_EXPECT_H */

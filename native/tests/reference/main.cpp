/* Runs the tests of one file, of which the program has all. usage: reference_tests FILE, without folder and ending */
#include "check.h"

namespace {

bool is_of(const std::string &path, const std::string &file) {
  const size_t begin = path.rfind('/') + 1; /* 0 without a folder */
  return path.substr(begin, path.rfind('.') - begin) == file;
}

}  // namespace

int main(int count, char **arguments) {
  if (count != 2) {
    std::printf("usage: reference_tests FILE, without folder and ending\n");
    return 2;
  }
  std::printf("CHAGRES_SEED=%llu\n", static_cast<unsigned long long>(check::seed()));
  for (const check::Variable &variable : check::variables())
    if (is_of(variable.file, arguments[1])) EXPECT_EQUAL(setenv(variable.name, variable.value, 1), 0);
  size_t run = 0;
  for (const check::Test &test : check::tests()) {
    if (!is_of(test.file, arguments[1])) continue;
    ++run;
    const int before = check::failures();
    try {
      test.body();
    } catch (const std::exception &e) {
      check::report(test.name, 0, "threw: ", e.what());
    }
    std::printf("%s %s\n", check::failures() == before ? "ok    " : "FAILED", test.name);
  }
  std::printf("%zu tests, %d failed checks\n", run, check::failures());
  return check::failures() == 0 && run > 0 ? 0 : 1;
}

/* What a test sees of the emulated libraries, and the failure it asks for. */
#ifndef CHAGRES_TESTS_OPS_FAULTS_H
#define CHAGRES_TESTS_OPS_FAULTS_H

#include <atomic>

struct Faults {
  std::atomic<const char *> call{nullptr}; /* the next call of this function fails */
  std::atomic<int> compiles{0};
  std::atomic<int> loads{0};
  std::atomic<int> launches{0};
  std::atomic<int> allocations{0};
};

extern "C" Faults *emulator_faults();

#endif /* CHAGRES_TESTS_OPS_FAULTS_H */

/* What a test sees of the emulated libraries, and the failure it asks for. */
#ifndef CHAGRES_TESTS_OPS_FAULTS_H
#define CHAGRES_TESTS_OPS_FAULTS_H

#include <atomic>
#include <cstdint>

struct Faults {
  std::atomic<const char *> call{nullptr}; /* the next call of this function fails */
  std::atomic<int> compiles{0};
  std::atomic<int> loads{0};
  std::atomic<int> launches{0};
  std::atomic<unsigned> blocks{0}; /* most of one launch; a test sets it back to 0 */
  std::atomic<int> allocations{0};
  std::atomic<int> heuristics{0};  /* questions that cuBLASLt was asked */
  std::atomic<int> products{0};    /* that it was given */
  std::atomic<int> last_kernel{0}; /* of the last one, from 1 */
  std::atomic<int64_t> nanoseconds{0}; /* the clock of the device: what its products take, however busy the machine is */
};

extern "C" Faults *emulator_faults();

#endif /* CHAGRES_TESTS_OPS_FAULTS_H */

/*
 * Runs kernels on the CPU for tests without a GPU: a library with the functions of the CUDA runtime and NVRTC that
 * chagres_ops calls. Each GPU thread is a fiber; blocks run one after another. What a GPU leaves undefined is an error
 * here: a barrier or warp exchange that not all threads reach, shared memory beyond the limit, a launch on the wrong
 * device.
 */
#ifndef CHAGRES_TESTS_OPS_EMULATOR_H
#define CHAGRES_TESTS_OPS_EMULATOR_H

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <tuple>
#include <utility>

namespace chagres::emulator {

struct Index {
  unsigned x, y, z;
};

struct Launch {
  Index grid, block, block_index;
  size_t shared_bytes;
};

/* For the kernels. */
const Index &thread_index();
const Launch &launch();
float *dynamic_shared();
void wait_for_block();

enum class Exchange { kSync, kBallot, kShuffle };
/* All 32 threads of a warp meet; a shuffle gives the value of thread `source`, a ballot the bits of all votes. */
uint32_t exchange(Exchange kind, uint32_t value, unsigned source);

/* float16 (5) and bfloat16 (6). */
float decode(int dtype, uint16_t bits);
uint16_t encode(int dtype, float value);

/* A kernel with its arguments taken from cudaLaunchKernel's array. */
using Body = std::function<void()>;
using Adapter = std::function<Body(void **)>;

template <class... Types, size_t... Indices>
Body with_arguments(void (*kernel)(Types...), void **arguments, std::index_sequence<Indices...>) {
  const std::tuple<Types...> values(*static_cast<Types *>(arguments[Indices])...);
  return [=] { std::apply(kernel, values); };
}

template <class... Types>
Adapter adapt(void (*kernel)(Types...)) {
  return [=](void **arguments) { return with_arguments(kernel, arguments, std::index_sequence_for<Types...>()); };
}

struct Kernel {
  std::string source; /* "rows.cu" */
  std::string name;
  Adapter adapter;
};

struct Registration {
  Registration(const char *file, const char *name, Adapter adapter);
};

const Kernel *find_kernel(const std::string &source, const std::string &name);

/* Runs all blocks; throws std::logic_error for what would be undefined on a GPU. */
void run(const Launch &launch, const Body &body);

}  // namespace chagres::emulator

#endif /* CHAGRES_TESTS_OPS_EMULATOR_H */

// A library of seven nvte_ functions for basics.cpp: it throws what Transformer Engine throws and more, and lacks the
// rest.

#include <atomic>
#include <new>
#include <stdexcept>
#include <string>

#include "chagres/nvte.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace {

std::atomic<std::size_t> created{0};
constexpr std::size_t slots = 1 << 20;

}  // namespace

/* Odd calls give a slot number, as Transformer Engine does, even ones an address. */
EXPORT NVTETensor nvte_create_tensor(NVTEScalingMode) {
  const std::size_t number = ++created;
  return number % 2 == 1 ? reinterpret_cast<NVTETensor>(number) : new char[16];
}

EXPORT void nvte_destroy_tensor(NVTETensor tensor) {
  if (reinterpret_cast<std::size_t>(tensor) > slots) delete[] static_cast<char *>(tensor);
}

EXPORT void nvte_gelu(const NVTETensor, NVTETensor, cudaStream_t) {
  throw std::runtime_error("fake.cu:1 in function gelu: " + std::string(20000, 'x'));
}

EXPORT void nvte_relu(const NVTETensor, NVTETensor, cudaStream_t) { throw 42; }

EXPORT void nvte_silu(const NVTETensor, NVTETensor, cudaStream_t) { throw std::bad_alloc(); }

EXPORT int nvte_get_num_compute_streams(void) { return 4; }

EXPORT void nvte_multi_tensor_gemm(const NVTETensor *, const NVTETensor *, NVTETensor *, const NVTETensor *, NVTETensor *, int, bool,
                                   bool, bool, NVTETensor *, bool, bool, int, cudaStream_t) {}

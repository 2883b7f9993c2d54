#include "starve.h"

#include <atomic>
#include <climits>
#include <cstdlib>
#include <new>

namespace {

std::atomic<long> left{LONG_MAX};

void *allocate(std::size_t bytes, std::size_t alignment) {
  if (left.fetch_sub(1, std::memory_order_relaxed) <= 0) throw std::bad_alloc();
  void *memory = nullptr;
  if (alignment < sizeof(void *)) alignment = sizeof(void *);
  if (posix_memalign(&memory, alignment, bytes == 0 ? 1 : bytes) != 0) throw std::bad_alloc();
  return memory;
}

}  // namespace

void extremes::begin_starving(int number) { left = number; }

bool extremes::end_starving() { return left.exchange(LONG_MAX) < 0; }

void *operator new(std::size_t bytes) { return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__); }
void *operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
/* By which std::stable_sort asks for room; without it a sanitizer's own would give what delete below does not take. */
void *operator new(std::size_t bytes, const std::nothrow_t &) noexcept {
  try {
    return allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
  } catch (const std::bad_alloc &) {
    return nullptr;
  }
}
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void *memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }

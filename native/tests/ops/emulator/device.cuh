/*
 * The kernels' view of the emulator: this file stands in for native/ops/device.cuh when a C++ compiler compiles the
 * kernels for the CPU.
 */
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

#include "emulator.h"

#define __device__
#define __shared__ static /* blocks run one after another */
#define threadIdx (::chagres::emulator::thread_index())
#define blockIdx (::chagres::emulator::launch().block_index)
#define blockDim (::chagres::emulator::launch().block)
#define gridDim (::chagres::emulator::launch().grid)

#define KERNEL_WITH(threads, blocks, name, ...) KERNEL(name, __VA_ARGS__)
#define KERNEL_OF(blocks, name, ...) KERNEL(name, __VA_ARGS__)
#define KERNEL(name, ...)                                                                              \
  static void name(__VA_ARGS__);                                                                       \
  static const ::chagres::emulator::Registration registered_##name(__FILE__, #name,                    \
                                                                   ::chagres::emulator::adapt(&name)); \
  static void name(__VA_ARGS__)
#define DYNAMIC_SHARED(name) float *const name = ::chagres::emulator::dynamic_shared()

constexpr int kThreads = 256;

inline void __syncthreads() { ::chagres::emulator::wait_for_block(); }
inline void __syncwarp() { ::chagres::emulator::exchange(::chagres::emulator::Exchange::kSync, 0, 0); }
inline uint32_t __ballot_sync(uint32_t, bool vote) {
  return ::chagres::emulator::exchange(::chagres::emulator::Exchange::kBallot, vote, 0);
}

template <class T>
T from_bits(uint32_t bits) {
  static_assert(sizeof(T) == 4, "warps exchange words");
  T value;
  std::memcpy(&value, &bits, 4);
  return value;
}
template <class T>
uint32_t to_bits(T value) {
  static_assert(sizeof(T) == 4, "warps exchange words");
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return bits;
}

template <class T>
T __shfl_sync(uint32_t, T value, int lane) {
  using namespace ::chagres::emulator;
  return from_bits<T>(exchange(Exchange::kShuffle, to_bits(value), static_cast<unsigned>(lane)));
}
template <class T>
T __shfl_xor_sync(uint32_t, T value, int mask) {
  using namespace ::chagres::emulator;
  return from_bits<T>(exchange(Exchange::kShuffle, to_bits(value), threadIdx.x % 32 ^ static_cast<unsigned>(mask)));
}

inline float __int_as_float(int32_t bits) { return from_bits<float>(static_cast<uint32_t>(bits)); }
inline int32_t __float_as_int(float value) { return static_cast<int32_t>(to_bits(value)); }
inline float __uint_as_float(uint32_t bits) { return from_bits<float>(bits); }
inline uint32_t __float_as_uint(float value) { return to_bits(value); }
inline int __popc(uint32_t bits) { return __builtin_popcount(bits); }
inline int __ffs(uint32_t bits) { return __builtin_ffs(static_cast<int>(bits)); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __expf(float a) { return std::exp(a); }
inline float reciprocal(float value) { return 1 / value; }
inline float reciprocal_root(float value) { return 1 / std::sqrt(value); }
inline float logarithm(float value) { return std::log2(value); }

using float32 = float;
struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

inline float to_float(float32 value) { return value; }
inline float to_float(bfloat16 value) { /* the upper half of a float */
  const uint32_t bits = uint32_t{value.bits} << 16;
  float result;
  std::memcpy(&result, &bits, sizeof result);
  return result;
}
inline float to_float(float16 value) { return ::chagres::emulator::decode(5, value.bits); }
inline void from_float(float value, float32 &result) { result = value; }
inline void from_float(float value, bfloat16 &result) { result.bits = ::chagres::emulator::encode(6, value); }
inline void from_float(float value, float16 &result) { result.bits = ::chagres::emulator::encode(5, value); }

template <class T>
void two_floats(uint32_t word, T, float &first, float &second) {
  first = to_float(T{static_cast<uint16_t>(word)});
  second = to_float(T{static_cast<uint16_t>(word >> 16)});
}
template <class T>
uint32_t two_of(float low, float high) {
  T first, second;
  from_float(low, first);
  from_float(high, second);
  return first.bits | static_cast<uint32_t>(second.bits) << 16;
}

using SharedAddress = char *;
inline SharedAddress shared_address(void *shared) { return static_cast<char *>(shared); }
inline void copy_async(SharedAddress shared, const void *source) { std::memcpy(shared, source, 16); }
inline void copy_async(float *shared, const float *source, bool there) {
  if (there) std::memcpy(shared, source, 16);
  else std::memset(shared, 0, 16);
}
inline void wait_for_copies() {}
inline void end_copy_group() {}
template <int>
void wait_for_copy_groups() {}
inline bool is_last_block(unsigned *arrived) {
  static bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    last = *arrived == gridDim.x - 1;
    *arrived = last ? 0 : *arrived + 1;
  }
  __syncthreads();
  return last;
}
inline void atomic_max(float *address, float value) { *address = value > *address ? value : *address; }

/*
 * What only the GPU compiler knows: integer names, kernel declarations, number formats. NVRTC sees no header but ours,
 * so the conversions are PTX instructions (compute capability 8.0 and newer). The tests have their own device.cuh that
 * lets a C++ compiler run the same kernels on the CPU.
 */
#pragma once

using int32_t = int;
using int64_t = long long;
using uint8_t = unsigned char;
using uint16_t = unsigned short;
using uint32_t = unsigned int;
using uint64_t = unsigned long long;

constexpr int kThreads = 256; /* the most threads a block of any kernel has */

/* threads: the most of a block; blocks: how many a multiprocessor must hold at once. Both bound a thread's registers. */
#define KERNEL_WITH(threads, blocks, name, ...) \
  extern "C" __global__ void __launch_bounds__(threads, blocks) name(__VA_ARGS__)
#define KERNEL_OF(blocks, name, ...) KERNEL_WITH(kThreads, blocks, name, __VA_ARGS__)
#define KERNEL(name, ...) KERNEL_OF(1, name, __VA_ARGS__)
#define DYNAMIC_SHARED(name) extern __shared__ float name[]

using float32 = float;
struct float16 {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

__device__ inline float to_float(float32 value) { return value; }

__device__ inline float to_float(bfloat16 value) { return __uint_as_float(static_cast<uint32_t>(value.bits) << 16); }

__device__ inline float to_float(float16 value) {
  float result;
  asm("cvt.f32.f16 %0, %1;" : "=f"(result) : "h"(value.bits));
  return result;
}

/* To one or two units in the last place, of normal numbers: 1 / value, 1 / sqrt(value), and the logarithm to base 2. */
#define APPROXIMATE(name, instruction)                                \
  __device__ inline float name(float value) {                         \
    float result;                                                     \
    asm(instruction ".approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value)); \
    return result;                                                    \
  }
APPROXIMATE(reciprocal, "rcp")
APPROXIMATE(reciprocal_root, "rsqrt")
APPROXIMATE(logarithm, "lg2")

/* Rounds to nearest even. */
__device__ inline void from_float(float value, float32 &result) { result = value; }

__device__ inline void from_float(float value, bfloat16 &result) {
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
}

__device__ inline void from_float(float value, float16 &result) {
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(result.bits) : "f"(value));
}

/* The two numbers of a word, the first in its lower half. */
__device__ inline void two_floats(uint32_t word, bfloat16, float &first, float &second) {
  first = __uint_as_float(word << 16);
  second = __uint_as_float(word & 0xffff0000u);
}

__device__ inline void two_floats(uint32_t word, float16, float &first, float &second) {
  asm("{ .reg .f16 a, b; mov.b32 {a, b}, %2; cvt.f32.f16 %0, a; cvt.f32.f16 %1, b; }"
      : "=f"(first), "=f"(second)
      : "r"(word));
}

/* Two numbers in one word, the first one low; rounds to nearest even. */
template <class T>
__device__ inline uint32_t two_of(float low, float high);

template <>
__device__ inline uint32_t two_of<bfloat16>(float low, float high) {
  uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

template <>
__device__ inline uint32_t two_of<float16>(float low, float high) {
  uint32_t word;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(high), "f"(low));
  return word;
}

/* Copies 16 bytes into shared memory without passing registers, or zeros when `there` is false; both addresses are
 * multiples of 16. A thread that has called wait_for_copies sees its copies, after a barrier all see them. */
__device__ inline void copy_async(float *shared, const float *source, bool there) {
  const uint32_t destination = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(destination), "l"(source), "r"(there ? 16 : 0)
               : "memory");
}

__device__ inline void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

/* The same copy, to an address that was converted before. */
using SharedAddress = uint32_t;
__device__ inline SharedAddress shared_address(const void *shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
__device__ inline void copy_async(SharedAddress shared, const void *source) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(shared), "l"(source) : "memory");
}

/* Makes a group of the copies that the thread has begun since its last group. */
__device__ inline void end_copy_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }

/* Waits until at most `groups` of the thread's groups, the last ones, are under way. */
template <int groups>
__device__ inline void wait_for_copy_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
}

/* Raises *address to value; both are at least 0, where integers have the order of the numbers. */
/* Returns, in all threads of a block, whether it is the last of the grid's blocks to come here. That block sees what the others
 * wrote before. arrived: 0 before the kernel, and 0 again after it. */
__device__ inline bool is_last_block(unsigned *arrived) {
  __shared__ bool last;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) last = atomicInc(arrived, gridDim.x - 1) == gridDim.x - 1;
  __syncthreads();
  __threadfence();
  return last;
}

__device__ inline void atomic_max(float *address, float value) {
  atomicMax(reinterpret_cast<int *>(address), __float_as_int(value));
}

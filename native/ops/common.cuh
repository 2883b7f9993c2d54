/*
 * What the kernels share: packs of elements that move in one memory instruction, and grid-stride indices.
 */
#pragma once

#include <device.cuh>

/* N neighbours, read and written in 16-byte instructions where N elements are that long. */
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack {
  T value[N];
};

template <int N, class T>
__device__ inline Pack<T, N> load_pack(const T *source) {
  return *reinterpret_cast<const Pack<T, N> *>(source);
}

template <int N, class T>
__device__ inline void store_pack(T *destination, const Pack<T, N> &pack) {
  *reinterpret_cast<Pack<T, N> *>(destination) = pack;
}

__device__ inline int64_t thread_index() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }
__device__ inline int64_t thread_total() { return static_cast<int64_t>(gridDim.x) * blockDim.x; }

/* a / b for a, b >= 0: a 64-bit division costs several times a 32-bit one, and is seldom needed. */
__device__ inline int64_t divide(int64_t a, int64_t b) {
  if (((a | b) >> 32) == 0) return static_cast<uint32_t>(a) / static_cast<uint32_t>(b);
  return a / b;
}

/* Elements of a 16-byte pack. */
template <class T>
constexpr int kPack = 16 / sizeof(T);

/* A pack as it lies in memory. */
using Words = Pack<uint32_t, 4>;

template <class T>
__device__ inline void to_floats(const Words &words, float (&value)[kPack<T>]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      value[i] = __uint_as_float(words.value[i]);
    } else {
      two_floats(words.value[i], T{}, value[2 * i], value[2 * i + 1]);
    }
  }
}

template <class T>
__device__ inline Words to_words(const float (&value)[kPack<T>]) {
  Words words;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if constexpr (sizeof(T) == 4) {
      words.value[i] = __float_as_uint(value[i]);
    } else {
      words.value[i] = two_of<T>(value[2 * i], value[2 * i + 1]);
    }
  }
  return words;
}

/* Defines `name`_float32, `name`_float16 and `name`_bfloat16 through define(kernel name, element type). */
#define FOR_FLOATS(define, name) \
  define(name##_float32, float32) define(name##_float16, float16) define(name##_bfloat16, bfloat16)

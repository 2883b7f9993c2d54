/* The largest magnitude that a kernel wrote, from which the next scale follows. */
#pragma once

#include <common.cuh>

/* Raises *amax to the largest value of the block's threads. */
__device__ inline void raise(float *amax, float value) {
  constexpr int kOfWarps = kThreads / 32;
  __shared__ float warp_largest[kOfWarps];
  for (int distance = 16; distance > 0; distance /= 2)
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
  if (threadIdx.x % 32 == 0) warp_largest[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int w = 1; w < kOfWarps; ++w) value = fmaxf(value, warp_largest[w]);
  atomic_max(amax, value);
}

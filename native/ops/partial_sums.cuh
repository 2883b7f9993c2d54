/*
 * The second half of sums over very many rows: out[c] = beta * out[c] + sum over k of partial[k, c]. A block owns 32
 * columns; its eight warps take every eighth k, and warp 0 adds their sums in order: the order is fixed.
 */
#pragma once

#include <common.cuh>

__device__ inline void sum_partials(const float *partial, float *out, float beta, int64_t chunks, int64_t columns) {
  constexpr int kWarps = kThreads / 32;
  __shared__ float warp_sum[kWarps][32];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  for (int64_t first = blockIdx.x * 32LL; first < columns; first += gridDim.x * 32LL) {
    const int64_t column = first + lane;
    float sum = 0;
    if (column < columns) {
#pragma unroll 4
      for (int64_t k = warp; k < chunks; k += kWarps) sum += partial[k * columns + column];
    }
    warp_sum[warp][lane] = sum;
    __syncthreads();
    if (warp == 0 && column < columns) {
      float total = warp_sum[0][lane];
      for (int w = 1; w < kWarps; ++w) total += warp_sum[w][lane];
      out[column] = beta != 0 ? fmaf(beta, out[column], total) : total;
    }
    __syncthreads();
  }
}

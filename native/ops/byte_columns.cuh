/* How kernels turn matrices of bytes: four rows of four columns in four words. */
#pragma once

#include <device.cuh>

/* Column c of four rows, the first row in the lowest byte. */
__device__ inline uint32_t byte_column(const uint32_t (&of_row)[4], int c) {
  uint32_t of_column = 0;
#pragma unroll
  for (int r = 0; r < 4; ++r) of_column |= (of_row[r] >> 8 * c & 0xffu) << 8 * r;
  return of_column;
}

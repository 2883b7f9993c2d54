/* The emulator's products on tensor cores, with the fragments of native/ops/mma.cuh. */
#pragma once

#include <stdexcept>

#include "device.cuh"

template <class T>
float half_of(uint32_t word, int half) {
  return to_float(T{static_cast<uint16_t>(word >> 16 * half)});
}

/* A warp lays its fragments down, and each thread sums what is its own. Blocks run one after another. */
template <class T>
void multiply_add(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1) {
  static uint32_t fragments[kThreads][6];
  const unsigned thread = threadIdx.x, lane = thread % 32, warp = thread - lane;
  for (int i = 0; i < 4; ++i) fragments[thread][i] = left[i];
  fragments[thread][4] = right0;
  fragments[thread][5] = right1;
  __syncwarp();
  for (int i = 0; i < 4; ++i) { /* row lane / 4 + 8 * (i / 2), column 2 * (lane % 4) + i % 2 */
    const unsigned row = lane / 4, column = 2 * (lane % 4) + static_cast<unsigned>(i % 2);
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned quad = k % 8 / 2, half = k % 2, later = k / 8;
      const uint32_t a = fragments[warp + 4 * row + quad][static_cast<unsigned>(i / 2) + 2 * later];
      const uint32_t b = fragments[warp + 4 * column + quad][4 + later];
      sum[i] += half_of<T>(a, static_cast<int>(half)) * half_of<T>(b, static_cast<int>(half));
    }
  }
  __syncwarp();
}

/* The row of its matrix that each thread names. */
inline const uint32_t *const *rows_of_warp(const uint32_t *row) {
  static const uint32_t *rows[kThreads];
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) throw std::logic_error("a matrix row that is not on 16 bytes");
  rows[threadIdx.x] = row;
  __syncwarp();
  return rows + threadIdx.x / 32 * 32;
}

inline void load_matrices(uint32_t (&words)[4], const uint32_t *row) {
  const uint32_t *const *const rows = rows_of_warp(row);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned m = 0; m < 4; ++m) words[m] = rows[8 * m + lane / 4][lane % 4];
  __syncwarp();
}

inline void load_turned_matrices(uint32_t (&words)[4], const uint32_t *row) {
  const uint32_t *const *const rows = rows_of_warp(row);
  const unsigned lane = threadIdx.x % 32, column = lane / 4;
  for (unsigned m = 0; m < 4; ++m) {
    uint32_t two[2];
    for (unsigned e = 0; e < 2; ++e)
      two[e] = rows[8 * m + 2 * (lane % 4) + e][column / 2] >> 16 * (column % 2) & 0xffffu;
    words[m] = two[0] | two[1] << 16;
  }
  __syncwarp();
}

inline float exp2_of(float value) {
  const float result = std::exp2(value);
  return result < 1.17549435e-38f ? 0.0f : result; /* a NaN stays */
}

/* The emulator's products on tensor cores, with the fragments of native/ops/mma.cuh. */
#pragma once

#include <stdexcept>

#include "device.cuh"

/* What each thread gives the others of its warp, on two boards in turn. Before a thread writes to a board again it has
 * waited once more for the warp, so all have read what was there. */
template <class Given>
class WarpBoard {
 public:
  /* What the warp's threads give, once all have. */
  const Given *exchange(const Given &given) {
    const unsigned thread = threadIdx.x;
    Given *const board = boards_[turns_[thread]++ % 2];
    board[thread] = given;
    __syncwarp();
    return board + thread / 32 * 32;
  }

 private:
  Given boards_[2][kThreads];
  unsigned turns_[kThreads] = {};
};

struct Fragments {
  float left[4][2], right[2][2];
};

template <class T>
void halves_of(uint32_t word, float (&halves)[2]) {
  halves[0] = to_float(T{static_cast<uint16_t>(word)});
  halves[1] = to_float(T{static_cast<uint16_t>(word >> 16)});
}

/* Adds a thread's part of the products. The fragments are the emulator's own: sanitizers, which look at what kernels touch, would
 * make this three times as slow. */
__attribute__((no_sanitize("address", "undefined"), optimize("O3"))) inline void add_products_of(
    const Fragments *warp, unsigned lane, float (&sum)[4]) {
  for (unsigned i = 0; i < 4; ++i) { /* row lane / 4 + 8 * (i / 2), column 2 * (lane % 4) + i % 2 */
    const unsigned row = lane / 4, column = 2 * (lane % 4) + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned quad = k % 8 / 2, half = k % 2, later = k / 8;
      sum[i] += warp[4 * row + quad].left[i / 2 + 2 * later][half] * warp[4 * column + quad].right[later][half];
    }
  }
}

/* A warp lays its fragments down, and each thread sums what is its own. Blocks run one after another. */
template <class T>
void multiply_add(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1) {
  static WarpBoard<Fragments> board;
  Fragments own;
  for (int i = 0; i < 4; ++i) halves_of<T>(left[i], own.left[i]);
  halves_of<T>(right0, own.right[0]);
  halves_of<T>(right1, own.right[1]);
  add_products_of(board.exchange(own), threadIdx.x % 32, sum);
}

/* The row of its matrix that each thread names. */
inline const uint32_t *const *rows_of_warp(const uint32_t *row) {
  static WarpBoard<const uint32_t *> board;
  if (reinterpret_cast<uintptr_t>(row) % 16 != 0) throw std::logic_error("a matrix row that is not on 16 bytes");
  return board.exchange(row);
}

inline void load_matrices(uint32_t (&words)[4], const uint32_t *row) {
  const uint32_t *const *const rows = rows_of_warp(row);
  const unsigned lane = threadIdx.x % 32;
  for (unsigned m = 0; m < 4; ++m) words[m] = rows[8 * m + lane / 4][lane % 4];
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
}

inline float exp2_of(float value) {
  const float result = std::exp2(value);
  return result < 1.17549435e-38f ? 0.0f : result; /* a NaN stays */
}

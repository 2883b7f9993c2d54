/* Products of 16-bit numbers on tensor cores. The tests have their own, for the CPU. */
#pragma once

#include <device.cuh>

/* sum += left right: PTX's mma.m16n8k16 with FP32 sums, whose fragments these are. All threads of a warp call it. */
template <class T>
__device__ inline void multiply_add(float (&sum)[4], const uint32_t (&left)[4], uint32_t right0, uint32_t right1);

#define MULTIPLY_ADD(T, type)                                                                               \
  template <>                                                                                               \
  __device__ inline void multiply_add<T>(float(&sum)[4], const uint32_t(&left)[4], uint32_t right0,         \
                                         uint32_t right1) {                                                 \
    asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type                                              \
        ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                              \
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])                                            \
        : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "r"(right0), "r"(right1));                \
  }

MULTIPLY_ADD(bfloat16, "bf16")
MULTIPLY_ADD(float16, "f16")

/* Loads four matrices of 8 x 8 numbers of 16 bits from shared memory: thread i of a warp names, on a boundary of 16
 * bytes, row i % 8 of matrix i / 8, and receives of each matrix the two neighbours from column 2 * (i % 4) of row
 * i / 4. All threads of a warp call it. */
__device__ inline void load_matrices(uint32_t (&words)[4], const uint32_t *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
}

/* The same of the transposed matrices: rows 2 * (i % 4) and the one below, of column i / 4. */
__device__ inline void load_turned_matrices(uint32_t (&words)[4], const uint32_t *row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(words[0]), "=r"(words[1]), "=r"(words[2]), "=r"(words[3])
               : "r"(static_cast<uint32_t>(__cvta_generic_to_shared(row))));
}

/* 2^value, 1 ulp off at most for what softmax needs: results below the smallest normal number are 0. */
__device__ inline float exp2_of(float value) {
  float result;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(value));
  return result;
}

/* y[r, c] = q[r, c] times the scale of its block. A thread writes 16 bytes of y, or one element. */
#include <fp8.cuh>

template <class T>
__device__ void dequantize_blocks(const uint8_t *q, const float *scale_inverse, T *y, int64_t packs, int64_t packs_in_row,
                                  int64_t stride, int scaling, int fp8) {
  constexpr int kCount = kPack<T>;
  for (int64_t pack = thread_index(); pack < packs; pack += thread_total()) {
    const int64_t row = divide(pack, packs_in_row), block = (pack - row * packs_in_row) * kCount / 128;
    const float s = scale_inverse[place_of_scale(scaling, row, block, stride)];
    float value[kCount];
    from_fp8<kCount>(load_pack<kCount / 4>(reinterpret_cast<const uint32_t *>(q) + pack * (kCount / 4)), fp8, value);
#pragma unroll
    for (int i = 0; i < kCount; ++i) value[i] *= s;
    store_pack<4>(reinterpret_cast<uint32_t *>(y) + pack * 4, to_words<T>(value));
  }
}

template <class T>
__device__ void dequantize_blocks_scalar(const uint8_t *q, const float *scale_inverse, T *y, int64_t count, int64_t columns,
                                         int64_t stride, int scaling, int fp8) {
  for (int64_t i = thread_index(); i < count; i += thread_total()) {
    const int64_t row = divide(i, columns), block = (i - row * columns) / 128;
    from_float(from_fp8(q[i], fp8) * scale_inverse[place_of_scale(scaling, row, block, stride)], y[i]);
  }
}

#define PACKED(name, T)                                                                                               \
  KERNEL(name, const uint8_t *q, const float *scale_inverse, T *y, int64_t packs, int64_t packs_in_row,               \
         int64_t stride, int scaling, int fp8) {                                                                      \
    dequantize_blocks(q, scale_inverse, y, packs, packs_in_row, stride, scaling, fp8);                                \
  }
#define SCALAR(name, T)                                                                                               \
  KERNEL(name, const uint8_t *q, const float *scale_inverse, T *y, int64_t count, int64_t columns, int64_t stride,    \
         int scaling, int fp8) {                                                                                      \
    dequantize_blocks_scalar(q, scale_inverse, y, count, columns, stride, scaling, fp8);                              \
  }

FOR_FLOATS(PACKED, dequantize_blocks)
FOR_FLOATS(SCALAR, dequantize_blocks_scalar)

/* Dropout with residual, forward and backward. A thread owns eight elements, the bits of one byte of the mask. */
#include <common.cuh>
#include <philox.cuh>

constexpr int kBits = 8;

/* Bit j is set when element 8 * byte + j is kept: its word is at or above the threshold. */
__device__ inline uint32_t keep_bits(uint64_t seed, uint64_t offset, int64_t byte, uint32_t threshold) {
  uint32_t bits = 0;
  for (int half = 0; half < 2; ++half) {
    uint32_t word[4];
    philox(seed, offset + 2 * static_cast<uint64_t>(byte) + half, word);
    for (int j = 0; j < 4; ++j) bits |= (word[j] >= threshold ? 1u : 0u) << (4 * half + j);
  }
  return bits;
}

/* Reads up to eight elements; whole eights in 16-byte instructions when `Packed`. */
template <bool Packed, class T>
__device__ inline Pack<T, kBits> read_eight(const T *source, int64_t available) {
  if (Packed && available >= kBits) return load_pack<kBits>(source);
  Pack<T, kBits> pack = {};
  for (int j = 0; j < kBits && j < available; ++j) pack.value[j] = source[j];
  return pack;
}

template <bool Packed, class T>
__device__ inline void write_eight(T *destination, const Pack<T, kBits> &pack, int64_t available) {
  if (Packed && available >= kBits) return store_pack<kBits>(destination, pack);
  for (int j = 0; j < kBits && j < available; ++j) destination[j] = pack.value[j];
}

template <bool Packed, class T>
__device__ void dropout_add(const T *x, const T *residual, T *y, uint8_t *mask, const int64_t *rng_state,
                            uint32_t threshold, float scale, int64_t count) {
  const uint64_t seed = static_cast<uint64_t>(rng_state[0]), offset = static_cast<uint64_t>(rng_state[1]);
  const int64_t bytes = (count + kBits - 1) / kBits;
  for (int64_t byte = thread_index(); byte < bytes; byte += thread_total()) {
    const int64_t first = byte * kBits, available = count - first;
    auto value = read_eight<Packed>(x + first, available);
    const auto base = read_eight<Packed>(residual + first, available);
    uint32_t bits = keep_bits(seed, offset, byte, threshold);
    if (available < kBits) bits &= (1u << available) - 1;
    for (int j = 0; j < kBits; ++j) {
      const float kept = to_float(base.value[j]);
      /* Rounded twice, as the reference does: a fused multiply-add would give other bits. */
      const float scaled = __fmul_rn(to_float(value.value[j]), scale);
      from_float(bits >> j & 1 ? __fadd_rn(scaled, kept) : kept, value.value[j]);
    }
    write_eight<Packed>(y + first, value, available);
    mask[byte] = static_cast<uint8_t>(bits);
  }
}

template <bool Packed, class T>
__device__ void dropout_backward(const T *dy, const uint8_t *mask, T *dx, float scale, int64_t count) {
  const int64_t bytes = (count + kBits - 1) / kBits;
  for (int64_t byte = thread_index(); byte < bytes; byte += thread_total()) {
    const int64_t first = byte * kBits, available = count - first;
    auto value = read_eight<Packed>(dy + first, available);
    const uint32_t bits = mask[byte];
    for (int j = 0; j < kBits; ++j) from_float(bits >> j & 1 ? to_float(value.value[j]) * scale : 0.0f, value.value[j]);
    write_eight<Packed>(dx + first, value, available);
  }
}

#define FORWARD(name, T, packed)                                                                                 \
  KERNEL(name, const T *x, const T *residual, T *y, uint8_t *mask, const int64_t *rng_state, uint32_t threshold, \
         float scale, int64_t count) {                                                                           \
    dropout_add<packed>(x, residual, y, mask, rng_state, threshold, scale, count);                               \
  }
#define BACKWARD(name, T, packed)                                                     \
  KERNEL(name, const T *dy, const uint8_t *mask, T *dx, float scale, int64_t count) { \
    dropout_backward<packed>(dy, mask, dx, scale, count);                             \
  }
#define FORWARD_PACKED(name, T) FORWARD(name, T, true)
#define FORWARD_SCALAR(name, T) FORWARD(name, T, false)
#define BACKWARD_PACKED(name, T) BACKWARD(name, T, true)
#define BACKWARD_SCALAR(name, T) BACKWARD(name, T, false)

FOR_FLOATS(FORWARD_PACKED, dropout_add)
FOR_FLOATS(FORWARD_SCALAR, dropout_add_scalar)
FOR_FLOATS(BACKWARD_PACKED, dropout_backward)
FOR_FLOATS(BACKWARD_SCALAR, dropout_backward_scalar)

/* Drop path: a factor for each sequence, and rows scaled by their sequence's factor. */
#include <philox.cuh>
#include <token_layout.cuh>

/* A thread draws for four sequences. */
KERNEL(drop_path_factors, const int64_t *rng_state, uint32_t threshold, float scale, float *factors,
       int64_t sequences) {
  const uint64_t seed = static_cast<uint64_t>(rng_state[0]), offset = static_cast<uint64_t>(rng_state[1]);
  for (int64_t i = thread_index(); i * 4 < sequences; i += thread_total()) {
    uint32_t word[4];
    philox(seed, offset + static_cast<uint64_t>(i), word);
    for (int j = 0; j < 4 && i * 4 + j < sequences; ++j) factors[i * 4 + j] = word[j] >= threshold ? scale : 0.0f;
  }
}

/* A warp owns a token. */
template <class T, int N>
__device__ void scale_sequences_add(const T *x, const T *residual, T *y, const float *factors,
                                    const int32_t *cu_seqlens, int layout, int64_t first, int64_t tokens,
                                    int64_t extent, int64_t columns) {
  for (int64_t t = thread_index() / 32; t < tokens; t += thread_total() / 32) {
    const int64_t sequence = sequence_of(first + t, cu_seqlens, layout, extent), row = t * columns;
    const float factor = sequence < 0 ? 0.0f : factors[sequence];
    for (int64_t c = threadIdx.x % 32 * N; c < columns; c += 32 * N) {
      Pack<T, N> value = {};
      if (residual != nullptr) value = load_pack<N>(residual + row + c);
      if (factor != 0) {
        const auto term = load_pack<N>(x + row + c);
        for (int j = 0; j < N; ++j) {
          /* Rounded twice, as the reference does: a fused multiply-add would give other bits. */
          const float product = __fmul_rn(to_float(term.value[j]), factor);
          from_float(residual != nullptr ? __fadd_rn(product, to_float(value.value[j])) : product, value.value[j]);
        }
      }
      store_pack<N>(y + row + c, value);
    }
  }
}

#define KERNELS(name, T, N)                                                                                         \
  KERNEL(name, const T *x, const T *residual, T *y, const float *factors, const int32_t *cu_seqlens, int layout,    \
         int64_t first, int64_t tokens, int64_t extent, int64_t columns) {                                          \
    scale_sequences_add<T, N>(x, residual, y, factors, cu_seqlens, layout, first, tokens, extent, columns);         \
  }
#define PACKED(name, T) KERNELS(name, T, kPack<T>)
#define SCALAR(name, T) KERNELS(name, T, 1)

FOR_FLOATS(PACKED, scale_sequences_add)
FOR_FLOATS(SCALAR, scale_sequences_add_scalar)

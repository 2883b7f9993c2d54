/*
 * Rotary position embedding, in place, of query and key in qkv [T, 3, h, d]. A block owns a few tokens: it finds their
 * positions, computes each angle's sine and cosine once into shared memory, then rotates all heads with them.
 */
#include <token_layout.cuh>

constexpr int kMostTokens = 8; /* the most tokens a block owns */

template <class T, int N>
__device__ inline void rotate(T *row, const float *cosine, const float *sine, int half) {
  auto low = load_pack<N>(row);
  auto high = load_pack<N>(row + half);
  for (int j = 0; j < N; ++j) {
    const float a = to_float(low.value[j]), b = to_float(high.value[j]);
    from_float(a * cosine[j] - b * sine[j], low.value[j]);
    from_float(b * cosine[j] + a * sine[j], high.value[j]);
  }
  store_pack<N>(row, low);
  store_pack<N>(row + half, high);
}

template <class T, int N>
__device__ void rotary(T *qkv, const int32_t *cu_seqlens, const float *angles, float direction, int layout,
                       int64_t tokens, int64_t extent, int64_t positions, int heads, int head_dim, int block_tokens) {
  __shared__ int64_t position[kMostTokens];
  DYNAMIC_SHARED(shared);
  const int half = head_dim / 2, packs = half / N;
  float *cosine = shared, *sine = shared + block_tokens * half;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * block_tokens;
  if (static_cast<int>(threadIdx.x) < block_tokens) {
    const int64_t t = first + threadIdx.x;
    const int64_t p = t < tokens ? position_of(t, cu_seqlens, layout, extent) : -1;
    position[threadIdx.x] = p < positions ? p : -1;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < block_tokens * half; i += blockDim.x) {
    const int64_t p = position[i / half];
    if (p < 0) continue;
    float s, c;
    sincosf(angles[p * head_dim + i % half], &s, &c);
    cosine[i] = c;
    sine[i] = s * direction;
  }
  __syncthreads();
  /* Query and key heads lie side by side: 2 * heads rows of head_dim from the start of the token. */
  for (int i = threadIdx.x; i < block_tokens * 2 * heads * packs; i += blockDim.x) {
    const int row = i / packs, column = (i - row * packs) * N;
    const int token = row / (2 * heads), head = row - token * 2 * heads;
    if (position[token] < 0) continue;
    T *start = qkv + ((first + token) * 3 * heads + head) * head_dim + column;
    rotate<T, N>(start, cosine + token * half + column, sine + token * half + column, half);
  }
}

#define KERNELS(name, T, N)                                                                                         \
  KERNEL(name, T *qkv, const int32_t *cu_seqlens, const float *angles, float direction, int layout, int64_t tokens, \
         int64_t extent, int64_t positions, int heads, int head_dim, int block_tokens) {                            \
    rotary<T, N>(qkv, cu_seqlens, angles, direction, layout, tokens, extent, positions, heads, head_dim,            \
                 block_tokens);                                                                                     \
  }
#define PACKED(name, T) KERNELS(name, T, kPack<T>)
#define SCALAR(name, T) KERNELS(name, T, 1)

FOR_FLOATS(PACKED, rotary)
FOR_FLOATS(SCALAR, rotary_scalar)

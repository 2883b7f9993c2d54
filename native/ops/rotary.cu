/*
 * Rotary position embedding of query and key: in place inside one buffer, or between that buffer and three of their own. A
 * block owns a few tokens: it finds their positions, computes each angle's sine and cosine once into shared memory, then
 * moves all heads, two packs of N elements a step.
 */
#include <token_layout.cuh>
#include <rotary_arguments.cuh>

constexpr int kMostTokens = 8; /* the most tokens a block owns */

/* The position of token t, -1 where it is not rotated. */
__device__ inline int64_t rotary_position(const RotaryArguments &a, int64_t t) {
  if (t >= a.tokens || a.rotated_dim == 0) return -1;
  int64_t p = position_of(t, a.cu_seqlens, a.layout, a.extent);
  if (p < 0) return -1;
  if (a.start_positions != nullptr) p += a.start_positions[sequence_of(t, a.cu_seqlens, a.layout, a.extent)];
  return p >= 0 && p < a.positions ? p : -1;
}

/* Positions, and the sine and cosine of each pair's angle, of the block's tokens. */
__device__ inline void prepare_angles(const RotaryArguments &a, int64_t *position, float *cosine, float *sine) {
  const int half = a.rotated_dim / 2;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * a.block_tokens;
  if (static_cast<int>(threadIdx.x) < a.block_tokens) position[threadIdx.x] = rotary_position(a, first + threadIdx.x);
  __syncthreads();
  for (int i = threadIdx.x; i < a.block_tokens * half; i += blockDim.x) {
    const int64_t p = position[i / half];
    if (p < 0) continue;
    float s, c;
    sincosf(a.angles[p * a.rotated_dim + (a.interleaved ? 2 : 1) * (i % half)], &s, &c);
    cosine[i] = c;
    sine[i] = s * a.direction;
  }
  __syncthreads();
}

template <class T>
__device__ inline void turn(T &first, T &second, float cosine, float sine) {
  const float a = to_float(first), b = to_float(second);
  from_float(a * cosine - b * sine, first);
  from_float(b * cosine + a * sine, second);
}

/* Rotates N pairs; cosine and sine are those of the first. */
template <class T, int N>
__device__ inline void rotate(Pack<T, N> &low, Pack<T, N> &high, const float *cosine, const float *sine,
                              bool interleaved) {
  if constexpr (N > 1) {
    if (interleaved) {
      for (int j = 0; j < N / 2; ++j) {
        turn(low.value[2 * j], low.value[2 * j + 1], cosine[j], sine[j]);
        turn(high.value[2 * j], high.value[2 * j + 1], cosine[N / 2 + j], sine[N / 2 + j]);
      }
      return;
    }
  }
  for (int j = 0; j < N; ++j) turn(low.value[j], high.value[j], cosine[j], sine[j]);
}

/* Where the two packs that begin with pair `pair` of a rotated head lie: neighbours when interleaved. */
template <int N>
__device__ inline void place(const RotaryArguments &a, int pair, int &low, int &high) {
  low = a.interleaved ? 2 * pair : pair;
  high = a.interleaved ? low + N : low + a.rotated_dim / 2;
}

template <class T, int N>
__device__ void rotary(const RotaryArguments &a) {
  __shared__ int64_t position[kMostTokens];
  DYNAMIC_SHARED(shared);
  const int half = a.rotated_dim / 2, packs = half / N, heads = a.heads + a.kv_heads;
  float *cosine = shared, *sine = shared + a.block_tokens * half;
  prepare_angles(a, position, cosine, sine);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * a.block_tokens;
  /* Query and key heads lie side by side from the start of the token. */
  for (int i = threadIdx.x; i < a.block_tokens * heads * packs; i += blockDim.x) {
    const int row = i / packs, pair = (i - row * packs) * N;
    const int token = row / heads, head = row - token * heads;
    if (position[token] < 0) continue;
    T *start = static_cast<T *>(a.to_query.data) + (first + token) * a.to_query.step + head * a.head_dim;
    int low_at, high_at;
    place<N>(a, pair, low_at, high_at);
    auto low = load_pack<N>(start + low_at), high = load_pack<N>(start + high_at);
    rotate<T, N>(low, high, cosine + token * half + pair, sine + token * half + pair, a.interleaved);
    store_pack<N>(start + low_at, low);
    store_pack<N>(start + high_at, high);
  }
}

template <class T>
__device__ inline T *head_of(const RotaryHeads &heads, int64_t token, int head, int head_dim) {
  return static_cast<T *>(heads.data) + token * heads.step + head * head_dim;
}

template <class T, int N>
__device__ void rotary_copy(const RotaryArguments &a) {
  __shared__ int64_t position[kMostTokens];
  DYNAMIC_SHARED(shared);
  const int half = a.rotated_dim / 2, packs = a.head_dim / 2 / N, heads = a.heads + 2 * a.kv_heads;
  float *cosine = shared, *sine = shared + a.block_tokens * half;
  prepare_angles(a, position, cosine, sine);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * a.block_tokens;
  for (int i = threadIdx.x; i < a.block_tokens * heads * packs; i += blockDim.x) {
    const int row = i / packs, pair = (i - row * packs) * N;
    const int token = row / heads, head = row - token * heads;
    const int64_t t = first + token;
    if (t >= a.tokens) continue;
    const bool of_query = head < a.heads, of_key = !of_query && head < a.heads + a.kv_heads;
    const int index = of_query ? head : of_key ? head - a.heads : head - a.heads - a.kv_heads;
    const T *from = head_of<T>(of_query ? a.from_query : of_key ? a.from_key : a.from_value, t, index, a.head_dim);
    T *to = head_of<T>(of_query ? a.to_query : of_key ? a.to_key : a.to_value, t, index, a.head_dim);
    /* What is not rotated moves by pairs of packs, too: the elements behind rotated_dim by halves of their own. */
    int low_at = 2 * pair, high_at = 2 * pair + N;
    const bool inside = pair < half;
    if (inside) place<N>(a, pair, low_at, high_at);
    auto low = load_pack<N>(from + low_at), high = load_pack<N>(from + high_at);
    if (inside && (of_query || of_key) && position[token] >= 0)
      rotate<T, N>(low, high, cosine + token * half + pair, sine + token * half + pair, a.interleaved);
    store_pack<N>(to + low_at, low);
    store_pack<N>(to + high_at, high);
  }
}

#define IN_PLACE(name, T, N) KERNEL(name, RotaryArguments arguments) { rotary<T, N>(arguments); }
#define COPY(name, T, N) KERNEL(name, RotaryArguments arguments) { rotary_copy<T, N>(arguments); }
#define PACKED(name, T) IN_PLACE(name, T, kPack<T>)
#define SCALAR(name, T) IN_PLACE(name, T, 1)
#define PACKED_COPY(name, T) COPY(name, T, kPack<T>)
#define SCALAR_COPY(name, T) COPY(name, T, 1)

FOR_FLOATS(PACKED, rotary)
FOR_FLOATS(SCALAR, rotary_scalar)
FOR_FLOATS(PACKED_COPY, rotary_copy)
FOR_FLOATS(SCALAR_COPY, rotary_copy_scalar)

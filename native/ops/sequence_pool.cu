/* Pooling by sequence: mean, first token or maximum of the rows of a sequence's tokens, and its gradient. */
#include <token_layout.cuh>

enum Pool { kMean = 0, kFirst = 1, kMax = 2 };

/* Whether a later number takes the place of the largest so far: NaN counts as largest, and the first of equals stays. */
__device__ inline bool is_larger(float value, float largest) { return value > largest || (value != value && largest == largest); }

/* A block owns 32 columns of a sequence; each of its warps takes every eighth token. */
template <class T>
__device__ void pool_forward(const T *x, const int32_t *cu_seqlens, const int32_t *starts, T *y, int32_t *argument,
                             int pool, int layout, int64_t tokens, int64_t sequences, int64_t columns) {
  __shared__ float values[kThreads];
  __shared__ int32_t arguments[kThreads];
  const int thread = threadIdx.x, lane = thread % 32, warps = kThreads / 32;
  const int64_t step = layout == kSbhd ? sequences : 1, chunks = divide(columns + 31, 32);
  for (int64_t work = blockIdx.x; work < sequences * chunks; work += gridDim.x) {
    const int64_t b = divide(work, chunks), column = (work - b * chunks) * 32 + lane;
    const Place place = place_of(b, cu_seqlens, starts, layout, tokens, sequences);
    const int64_t length = pool == kFirst && place.length > 1 ? 1 : place.length;
    float value = 0;
    int32_t at = -1;
    if (column < columns) {
      for (int64_t i = thread / 32; i < length; i += warps) {
        const int64_t t = place.start + i * step;
        const float next = to_float(x[t * columns + column]);
        if (pool != kMax) {
          value += next;
        } else if (at < 0 || is_larger(next, value)) {
          value = next;
          at = static_cast<int32_t>(t);
        }
      }
    }
    values[thread] = value;
    arguments[thread] = at;
    __syncthreads();
    if (thread < 32 && column < columns) {
      for (int warp = 1; warp < warps; ++warp) {
        const float other = values[warp * 32 + lane];
        const int32_t from = arguments[warp * 32 + lane];
        if (pool != kMax) {
          value += other;
          continue;
        }
        const bool equal = other == value || (other != other && value != value);
        if (from >= 0 && (is_larger(other, value) || (equal && from < at))) {
          value = other;
          at = from;
        }
      }
      if (pool == kMean && length > 0) value /= static_cast<float>(length);
      from_float(value, y[b * columns + column]);
      if (pool == kMax) argument[b * columns + column] = at;
    }
    __syncthreads();
  }
}

/* A warp owns a token; which sequence it is of, a search finds. */
template <class T>
__device__ void pool_backward(const T *dy, const int32_t *cu_seqlens, const int32_t *starts, const int32_t *argument, T *dx,
                              int pool, int layout, int64_t tokens, int64_t sequences, int64_t columns) {
  const int64_t step = layout == kSbhd ? sequences : 1;
  for (int64_t t = thread_index() / 32; t < tokens; t += thread_total() / 32) {
    const int64_t extent = layout == kBshd ? divide(tokens, sequences) : sequences;
    const int64_t b = sequence_of(t, starts, layout, extent);
    Place place = {0, 0, 0};
    if (b >= 0) place = place_of(b, cu_seqlens, starts, layout, tokens, sequences);
    const int64_t i = layout == kSbhd ? divide(t - place.start, step) : t - place.start;
    const bool own = b >= 0 && i < place.length && (pool != kFirst || i == 0);
    const float share = pool == kMean ? static_cast<float>(place.length) : 1.0f;
    for (int64_t c = threadIdx.x % 32; c < columns; c += 32) {
      const bool taken = own && (pool != kMax || argument[b * columns + c] == t);
      from_float(taken ? to_float(dy[b * columns + c]) / share : 0.0f, dx[t * columns + c]);
    }
  }
}

#define FORWARD(name, T)                                                                                               \
  KERNEL(name, const T *x, const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded, T *y, int32_t *argument,       \
         int pool, int layout, int64_t tokens, int64_t sequences, int64_t columns) {                                   \
    pool_forward<T>(x, cu_seqlens, cu_seqlens_padded != nullptr ? cu_seqlens_padded : cu_seqlens, y, argument, pool,   \
                    layout, tokens, sequences, columns);                                                               \
  }
#define BACKWARD(name, T)                                                                                              \
  KERNEL(name, const T *dy, const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded, const int32_t *argument,      \
         T *dx, int pool, int layout, int64_t tokens, int64_t sequences, int64_t columns) {                            \
    pool_backward<T>(dy, cu_seqlens, cu_seqlens_padded != nullptr ? cu_seqlens_padded : cu_seqlens, argument, dx,      \
                     pool, layout, tokens, sequences, columns);                                                        \
  }

FOR_FLOATS(FORWARD, sequence_pool_forward)
FOR_FLOATS(BACKWARD, sequence_pool_backward)

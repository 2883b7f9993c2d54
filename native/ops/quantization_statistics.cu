/*
 * Statistics of the error of FP8 quantization. Threads take packs of neighbours in turn, each under one scale; a block writes
 * six partial results, and the last block to do so merges those of all blocks, always in the same order.
 */
#include <fp8.cuh>

constexpr int kResults = 6; /* largest |x|, underflows, overflows, squared errors, smallest scale, largest scale */
constexpr int kE4m3 = 7;    /* as TE numbers the types */

/* The blocks that have written, by the place of the stream's workspace: kernels of one stream run one after another. */
static __device__ unsigned written[32];

__device__ inline float infinity() { return __uint_as_float(0x7f800000u); }

/* Two partial results become one. */
__device__ inline float merged(int result, float a, float b) {
  if (result >= 1 && result <= 3) return a + b;
  return result == 4 ? fminf(a, b) : fmaxf(a, b);
}

/* The result of 32 lanes, in each of them. */
__device__ inline float merged_warp(int result, float value) {
  for (int distance = 16; distance > 0; distance /= 2)
    value = merged(result, value, __shfl_xor_sync(0xffffffffu, value, distance));
  return value;
}

/* As many neighbours of x as 16 bytes hold, and their FP8 numbers. */
template <class T>
struct Neighbours {
  static constexpr int kCount = kPack<T>;
  Words x;
  Pack<uint32_t, kCount / 4> q;

  __device__ void load(const T *from_x, const uint8_t *from_q, int64_t pack) {
    x = load_pack<4>(reinterpret_cast<const uint32_t *>(from_x) + pack * 4);
    q = load_pack<kCount / 4>(reinterpret_cast<const uint32_t *>(from_q) + pack * (kCount / 4));
  }
  __device__ void decode(int fp8, float (&value)[kCount], float (&stored)[kCount]) const {
    to_floats<T>(x, value);
    from_fp8<kCount>(q, fp8, stored);
  }
};

/* One element, for pointers and columns that packs do not suit. */
template <class T>
struct Single {
  static constexpr int kCount = 1;
  T x;
  uint8_t q;

  __device__ void load(const T *from_x, const uint8_t *from_q, int64_t at) {
    x = from_x[at];
    q = from_q[at];
  }
  __device__ void decode(int fp8, float (&value)[1], float (&stored)[1]) const {
    value[0] = to_float(x);
    stored[0] = from_fp8(q, fp8);
  }
};

/* What a thread finds. */
struct Found {
  float largest = 0, squares = 0;
  int underflows = 0, overflows = 0;

  /* Counts only if the pack has something to count: most have nothing. */
  template <int N>
  __device__ void add(const float (&value)[N], const float (&stored)[N], float s, float limit) {
    float most = 0, sum = 0, least_stored = infinity();
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const float error = fmaf(-stored[i], s, value[i]);
      sum = fmaf(error, error, sum);
      most = fmaxf(most, fabsf(value[i]));
      least_stored = fminf(least_stored, fabsf(stored[i]));
    }
    if (most > limit) {
#pragma unroll
      for (int i = 0; i < N; ++i) overflows += fabsf(value[i]) > limit; /* not where it is NaN */
    }
    if (sum < infinity()) {
      squares += sum;
      largest = fmaxf(largest, most);
      if (least_stored != 0) return;
#pragma unroll
      for (int i = 0; i < N; ++i) underflows += value[i] != 0 && stored[i] == 0;
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) add_finite(value[i], stored[i], s);
    }
  }

  /* For packs with squared errors that are not finite, or whose sum overflows. */
  __device__ void add_finite(float value, float stored, float s) {
    const float error = fmaf(-stored, s, value);
    if (!(fabsf(value) < infinity())) return;
    largest = fmaxf(largest, fabsf(value));
    underflows += value != 0 && stored == 0;
    if (error * error < infinity()) squares += error * error;
  }
};

/* Writes partial[result * blocks + block]. */
__device__ inline void write_partial(const Found &found, float least_s, float most_s, float *partial) {
  constexpr int kWarps = kThreads / 32;
  __shared__ float of_warp[kResults][kWarps];
  float result[kResults] = {found.largest,
                            static_cast<float>(found.underflows),
                            static_cast<float>(found.overflows),
                            found.squares,
                            1 / most_s,
                            1 / least_s};
#pragma unroll
  for (int i = 0; i < kResults; ++i) {
    result[i] = merged_warp(i, result[i]);
    if (threadIdx.x % 32 == 0) of_warp[i][threadIdx.x / 32] = result[i];
  }
  __syncthreads();
  if (threadIdx.x >= kResults) return;
  const int mine = threadIdx.x;
  float all = of_warp[mine][0];
  for (int w = 1; w < kWarps; ++w) all = merged(mine, all, of_warp[mine][w]);
  partial[mine * gridDim.x + blockIdx.x] = all;
}

/* A warp for each result; its lanes take every 32nd block. count: of the elements. */
__device__ inline void merge_partial(const float *partial, float *statistics, int64_t blocks, float count) {
  const int mine = threadIdx.x / 32, lane = threadIdx.x % 32;
  if (mine >= kResults) return;
  float all = mine == 4 ? infinity() : 0;
#pragma unroll 8
  for (int64_t b = lane; b < blocks; b += 32) all = merged(mine, all, partial[mine * blocks + b]);
  all = merged_warp(mine, all);
  if (lane != 0) return;
  if (mine >= 1 && mine <= 3) all /= count;
  statistics[mine] = count > 0 ? all : 0;
}

/* packs: of all rows; packs_in_row: looked at where blocks are scaled; place: of the stream's workspace, or -1, and then
 * quantization_statistics_merge must follow. */
template <class Loaded, class T>
__device__ void quantization_statistics(const T *x, const uint8_t *q, const float *scale_inverse, float *partial,
                                        float *statistics, int64_t packs, int64_t packs_in_row, int64_t stride,
                                        float count, int scaling, int fp8, int place) {
  constexpr int kLoads = 2;
  const float beyond = 1.001f * (fp8 == kE4m3 ? 448.0f : 57344.0f);
  Found found;
  float s = packs > 0 ? scale_inverse[0] : 1, least_s = infinity(), most_s = 0;
  for (int64_t first = thread_index(); first < packs; first += kLoads * thread_total()) {
    Loaded loaded[kLoads];
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64_t pack = first + k * thread_total();
      if (pack < packs) loaded[k].load(x, q, pack);
    }
#pragma unroll
    for (int k = 0; k < kLoads; ++k) {
      const int64_t pack = first + k * thread_total();
      if (pack >= packs) break;
      if (scaling != 0) {
        const int64_t row = divide(pack, packs_in_row), block = (pack - row * packs_in_row) * Loaded::kCount / 128;
        s = scale_inverse[place_of_scale(scaling, row, block, stride)];
      }
      least_s = fminf(least_s, s);
      most_s = fmaxf(most_s, s);
      float value[Loaded::kCount], stored[Loaded::kCount];
      loaded[k].decode(fp8, value, stored);
      found.add(value, stored, s, beyond * s);
    }
  }
  write_partial(found, least_s, most_s, partial);
  if (place >= 0 && is_last_block(written + place)) merge_partial(partial, statistics, gridDim.x, count);
}

#define STATISTICS_OF(name, T, Loaded)                                                                                   \
  KERNEL_OF(4, name, const T *x, const uint8_t *q, const float *scale_inverse, float *partial, float *statistics,        \
            int64_t packs, int64_t packs_in_row, int64_t stride, float count, int scaling, int fp8, int place) {         \
    quantization_statistics<Loaded>(x, q, scale_inverse, partial, statistics, packs, packs_in_row, stride, count,        \
                                    scaling, fp8, place);                                                                \
  }
#define PACKED(name, T) STATISTICS_OF(name, T, Neighbours<T>)
#define SCALAR(name, T) STATISTICS_OF(name, T, Single<T>)

FOR_FLOATS(PACKED, quantization_statistics)
FOR_FLOATS(SCALAR, quantization_statistics_scalar)

KERNEL(quantization_statistics_merge, const float *partial, float *statistics, int64_t blocks, float count) {
  merge_partial(partial, statistics, blocks, count);
}

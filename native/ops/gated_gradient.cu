/*
 * The gradient of a gated activation, cast to FP8 and transposed: 64 rows by 64 columns of dy a block, and both halves of dx. A
 * thread has four rows of four columns: it writes their rows, and turns them in shared memory, whose columns the block writes.
 */
#include <amax.cuh>
#include <byte_columns.cuh>
#include <fp8.cuh>

namespace {

constexpr int kSide = 64, kQuads = kSide / 4, kPacks = kSide / 16;

/* f(a) and its derivative. */
struct ValueAndSlope {
  float value, slope;
};

__device__ inline float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

__device__ inline ValueAndSlope swish(float x, float alpha) {
  const float s = sigmoid(alpha * x);
  return {x * s, alpha * x * (s * (1.0f - s)) + s};
}

/* y = f(a) b: da and db from dy. */
template <class Function>
struct Gate {
  __device__ static void differentiate(float dy, float a, float b, float, float, float, float &da, float &db) {
    const ValueAndSlope f = Function::at(a);
    da = dy * f.slope * b;
    db = dy * f.value;
  }
};

struct Gelu {
  __device__ static ValueAndSlope at(float x) {
    const float t = tanhf(0.79788456f * x * (1.0f + 0.044715f * x * x));
    const float slope =
        0.5f * x * ((1.0f - t * t) * (0.79788456f + 0.1070322243f * x * x)) + 0.5f * (1.0f + t);
    return {x * (0.5f + 0.5f * t), slope};
  }
};
struct Sigmoid {
  __device__ static ValueAndSlope at(float x) {
    const float s = sigmoid(x);
    return {s, s * (1.0f - s)};
  }
};
struct Qgelu {
  __device__ static ValueAndSlope at(float x) { return swish(x, 1.702f); }
};
struct Relu {
  __device__ static ValueAndSlope at(float x) { return {x > 0 ? x : 0.0f, x > 0 ? 1.0f : 0.0f}; }
};
struct Srelu {
  __device__ static ValueAndSlope at(float x) { return {x > 0 ? x * x : 0.0f, x > 0 ? 2.0f * x : 0.0f}; }
};
struct Silu {
  __device__ static ValueAndSlope at(float x) { return swish(x, 1.0f); }
};

struct ClampedSwiglu {
  __device__ static void differentiate(float dy, float a, float b, float limit, float alpha, float offset, float &da,
                                       float &db) {
    const ValueAndSlope f = swish(fminf(a, limit), alpha);
    const float linear = fminf(fmaxf(b, -limit), limit) + offset;
    da = (a <= limit ? f.slope : 0.0f) * dy * linear;
    db = dy * f.value * (b <= limit && b >= -limit ? 1.0f : 0.0f);
  }
};

/* One half of dx: rounds four neighbours, adds them to the largest magnitude, and casts them. */
template <class T>
__device__ inline uint32_t cast_four(const float (&exact)[4], float scale, int fp8, float &largest) {
  float scaled[4];
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    T rounded;
    from_float(exact[c], rounded);
    scaled[c] = to_float(rounded);
    largest = fmaxf(largest, fabsf(scaled[c]));
    scaled[c] *= scale;
  }
  return fp8 == 7 ? e4m3_of(scaled[0], scaled[1], scaled[2], scaled[3])
                  : e5m2_of(scaled[0], scaled[1], scaled[2], scaled[3]);
}

/* Turns four rows of four columns into the tile's words: a word is a column's quad of rows. */
__device__ inline void turn(const uint32_t (&of_row)[4], uint32_t *tile, int column, int quad) {
#pragma unroll
  for (int c = 0; c < 4; ++c) {
    /* Columns' packs change places so that neighbouring threads write to different banks. */
    tile[(column + c) * kQuads + (quad ^ (column / 4 % kPacks * 4))] = byte_column(of_row, c);
  }
}

template <class Function, class T>
__device__ void gated_gradient(const T *dy, const T *x, uint8_t *q, uint8_t *q_transposed, const float *scale_at,
                               float *amax, float *scale_inverse, int64_t rows, int64_t columns, float limit, float alpha,
                               float offset, int fp8, Words (&packs)[2][kSide * kPacks]) {
  const float scale = *scale_at;
  const int64_t across = (columns + kSide - 1) / kSide, tiles = (rows + kSide - 1) / kSide * across;
  const int quad = threadIdx.x / kQuads, own_column = threadIdx.x % kQuads * 4;
  float largest = 0;
  for (int64_t t = blockIdx.x; t < tiles; t += gridDim.x) {
    const int64_t tile_row = divide(t, across), first_row = tile_row * kSide, first_column = (t - tile_row * across) * kSide;
    const int64_t row = first_row + 4 * quad, column = first_column + own_column;
    if (row < rows && column < columns) {
      Pack<T, 4> slope[4], a[4], b[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        slope[r] = load_pack<4>(dy + (row + r) * columns + column);
        a[r] = load_pack<4>(x + (row + r) * 2 * columns + column);
        b[r] = load_pack<4>(x + (row + r) * 2 * columns + columns + column);
      }
      uint32_t of_a[4], of_b[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) {
        float da[4], db[4];
#pragma unroll
        for (int c = 0; c < 4; ++c)
          Function::differentiate(to_float(slope[r].value[c]), to_float(a[r].value[c]), to_float(b[r].value[c]), limit,
                                  alpha, offset, da[c], db[c]);
        of_a[r] = cast_four<T>(da, scale, fp8, largest);
        of_b[r] = cast_four<T>(db, scale, fp8, largest);
        *reinterpret_cast<uint32_t *>(q + (row + r) * 2 * columns + column) = of_a[r];
        *reinterpret_cast<uint32_t *>(q + (row + r) * 2 * columns + columns + column) = of_b[r];
      }
      turn(of_a, packs[0][0].value, own_column, quad);
      turn(of_b, packs[1][0].value, own_column, quad);
    }
    __syncthreads();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int pack = threadIdx.x % kPacks, c = threadIdx.x / kPacks;
      const int64_t to_row = first_row + 16 * pack, to_column = first_column + c;
      if (to_row < rows && to_column < columns)
        store_pack<4>(reinterpret_cast<uint32_t *>(q_transposed + (half * columns + to_column) * rows + to_row),
                      packs[half][c * kPacks + (pack ^ c / 4 % kPacks)]);
    }
    __syncthreads();
  }
  if (amax != nullptr) raise(amax, largest);
  if (scale_inverse != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *scale_inverse = 1 / scale;
}

}  // namespace

/* The gates in the order of OpsGate. */
#define GATED_GRADIENT(name, T)                                                                                           \
  KERNEL(name, const T *dy, const T *x, uint8_t *q, uint8_t *q_transposed, const float *scale, float *amax,               \
         float *scale_inverse, int64_t rows, int64_t columns, int gate, float limit, float alpha, float offset, int fp8) { \
    __shared__ Words packs[2][kSide * kPacks]; /* each function's own would be more than a block has */                     \
    GATE(0, Gate<Gelu>, T)                                                                                                \
    GATE(1, Gate<Sigmoid>, T)                                                                                             \
    GATE(2, Gate<Qgelu>, T)                                                                                               \
    GATE(3, Gate<Relu>, T)                                                                                                \
    GATE(4, Gate<Srelu>, T)                                                                                               \
    GATE(5, Gate<Silu>, T)                                                                                                \
    GATE(6, ClampedSwiglu, T)                                                                                             \
  }
#define GATE(number, Function, T)                                                                                         \
  if (gate == number)                                                                                                     \
    gated_gradient<Function, T>(dy, x, q, q_transposed, scale, amax, scale_inverse, rows, columns, limit, alpha, offset,  \
                                fp8, packs);

FOR_FLOATS(GATED_GRADIENT, gated_gradient)

/*
 * h = x + residual, or (x + bias) + residual, and its norm in one pass, in FP8 too, and backward with the residual's gradient
 * added. `lanes` threads share a row, P packs each, and keep it in registers: every tensor is read and written once. The next
 * rows are on their way while one is computed.
 */
#include <amax.cuh>
#include <byte_columns.cuh>
#include <fp8.cuh>
#include <partial_sums.cuh>
#include <residual_norm_arguments.cuh>
#include <row_ring.cuh>

constexpr int kWarps = kThreads / 32;

/* Sums over the `lanes` threads of a row; the rows of a block end together. */
class RowSums {
 public:
  __device__ void sum(float &a, float &b, int lanes) {
    __shared__ float warp_a[2][kWarps], warp_b[2][kWarps];
    for (int distance = lanes < 32 ? lanes / 2 : 16; distance > 0; distance /= 2) {
      a += __shfl_xor_sync(0xffffffffu, a, distance);
      b += __shfl_xor_sync(0xffffffffu, b, distance);
    }
    if (lanes <= 32) return;
    const int warp = threadIdx.x / 32, warps = lanes / 32, first = warp & ~(warps - 1);
    if (threadIdx.x % 32 == 0) {
      warp_a[turn_][warp] = a;
      warp_b[turn_][warp] = b;
    }
    __syncthreads();
    a = b = 0;
    for (int w = first; w < first + warps; ++w) {
      a += warp_a[turn_][w];
      b += warp_b[turn_][w];
    }
    turn_ ^= 1;
  }

 private:
  /* The place that is written, of two: behind the barrier of the other one nobody reads it any more. */
  int turn_ = 0;
};

#define EACH_PACK(p) _Pragma("unroll") for (int p = 0; p < P; ++p)
#define EACH_ELEMENT(j) _Pragma("unroll") for (int j = 0; j < N; ++j)

/* Words of a vector with an element for each column. */
template <class T, int P>
__device__ inline void load_columns(const void *vector, const RowPacks<T, P> &packs, Words (&words)[P]) {
  EACH_PACK(p) {
    if (vector != nullptr && packs.has(p)) {
      words[p] = load_pack<4>(reinterpret_cast<const uint32_t *>(static_cast<const T *>(vector) + packs.column(p)));
    } else {
      words[p] = Words{};
    }
  }
}

/* A pack of such a vector. */
template <class T>
__device__ inline Words columns_of(const void *vector, int column) {
  if (vector == nullptr) return Words{};
  return load_pack<4>(reinterpret_cast<const uint32_t *>(static_cast<const T *>(vector) + column));
}

template <class T>
__device__ inline void store_words(void *tensor, int64_t element, const Words &words) {
  store_pack<4>(reinterpret_cast<uint32_t *>(static_cast<T *>(tensor) + element), words);
}

/* What a thread of the forward kernels keeps from row to row. */
template <class T, int P>
struct NormThread {
  const NormArguments &a;
  RowPacks<T, P> packs;
  RowRing<T, P, 2> ring;
  RowSums sums;
  float scale, largest;

  __device__ NormThread(const NormArguments &arguments, float *shared)
      : a(arguments),
        packs(a.lanes, a.columns),
        ring(shared, packs),
        scale(a.scale != nullptr ? *a.scale : 1.0f),
        largest(0) {
  }

  __device__ void ask(int64_t row) {
    if (row < a.rows) {
      const int64_t start = row * a.columns;
      const T *const x = static_cast<const T *>(a.x), *const residual = static_cast<const T *>(a.residual);
      const T *const rows[2] = {x + start, residual == nullptr ? nullptr : residual + start};
      ring.ask(rows);
    }
    ring.asked();
  }

  /* One row, that of this thread's lanes. Where rows end before those of the tile, the tile gets zeros. */
  __device__ void norm_row(int64_t row, uint8_t *tile_row) {
    constexpr int N = kPack<T>;
    const bool inside = row < a.rows;
    const int64_t start = row * a.columns;
    const float columns = static_cast<float>(packs.width);
    float sum = 0, squares = 0, unused = 0;
    Words bias[P], h[P]; /* a row as it is stored needs half the registers of its numbers in FP32 */
    load_columns<T, P>(a.bias, packs, bias); /* on its way while the row is waited for */
    ring.wait();
    EACH_PACK(p) {
      h[p] = Words{};
      if (inside && packs.has(p)) {
        float value[N];
        h[p] = ring.pack(0, p);
        to_floats<T>(h[p], value);
        if (a.residual != nullptr) {
          float other[N];
          if (a.bias != nullptr) {
            to_floats<T>(bias[p], other);
            EACH_ELEMENT(j) value[j] += other[j];
          }
          to_floats<T>(ring.pack(1, p), other);
          EACH_ELEMENT(j) value[j] += other[j];
          h[p] = to_words<T>(value);
          store_words<T>(a.h, start + packs.column(p), h[p]);
          /* The norm takes the rounded sum, which backward will read. */
          to_floats<T>(h[p], value);
        }
        EACH_ELEMENT(j) sum += value[j];
      }
    }
    ring.taken();
    float mu = 0;
    if (a.centered) {
      sums.sum(sum, unused, a.lanes);
      mu = sum / columns;
    }
    EACH_PACK(p) {
      if (inside && packs.has(p)) {
        float value[N];
        to_floats<T>(h[p], value);
        EACH_ELEMENT(j) {
          const float off = value[j] - mu;
          squares += off * off;
        }
      }
    }
    unused = 0;
    sums.sum(squares, unused, a.lanes);
    const float factor = 1 / sqrtf(squares / columns + a.epsilon);
    if (inside && packs.first == 0) {
      if (a.mean != nullptr) a.mean[row] = mu;
      a.inverse[row] = factor;
    }
    EACH_PACK(p) {
      if (packs.has(p)) write_pack(p, inside, start + packs.column(p), h[p], mu, factor, tile_row);
    }
  }

  __device__ void write_pack(int p, bool inside, int64_t element, const Words &h, float mu, float factor, uint8_t *tile_row) {
    constexpr int N = kPack<T>;
    float exact[N], value[N], g[N], b[N];
    EACH_ELEMENT(j) exact[j] = 0;
    if (inside) {
      to_floats<T>(h, value);
      to_floats<T>(columns_of<T>(a.gamma, packs.column(p)), g);
      to_floats<T>(columns_of<T>(a.beta, packs.column(p)), b);
      EACH_ELEMENT(j) {
        const float scaled = (value[j] - mu) * factor, factor_of_column = g[j] + a.center;
        exact[j] = a.beta != nullptr ? scaled * factor_of_column + b[j] : scaled * factor_of_column;
      }
      if (a.y != nullptr || a.scale == nullptr) {
        const Words rounded = to_words<T>(exact);
        if (a.y != nullptr) store_words<T>(a.y, element, rounded);
        if (a.amax != nullptr && a.scale == nullptr) {
          /* A later cast of y needs the amax of y as stored. */
          to_floats<T>(rounded, g);
          EACH_ELEMENT(j) largest = fmaxf(largest, fabsf(g[j]));
        }
      }
    }
    if (a.scale == nullptr) return;
    Pack<uint32_t, N / 4> quads;
    EACH_ELEMENT(j) largest = fmaxf(largest, fabsf(exact[j]));
    _Pragma("unroll") for (int q = 0; q < N / 4; ++q)
        quads.value[q] = e4m3_of(exact[4 * q] * scale, exact[4 * q + 1] * scale, exact[4 * q + 2] * scale,
                                 exact[4 * q + 3] * scale);
    if (inside && a.y8 != nullptr) store_pack<N / 4>(reinterpret_cast<uint32_t *>(a.y8 + element), quads);
    if (tile_row != nullptr)
      _Pragma("unroll") for (int q = 0; q < N / 4; ++q)
          reinterpret_cast<uint32_t *>(tile_row + packs.column(p))[q] = quads.value[q];
  }
};

/* Writes the tile's rows as columns: a thread turns four rows of four columns, its neighbours the next rows. */
__device__ inline void write_transposed(const NormArguments &a, const uint8_t *tile, int64_t first) {
  const int width = static_cast<int>(a.columns), stride = width + kTilePad, quads = a.tile_rows / 4;
  const int row = threadIdx.x % quads * 4;
  if (first + row >= a.filled_rows) return;
  for (int column = threadIdx.x / quads * 4; column < width; column += kThreads / quads * 4) {
    uint32_t of_row[4];
    _Pragma("unroll") for (int r = 0; r < 4; ++r)
        of_row[r] = *reinterpret_cast<const uint32_t *>(tile + (row + r) * stride + column);
    _Pragma("unroll") for (int c = 0; c < 4; ++c)
        *reinterpret_cast<uint32_t *>(a.y8_transposed + (column + c) * a.filled_rows + first + row) =
            byte_column(of_row, c);
  }
}

/* The rows of a thread: of each tile of `step` rows those from its own on, `apart` from each other; then the block's next tile. */
struct RowCursor {
  int64_t tile;
  int row;
  __device__ void advance(int mine, int step, int apart) {
    row += apart;
    if (row < step) return;
    row = mine;
    tile += static_cast<int64_t>(gridDim.x) * step;
  }
};

/* `tile`: room for the rows that are transposed at once; null where none are. `shared`: that of the ring. */
template <class T, int P>
__device__ inline void residual_norm(const NormArguments &a, uint8_t *tile, float *shared) {
  const int rows_a_block = kThreads / a.lanes, mine = threadIdx.x / a.lanes;
  const int step = tile != nullptr ? a.tile_rows : rows_a_block;
  const int64_t covered = tile != nullptr ? a.filled_rows : a.rows;
  NormThread<T, P> thread(a, shared);
  RowCursor next{static_cast<int64_t>(blockIdx.x) * step, mine};
  for (int stage = 1; stage < kRingStages; ++stage) {
    thread.ask(next.tile + next.row);
    next.advance(mine, step, rows_a_block);
  }
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * step; first < covered;
       first += static_cast<int64_t>(gridDim.x) * step) {
    for (int row = mine; row < step; row += rows_a_block) {
      thread.ask(next.tile + next.row);
      next.advance(mine, step, rows_a_block);
      thread.norm_row(first + row, tile == nullptr ? nullptr : tile + row * (a.columns + kTilePad));
    }
    if (tile != nullptr) {
      __syncthreads();
      write_transposed(a, tile, first);
      __syncthreads();
    }
  }
  if (a.amax != nullptr) raise(a.amax, thread.largest);
  if (a.scale_inverse != nullptr && blockIdx.x == 0 && threadIdx.x == 0) *a.scale_inverse = 1 / thread.scale;
}

/* Adds the columns of the rows of a block, in their order, and writes them as one row of partial sums. */
template <int P, int N>
__device__ inline void write_columns(const float (&sum)[P][N], float *out, int64_t columns, int lanes) {
  DYNAMIC_SHARED(tile);
  const int lane = threadIdx.x % lanes, row = threadIdx.x / lanes, rows = kThreads / lanes;
  EACH_PACK(p) {
    const int64_t column = (static_cast<int64_t>(p) * lanes + lane) * N;
    __syncthreads();
    EACH_ELEMENT(j) tile[j * kThreads + threadIdx.x] = sum[p][j];
    __syncthreads();
    if (row == 0 && column < columns) {
      for (int j = 0; j < N; ++j) {
        float total = 0;
        for (int r = 0; r < rows; ++r) total += tile[j * kThreads + r * lanes + lane];
        out[column + j] = total;
      }
    }
  }
}

template <class T, int P>
__device__ void norm_gradient(const NormArguments &a) {
  DYNAMIC_SHARED(shared);
  constexpr int N = kPack<T>;
  const int lanes = a.lanes, rows_a_block = kThreads / lanes, mine = threadIdx.x / lanes;
  const int64_t step = static_cast<int64_t>(gridDim.x) * rows_a_block;
  const RowPacks<T, P> packs(lanes, a.columns);
  const float columns = static_cast<float>(packs.width);
  RowRing<T, P, 3> ring(shared, packs);
  RowSums sums;
  int64_t asked = static_cast<int64_t>(blockIdx.x) * rows_a_block + mine;
  const auto ask = [&] {
    if (asked < a.rows) {
      const int64_t start = asked * a.columns;
      const T *const through = static_cast<const T *>(a.dresidual);
      const T *const rows[3] = {static_cast<const T *>(a.h) + start, static_cast<const T *>(a.dy) + start,
                                through == nullptr ? nullptr : through + start};
      ring.ask(rows);
    }
    ring.asked();
    asked += step;
  };
  for (int stage = 1; stage < kRingStages; ++stage) ask();
  Words factors[P];
  load_columns<T, P>(a.gamma, packs, factors);
  float gamma[P][N], dgamma[P][N] = {}, dbeta[P][N] = {};
  EACH_PACK(p) {
    to_floats<T>(factors[p], gamma[p]);
    EACH_ELEMENT(j) gamma[p][j] += a.center;
  }
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * rows_a_block; first < a.rows; first += step) {
    const int64_t row = first + mine;
    const bool inside = row < a.rows;
    const float mu = inside && a.centered ? a.mean[row] : 0.0f, factor = inside ? a.inverse[row] : 0.0f;
    ask();
    ring.wait();
    /* Both passes read the row in the ring: its numbers would need too many registers between them. */
    const auto terms = [&](int p, float(&d)[N], float(&normed)[N], float(&scaled)[N]) {
      to_floats<T>(ring.pack(0, p), normed);
      to_floats<T>(ring.pack(1, p), d);
      EACH_ELEMENT(j) {
        normed[j] = (normed[j] - mu) * factor;
        scaled[j] = d[j] * gamma[p][j];
      }
    };
    float sum = 0, products = 0;
    EACH_PACK(p) {
      if (inside && packs.has(p)) {
        float d[N], normed[N], scaled[N];
        terms(p, d, normed, scaled);
        EACH_ELEMENT(j) {
          dgamma[p][j] += d[j] * normed[j];
          dbeta[p][j] += d[j];
          sum += scaled[j];
          products += scaled[j] * normed[j];
        }
      }
    }
    sums.sum(sum, products, lanes);
    const float mean_of_sum = a.centered ? sum / columns : 0.0f, mean_of_products = products / columns;
    EACH_PACK(p) {
      if (inside && packs.has(p)) {
        float d[N], normed[N], scaled[N], dh[N];
        terms(p, d, normed, scaled);
        EACH_ELEMENT(j) dh[j] = factor * (scaled[j] - mean_of_sum - normed[j] * mean_of_products);
        if (a.dresidual != nullptr) {
          float other[N];
          to_floats<T>(to_words<T>(dh), dh);
          to_floats<T>(ring.pack(2, p), other);
          EACH_ELEMENT(j) dh[j] += other[j];
        }
        store_words<T>(a.dh, row * a.columns + packs.column(p), to_words<T>(dh));
      }
    }
    ring.taken();
  }
  wait_for_copies();
  /* Partial sums lie as [2, blocks, columns]: those of gamma, then those of beta. */
  write_columns(dgamma, a.partial + blockIdx.x * a.columns, a.columns, lanes);
  if (a.dbeta != nullptr)
    write_columns(dbeta, a.partial + (static_cast<int64_t>(gridDim.x) + blockIdx.x) * a.columns, a.columns, lanes);
}

#define FORWARD(blocks, name, T, P)                \
  KERNEL_OF(blocks, name, const NormArguments a) { \
    DYNAMIC_SHARED(shared);                        \
    residual_norm<T, P>(a, nullptr, shared);       \
  }
/* The ring's memory lies behind the tile's. */
#define TRANSPOSING(blocks, name, T, P)                                                 \
  KERNEL_OF(blocks, name, const NormArguments a) {                                      \
    DYNAMIC_SHARED(tile);                                                               \
    residual_norm<T, P>(a, reinterpret_cast<uint8_t *>(tile), tile + a.tile_bytes / 4); \
  }
#define BACKWARD(blocks, name, T, P) \
  KERNEL_OF(blocks, name, const NormArguments a) { norm_gradient<T, P>(a); }
/* kForwardBlocks and kTransposingBlocks of residual_norm.cpp are these numbers of blocks. */
#define FORWARD_2(name, T) FORWARD(4, name, T, 2)
#define FORWARD_3(name, T) FORWARD(3, name, T, 3)
#define FORWARD_4(name, T) FORWARD(3, name, T, 4)
#define FORWARD_5(name, T) FORWARD(2, name, T, 5)
#define TRANSPOSING_2(name, T) TRANSPOSING(2, name, T, 2)
#define TRANSPOSING_3(name, T) TRANSPOSING(2, name, T, 3)
#define TRANSPOSING_4(name, T) TRANSPOSING(1, name, T, 4)
/* Two blocks a multiprocessor hide more latency; with four packs a thread their registers would not suffice. */
#define BACKWARD_2(name, T) BACKWARD(2, name, T, 2)
#define BACKWARD_3(name, T) BACKWARD(2, name, T, 3)
#define BACKWARD_4(name, T) BACKWARD(1, name, T, 4)

FOR_FLOATS(FORWARD_2, residual_norm_2)
FOR_FLOATS(FORWARD_3, residual_norm_3)
FOR_FLOATS(FORWARD_4, residual_norm_4)
FOR_FLOATS(FORWARD_5, residual_norm_5)
FOR_FLOATS(TRANSPOSING_2, norm_transposed_2)
FOR_FLOATS(TRANSPOSING_3, norm_transposed_3)
FOR_FLOATS(TRANSPOSING_4, norm_transposed_4)
FOR_FLOATS(BACKWARD_2, norm_gradient_2)
FOR_FLOATS(BACKWARD_3, norm_gradient_3)
FOR_FLOATS(BACKWARD_4, norm_gradient_4)

KERNEL(norm_partials, const float *partial, float *dgamma, float *dbeta, float accumulate, int64_t chunks,
       int64_t columns) {
  sum_partials(partial + blockIdx.y * chunks * columns, blockIdx.y == 0 ? dgamma : dbeta, accumulate, chunks, columns);
}

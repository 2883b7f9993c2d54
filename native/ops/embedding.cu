/*
 * gradient[v, :] = beta * gradient[v, :] + sum over t with ids[t] == first + v of dy[t, :].
 *
 * A block owns kRows vocabulary rows, a tile of 32 * N columns and a chunk of tokens. Each of its warps adds up its own
 * tokens in its own [kRows, 32 * N] table in shared memory, then the block adds the tables in order. Only those rows of
 * dy are read whose id lies among the block's vocabulary rows, so dy is read once however large the vocabulary.
 *
 * A table in shared memory is not worth its zeros where most rows have no token: blocks of a large vocabulary list their
 * tokens by row instead, and add up those of each row in registers.
 */
#include <partial_sums.cuh>

constexpr int kRows = 64;
constexpr int kWarps = 6;
constexpr int kStep = 32 * kWarps; /* tokens that the warps look at together */
constexpr int kAhead = 8;          /* times that, whose ids are on their way at once */

/* Adds tokens base .. base + 31: lane i brings token base + i's row of the table, -1 for a token of other blocks. All
 * loads are under way before the first sum, which waits for memory; without a branch, so that the compiler keeps them
 * together: a token of other blocks loads what its neighbour loads. */
template <class T, int N>
__device__ inline void add_tokens(const T *dy, float *table, int32_t row, int64_t base, int64_t hidden) {
  const int lane = threadIdx.x % 32;
  const uint32_t hits = __ballot_sync(0xffffffffu, row >= 0);
  if (hits == 0) return;
  const int first = __ffs(hits) - 1;
  Pack<T, N> pack[32];
#pragma unroll
  for (int j = 0; j < 32; ++j) pack[j] = load_pack<N>(dy + (base + (hits >> j & 1 ? j : first)) * hidden);
  __syncwarp(); /* keeps the loads above it */
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    const int32_t target = __shfl_sync(0xffffffffu, row, j);
    if (target < 0) continue;
    float *sum = table + (target * 32 + lane) * N;
    for (int k = 0; k < N; ++k) sum[k] += to_float(pack[j].value[k]);
  }
}

template <class T, int N>
__device__ void embedding_backward(const T *dy, const int32_t *ids, float *out, float beta, int64_t first,
                                   int64_t tokens, int64_t vocabulary, int64_t hidden, int64_t chunk_tokens,
                                   int column_tiles) {
  constexpr int kTable = kRows * 32 * N;
  DYNAMIC_SHARED(tables);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int64_t first_row = blockIdx.x / column_tiles * static_cast<int64_t>(kRows);
  const int64_t first_column = blockIdx.x % column_tiles * static_cast<int64_t>(32 * N);
  const int rows = vocabulary - first_row < kRows ? static_cast<int>(vocabulary - first_row) : kRows;
  const int64_t begin = blockIdx.y * chunk_tokens;
  const int64_t end = begin + chunk_tokens < tokens ? begin + chunk_tokens : tokens;
  /* Lanes past the last column add up column 0 again; their sums are not used. */
  const int64_t column = first_column + lane * N < hidden ? first_column + lane * N : 0;

  for (int i = threadIdx.x; i < kWarps * kTable; i += kStep) tables[i] = 0;
  __syncthreads();
  for (int64_t base = begin + warp * 32; base < end; base += kAhead * kStep) {
    int32_t row[kAhead]; /* of the block's vocabulary rows; -1: of other blocks */
    bool hits = false;
#pragma unroll
    for (int k = 0; k < kAhead; ++k) {
      const int64_t token = base + k * kStep + lane, own = token < end ? ids[token] - first - first_row : -1;
      row[k] = own >= 0 && own < rows ? static_cast<int32_t>(own) : -1;
      hits |= row[k] >= 0;
    }
    if (__ballot_sync(0xffffffffu, hits) == 0) continue; /* of a large vocabulary most often */
#pragma unroll 1
    for (int k = 0; k < kAhead; ++k) {
      int32_t mine = -1;
#pragma unroll
      for (int i = 0; i < kAhead; ++i) mine = i == k ? row[i] : mine;
      add_tokens<T, N>(dy + column, tables + warp * kTable, mine, base + k * kStep, hidden);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < rows * 32 * N; i += kStep) {
    const int64_t target = first_column + i % (32 * N);
    if (target >= hidden) continue;
    float total = tables[i];
    for (int w = 1; w < kWarps; ++w) total += tables[w * kTable + i];
    float *destination = out + (blockIdx.y * vocabulary + first_row + i / (32 * N)) * hidden + target;
    *destination = beta != 0 ? fmaf(beta, *destination, total) : total;
  }
}

constexpr int kListWarps = 8;
constexpr int kListIds = 8;                               /* that a lane looks at */
constexpr int kListed = 32 * kListWarps * kListIds;       /* tokens that a block looks at together */
constexpr int kListColumns = 4;                           /* of a lane */
constexpr int kListTile = 32 * kListWarps * kListColumns; /* columns of a block */

/* Those of kListed tokens that belong to a block's rows: row r has token[begin[r]] .. token[begin[r + 1] - 1], in order,
 * counted from the first one looked at. */
struct TokenList {
  int entries[kListWarps]; /* of each warp */
  int begin[kRows + 1];
  uint16_t found_row[kListed], found_token[kListed];
  uint16_t token[kListed];
};

/* Lists the tokens base .. base + kListed - 1, and returns how many belong to the rows; where none do, the list is not written. */
__device__ inline int list_tokens(TokenList &list, const int32_t *ids, int64_t first, int rows, int64_t base,
                                  int64_t tokens) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, thread = threadIdx.x;
  const int start = warp * 32 * kListIds;
  int row[kListIds];
  int before[kListIds]; /* entries of the warp before the lane's */
  int found = 0;
#pragma unroll
  for (int k = 0; k < kListIds; ++k) {
    const int64_t token = base + start + k * 32 + lane, own = token < tokens ? ids[token] - first : -1;
    row[k] = own >= 0 && own < rows ? static_cast<int>(own) : -1;
  }
#pragma unroll
  for (int k = 0; k < kListIds; ++k) {
    const uint32_t hits = __ballot_sync(0xffffffffu, row[k] >= 0);
    before[k] = found + __popc(hits & ((1u << lane) - 1));
    found += __popc(hits);
  }
  if (lane == 0) list.entries[warp] = found;
  __syncthreads();
  int all = 0, here = 0;
  for (int w = 0; w < kListWarps; ++w) {
    here = w == warp ? all : here;
    all += list.entries[w];
  }
  if (all == 0) return 0;
#pragma unroll
  for (int k = 0; k < kListIds; ++k) {
    if (row[k] < 0) continue;
    list.found_row[here + before[k]] = static_cast<uint16_t>(row[k]);
    list.found_token[here + before[k]] = static_cast<uint16_t>(start + k * 32 + lane);
  }
  __syncthreads();
  int smaller = 0; /* entries of smaller rows */
  if (thread <= kRows) {
    for (int i = 0; i < all; ++i) smaller += list.found_row[i] < thread;
    list.begin[thread] = smaller;
  }
  if (thread < kRows) {
    int next = smaller;
    for (int i = 0; i < all; ++i)
      if (list.found_row[i] == thread) list.token[next++] = list.found_token[i];
  }
  __syncthreads();
  return all;
}

/* Returns the sum of dy's rows over count tokens of a list, at a lane's columns. */
template <class T>
__device__ inline Pack<float, kListColumns> sum_listed(const T *dy, const uint16_t *token, int count, int64_t hidden) {
  constexpr int kLoads = 8; /* under way at once */
  Pack<float, kListColumns> sum = {};
  for (int i = 0; i < count; i += kLoads) {
    Pack<T, kListColumns> pack[kLoads];
#pragma unroll
    for (int j = 0; j < kLoads; ++j) pack[j] = load_pack<kListColumns>(dy + token[i + j < count ? i + j : i] * hidden);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      if (i + j >= count) break;
      for (int k = 0; k < kListColumns; ++k) sum.value[k] += to_float(pack[j].value[k]);
    }
  }
  return sum;
}

template <class T>
__device__ void embedding_backward_listed(const T *dy, const int32_t *ids, float *out, float beta, int64_t first,
                                          int64_t tokens, int64_t vocabulary, int64_t hidden, int column_tiles) {
  __shared__ TokenList list;
  const int64_t first_row = blockIdx.x / column_tiles * static_cast<int64_t>(kRows);
  const int64_t column = blockIdx.x % column_tiles * static_cast<int64_t>(kListTile) + threadIdx.x * kListColumns;
  const int rows = vocabulary - first_row < kRows ? static_cast<int>(vocabulary - first_row) : kRows;
  float *const own = out + first_row * hidden + column;
  for (int64_t base = 0; base == 0 || base < tokens; base += kListed) {
    const int all = list_tokens(list, ids, first + first_row, rows, base, tokens);
    const float factor = base == 0 ? beta : 1; /* later tokens are added to what is there */
    for (int r = 0; r < rows && column < hidden; ++r) {
      const int begin = all == 0 ? 0 : list.begin[r], count = all == 0 ? 0 : list.begin[r + 1] - begin;
      if (count == 0 && factor == 1) continue;
      Pack<float, kListColumns> sum =
          sum_listed(dy + base * hidden + column, list.token + begin, count, hidden);
      if (factor != 0) {
        const Pack<float, kListColumns> old = load_pack<kListColumns>(own + r * hidden);
        for (int k = 0; k < kListColumns; ++k) sum.value[k] = fmaf(factor, old.value[k], sum.value[k]);
      }
      store_pack(own + r * hidden, sum);
    }
    __syncthreads();
  }
}

#define PACKED(name, T)                                                                                           \
  KERNEL(name, const T *dy, const int32_t *ids, float *out, float beta, int64_t first, int64_t tokens,              \
         int64_t vocabulary, int64_t hidden, int64_t chunk_tokens, int column_tiles) {                              \
    embedding_backward<T, 2>(dy, ids, out, beta, first, tokens, vocabulary, hidden, chunk_tokens, column_tiles); \
  }
#define SCALAR(name, T)                                                                                           \
  KERNEL(name, const T *dy, const int32_t *ids, float *out, float beta, int64_t first, int64_t tokens,              \
         int64_t vocabulary, int64_t hidden, int64_t chunk_tokens, int column_tiles) {                              \
    embedding_backward<T, 1>(dy, ids, out, beta, first, tokens, vocabulary, hidden, chunk_tokens, column_tiles); \
  }

#define LISTED(name, T)                                                                                            \
  KERNEL(name, const T *dy, const int32_t *ids, float *out, float beta, int64_t first, int64_t tokens,               \
         int64_t vocabulary, int64_t hidden, int column_tiles) {                                                     \
    embedding_backward_listed(dy, ids, out, beta, first, tokens, vocabulary, hidden, column_tiles);                  \
  }

FOR_FLOATS(PACKED, embedding_backward)
FOR_FLOATS(LISTED, embedding_backward_listed)
FOR_FLOATS(SCALAR, embedding_backward_scalar)

KERNEL(embedding_partials, const float *partial, float *out, float beta, int64_t chunks, int64_t columns) {
  sum_partials(partial, out, beta, chunks, columns);
}

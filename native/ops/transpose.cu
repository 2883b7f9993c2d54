/* A matrix of bytes turned: 128 rows by 128 columns a block, in 16-byte instructions on both sides. */
#include <common.cuh>

constexpr int kSide = 128, kPacks = kSide / 16, kQuads = kSide / 4; /* packs of 16 bytes, quads of four rows */

/* The word of the tile where a column keeps its quad of rows: eight neighbouring columns' packs lie in different banks. */
__device__ inline int word_of(int column, int quad) { return column * kQuads + (quad ^ (column / 16 * 4)); }

/* to[c, r] = from[r, c]; rows from `rows` up to `filled_rows` are zeros. Rows, columns and filled rows in packs of 16. */
KERNEL(transpose_bytes, const uint8_t *from, uint8_t *to, int64_t rows, int64_t columns, int64_t filled_rows) {
  __shared__ Words packs[kSide * kPacks];
  uint32_t *const tile = packs[0].value;
  const int64_t first_row = static_cast<int64_t>(blockIdx.y) * kSide;
  const int64_t first_column = static_cast<int64_t>(blockIdx.x) * kSide;
  {
    const int pack = threadIdx.x % kPacks, quad = threadIdx.x / kPacks;
    const int64_t row = first_row + 4 * quad, column = first_column + 16 * pack;
    Words of_row[4];
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      of_row[r] = Words{};
      if (row + r < rows && column < columns)
        of_row[r] = load_pack<4>(reinterpret_cast<const uint32_t *>(from + (row + r) * columns + column));
    }
#pragma unroll
    for (int w = 0; w < 4; ++w) {
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        uint32_t of_column = 0;
#pragma unroll
        for (int r = 0; r < 4; ++r) of_column |= (of_row[r].value[w] >> 8 * c & 0xffu) << 8 * r;
        tile[word_of(16 * pack + 4 * w + c, quad)] = of_column;
      }
    }
  }
  __syncthreads();
  for (int item = threadIdx.x; item < kSide * kPacks; item += kThreads) {
    const int pack = item % kPacks, c = item / kPacks;
    const int64_t row = first_row + 16 * pack, column = first_column + c;
    if (column < columns && row < filled_rows)
      store_pack<4>(reinterpret_cast<uint32_t *>(to + column * filled_rows + row),
                    packs[word_of(c, 4 * pack) / 4]);
  }
}

/*
 * The random Hadamard transform of a transpose: of each 16 neighbours in a column, some with their sign changed, sixteen sums with
 * the signs of Hadamard's matrix (Sylvester's, so that factor 1/4 makes it orthogonal). Transformer Engine writes the transposed
 * result alone, so the sign mask of the other one changes nothing.
 */
#include "te/recorded.h"

namespace chagres::reference {

namespace {

constexpr int64_t kSize = 16; /* of the matrix */

struct Blocks {
  View input, output;
  unsigned signs; /* bit k is 1: row k of a block changes its sign */
};

/* Reads block `block` as FP32 [16, columns], transforms its columns in place: in each of four rounds pairs of rows whose numbers
 * differ in one bit become their sum and their difference. */
void transform(const Blocks &blocks, int64_t block, float *rows) {
  const int64_t columns = blocks.input.columns;
  to_float(rows, element(blocks.input.data, block * kSize * columns, blocks.input.dtype), blocks.input.dtype, kSize * columns);
  for (int64_t k = 0; k < kSize; ++k) {
    const float factor = (blocks.signs >> k & 1u) != 0 ? -0.25f : 0.25f;
    for (int64_t c = 0; c < columns; ++c) rows[k * columns + c] *= factor;
  }
  for (int64_t bit = 1; bit < kSize; bit *= 2) {
    for (int64_t k = 0; k < kSize; ++k) {
      if ((k & bit) != 0) continue;
      float *const low = rows + k * columns, *const high = rows + (k + bit) * columns;
      for (int64_t c = 0; c < columns; ++c) {
        const float sum = low[c] + high[c];
        high[c] = low[c] - high[c];
        low[c] = sum;
      }
    }
  }
}

void store_transposed(const Blocks &blocks, int64_t block, const float *rows) {
  const int64_t columns = blocks.input.columns;
  for (int64_t c = 0; c < columns; ++c) {
    float sums[kSize];
    for (int64_t n = 0; n < kSize; ++n) sums[n] = rows[n * columns + c];
    from_float(element(blocks.output.data, c * blocks.input.rows + block * kSize, blocks.output.dtype), sums,
               blocks.output.dtype, kSize);
  }
}

Blocks checked_blocks(NVTETensor input, NVTETensor output, int signs, const Caller &caller) {
  expect_unscaled(input, "input", caller);
  expect_unscaled(output, "output", caller);
  const Blocks blocks{view(input, "input", {kNVTEBFloat16}, caller), view(output, "output", {kNVTEBFloat16}, caller),
                      static_cast<unsigned>(signs)};
  const View &x = blocks.input;
  if (x.shape.ndim < 2 || x.rows % kSize != 0 || x.columns % kSize != 0 || x.count() == 0) {
    fail(caller, text("Tensor \"input\" must have at least two dimensions, and ", kSize,
                      " rows and columns or multiples of that, got ", shape_text(x.shape)));
  }
  expect_matrix(blocks.output, "output", x.columns, x.rows, caller);
  return blocks;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_hadamard_transform(NVTETensor input, NVTETensor output, int random_sign_mask, int random_sign_mask_t,
                             cudaStream_t stream) {
  if (recorded(nvte_hadamard_transform, input, output, random_sign_mask, random_sign_mask_t, stream)) return;
  const Blocks blocks = checked_blocks(input, output, random_sign_mask_t, Caller::here());
  parallel_for(0, blocks.input.rows / kSize, grain_for(4 * kSize * blocks.input.columns), [&](int64_t first, int64_t last) {
    Scratch rows(kSize * blocks.input.columns);
    for (int64_t block = first; block < last; ++block) {
      transform(blocks, block, rows.data());
      store_transposed(blocks, block, rows.data());
    }
  });
}

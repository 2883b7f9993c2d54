/* Loops over the tiles of attention: products, rows of scores, panels. */
#include "te/attention_tile.h"

#include <cmath>
#include <limits>

#include "runtime/elementary.h"
#include "runtime/sums.h"

namespace chagres::reference {

namespace {

/* One vector of 8 floats, wherever the compiler has registers for it; loads and stores need no alignment. */
typedef float Eight __attribute__((vector_size(32), aligned(4), may_alias));

typedef int32_t Places __attribute__((vector_size(32))); /* of two vectors' elements: those of the second from 8 on */

constexpr int64_t kBand = kLane / 8;

/* What C is before the product. */
enum class Start { Zero, Kept };

/* Not a template: a function with clones cannot be one, and this one has to become part of its caller's clones. */
__attribute__((always_inline)) inline void register_tile(Start start, int64_t k, const float *a, int64_t a_row,
                                                         int64_t a_column, const float *b, int64_t ldb, float *c,
                                                         int64_t ldc) {
  Eight sum[kRegisterRows][kBand] = {};
  if (start == Start::Kept)
    for (int64_t r = 0; r < kRegisterRows; ++r)
      for (int64_t w = 0; w < kBand; ++w) sum[r][w] = *reinterpret_cast<const Eight *>(c + r * ldc + 8 * w);
  for (int64_t l = 0; l < k; ++l) {
    Eight right[kBand];
    for (int64_t w = 0; w < kBand; ++w) right[w] = *reinterpret_cast<const Eight *>(b + l * ldb + 8 * w);
    for (int64_t r = 0; r < kRegisterRows; ++r)
      for (int64_t w = 0; w < kBand; ++w) sum[r][w] += a[r * a_row + l * a_column] * right[w];
  }
  for (int64_t r = 0; r < kRegisterRows; ++r)
    for (int64_t w = 0; w < kBand; ++w) *reinterpret_cast<Eight *>(c + r * ldc + 8 * w) = sum[r][w];
}

__attribute__((always_inline)) inline void philox_round(uint32_t *x, uint32_t *y, uint32_t *z, uint32_t *w,
                                                        uint32_t key0, uint32_t key1) {
  for (int64_t i = 0; i < kTile / 4; ++i) {
    const uint64_t first = uint64_t{0xD2511F53u} * x[i];
    const uint64_t second = uint64_t{0xCD9E8D57u} * z[i];
    x[i] = static_cast<uint32_t>(second >> 32) ^ y[i] ^ key0;
    z[i] = static_cast<uint32_t>(first >> 32) ^ w[i] ^ key1;
    y[i] = static_cast<uint32_t>(second);
    w[i] = static_cast<uint32_t>(first);
  }
}

/* Eight columns of all rows at a time: rows are too short for a call of memcpy each. */
CHAGRES_CLONES void copy_rows(float *destination, int64_t destination_stride, const float *source, int64_t source_stride,
                              int64_t rows, int64_t columns) {
  int64_t c = 0;
  for (; c + 8 <= columns; c += 8)
    for (int64_t i = 0; i < rows; ++i)
      *reinterpret_cast<Eight *>(destination + i * destination_stride + c) =
          *reinterpret_cast<const Eight *>(source + i * source_stride + c);
  for (; c < columns; ++c)
    for (int64_t i = 0; i < rows; ++i) destination[i * destination_stride + c] = source[i * source_stride + c];
}

}  // namespace

CHAGRES_CLONES void add_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_column,
                                const float *b, int64_t ldb, float *c, int64_t ldc) {
  for (int64_t j = 0; j < n; j += kLane)
    for (int64_t i = 0; i < m; i += kRegisterRows)
      register_tile(Start::Kept, k, a + i * a_row, a_row, a_column, b + j, ldb, c + i * ldc + j, ldc);
}

CHAGRES_CLONES void set_product(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_column,
                                const float *b, int64_t ldb, float *c, int64_t ldc) {
  for (int64_t j = 0; j < n; j += kLane)
    for (int64_t i = 0; i < m; i += kRegisterRows)
      register_tile(Start::Zero, k, a + i * a_row, a_row, a_column, b + j, ldb, c + i * ldc + j, ldc);
}

void load_panel(const AttentionTensor &tensor, int64_t sequence, int64_t head, int64_t first, int64_t rows,
                int64_t columns, int64_t width, float *panel) {
  if (rows == 0) return;
  const int64_t padded_rows = round_up(rows, kRegisterRows);
  if (tensor.dtype == kNVTEFloat32) {
    const auto *source = static_cast<const float *>(tensor.at(sequence, head, first));
    copy_rows(panel, width, source, tensor.token_stride, rows, columns);
  } else {
    for (int64_t i = 0; i < rows; ++i)
      to_float(panel + i * width, tensor.at(sequence, head, first + i), tensor.dtype, columns);
  }
  for (int64_t i = 0; columns < width && i < rows; ++i)
    std::fill(panel + i * width + columns, panel + (i + 1) * width, 0.0f);
  std::fill(panel + rows * width, panel + padded_rows * width, 0.0f);
}

namespace {

/* Eight rows of eight columns: pairs of rows are interleaved by elements, then by pairs, then by fours. */
__attribute__((always_inline)) inline void transpose_eight(const float *source, int64_t width, float *transposed) {
  constexpr Places kLow = {0, 8, 1, 9, 4, 12, 5, 13}, kHigh = {2, 10, 3, 11, 6, 14, 7, 15};
  constexpr Places kLowPairs = {0, 1, 8, 9, 4, 5, 12, 13}, kHighPairs = {2, 3, 10, 11, 6, 7, 14, 15};
  constexpr Places kLowFours = {0, 1, 2, 3, 8, 9, 10, 11}, kHighFours = {4, 5, 6, 7, 12, 13, 14, 15};
  Eight row[8], by_one[8], by_two[8];
  for (int64_t i = 0; i < 8; ++i) row[i] = *reinterpret_cast<const Eight *>(source + i * width);
  for (int64_t i = 0; i < 8; i += 2) {
    by_one[i] = __builtin_shuffle(row[i], row[i + 1], kLow);
    by_one[i + 1] = __builtin_shuffle(row[i], row[i + 1], kHigh);
  }
  for (int64_t half = 0; half < 8; half += 4)
    for (int64_t i = 0; i < 2; ++i) {
      by_two[half + 2 * i] = __builtin_shuffle(by_one[half + i], by_one[half + 2 + i], kLowPairs);
      by_two[half + 2 * i + 1] = __builtin_shuffle(by_one[half + i], by_one[half + 2 + i], kHighPairs);
    }
  for (int64_t i = 0; i < 4; ++i) {
    *reinterpret_cast<Eight *>(transposed + i * kTile) = __builtin_shuffle(by_two[i], by_two[4 + i], kLowFours);
    *reinterpret_cast<Eight *>(transposed + (4 + i) * kTile) = __builtin_shuffle(by_two[i], by_two[4 + i], kHighFours);
  }
}

}  // namespace

CHAGRES_CLONES void transpose_panel(const float *panel, int64_t rows, int64_t columns, int64_t width,
                                    float *transposed) {
  const int64_t whole_rows = rows / 8 * 8, whole_columns = columns / 8 * 8;
  for (int64_t c = 0; c < whole_columns; c += 8)
    for (int64_t i = 0; i < whole_rows; i += 8) transpose_eight(panel + i * width + c, width, transposed + c * kTile + i);
  for (int64_t c = 0; c < columns; ++c) {
    for (int64_t i = c < whole_columns ? whole_rows : 0; i < rows; ++i) transposed[c * kTile + i] = panel[i * width + c];
    for (int64_t i = rows; i < kTile; ++i) transposed[c * kTile + i] = 0.0f;
  }
}

void store_panel(const float *panel, int64_t rows, int64_t columns, int64_t width, const AttentionTensor &tensor,
                 int64_t sequence, int64_t head, int64_t first) {
  if (rows == 0) return;
  if (tensor.dtype == kNVTEFloat32) {
    auto *destination = static_cast<float *>(tensor.at(sequence, head, first));
    copy_rows(destination, tensor.token_stride, panel, width, rows, columns);
    return;
  }
  for (int64_t i = 0; i < rows; ++i)
    from_float(tensor.at(sequence, head, first + i), panel + i * width, tensor.dtype, columns);
}

void store_zeros(const AttentionTensor &tensor, int64_t sequence, int64_t head, int64_t first, int64_t last,
                 int64_t columns) {
  const size_t bytes = static_cast<size_t>(columns) * element_size(tensor.dtype);
  for (int64_t i = first; i < last; ++i) std::memset(tensor.at(sequence, head, i), 0, bytes);
}

bool is_plain_tile(const AttentionProblem &problem, const AttentionLength &length, int64_t row, int64_t rows, int64_t key,
                   int64_t columns) {
  return problem.band.first(row + rows - 1, length) <= key && problem.band.last(row, length) >= key + columns &&
         problem.scale > 0 && std::isfinite(problem.scale) && !problem.scores.any();
}

CHAGRES_CLONES void mask_row(float *row, int64_t columns, float scale, int64_t first, int64_t last) {
  for (int64_t j = 0; j < columns; ++j) row[j] *= scale;
  if (first <= 0 && last >= columns) return;
  const int32_t begin = static_cast<int32_t>(std::clamp<int64_t>(first, 0, kTile));
  const int32_t end = static_cast<int32_t>(std::clamp<int64_t>(last, 0, kTile));
  for (int32_t j = 0; j < static_cast<int32_t>(columns); ++j)
    row[j] = j >= begin && j < end ? row[j] : -std::numeric_limits<float>::infinity();
}

CHAGRES_CLONES void largest_of_rows(const float *rows, int64_t count, int64_t columns, float scale, float *largest) {
  for (int64_t i = 0; i < count; ++i) {
    Eight lanes = Eight{} - std::numeric_limits<float>::infinity();
    for (int64_t j = 0; j < columns; j += 8) {
      const Eight values = *reinterpret_cast<const Eight *>(rows + i * kTile + j);
      lanes = values > lanes ? values : lanes;
    }
    float found = lanes[0];
    for (int w = 1; w < 8; ++w) found = lanes[w] > found ? lanes[w] : found;
    found *= scale;
    largest[i] = found > largest[i] ? found : largest[i];
  }
}

namespace {

/* Inline with a constant count of columns: then the exponential's coefficients stay in registers from row to row. */
__attribute__((always_inline)) inline void exponentiate_row(float *row, int64_t columns, float scale, float shift) {
  for (int64_t j = 0; j < columns; ++j) row[j] = fast_exp(row[j] * scale - shift);
}

__attribute__((always_inline)) inline void differentiate_row(float *row, float *gradient, int64_t columns, float scale,
                                                             float shift, float delta) {
  for (int64_t j = 0; j < columns; ++j) {
    const float probability = fast_exp(row[j] * scale - shift);
    row[j] = probability;
    gradient[j] = probability * (gradient[j] - delta);
  }
}

}  // namespace

/* The sums have a loop of their own: each is a chain of additions, which exponentials would have to wait for. */
CHAGRES_CLONES void exponentiate_rows(float *rows, int64_t count, int64_t columns, float scale, const float *shifts,
                                      float *sums) {
  for (int64_t i = 0; i < count; ++i) {
    if (columns == kTile) exponentiate_row(rows + i * kTile, kTile, scale, shifts[i]);
    else exponentiate_row(rows + i * kTile, columns, scale, shifts[i]);
  }
  for (int64_t i = 0; sums != nullptr && i < count; ++i) {
    float lane[kLane] = {};
    for (int64_t j = 0; j < columns; j += kLane)
      for (int64_t w = 0; w < kLane; ++w) lane[w] += rows[i * kTile + j + w];
    float sum = 0;
    for (int64_t w = 0; w < kLane; ++w) sum += lane[w];
    sums[i] = sum;
  }
}

CHAGRES_CLONES void differentiate_rows(float *rows, float *gradients, int64_t count, int64_t columns, float scale,
                                       const float *shifts, const float *deltas) {
  for (int64_t i = 0; i < count; ++i) {
    float *row = rows + i * kTile, *gradient = gradients + i * kTile;
    if (columns == kTile) differentiate_row(row, gradient, kTile, scale, shifts[i], deltas[i]);
    else differentiate_row(row, gradient, columns, scale, shifts[i], deltas[i]);
  }
}

/* Of keys from a multiple of 4 on, by the numbers of the whole. */
CHAGRES_CLONES static void draw_row(const AttentionDropout &dropout, int64_t sequence_head, int64_t query,
                                    int64_t first_key, float *factors) {
  constexpr int64_t kGroups = kTile / 4;
  uint32_t words[4][kGroups];
  for (int64_t i = 0; i < kGroups; ++i) {
    words[0][i] = static_cast<uint32_t>(first_key / 4 + i);
    words[1][i] = static_cast<uint32_t>(dropout.offset);
    words[2][i] = static_cast<uint32_t>(query);
    words[3][i] = static_cast<uint32_t>(sequence_head);
  }
  uint32_t key0 = static_cast<uint32_t>(dropout.seed);
  uint32_t key1 = static_cast<uint32_t>(dropout.seed >> 32) ^ static_cast<uint32_t>(dropout.offset >> 32);
  for (int round = 0; round < 10; ++round) {
    philox_round(words[0], words[1], words[2], words[3], key0, key1);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  /* word * 2^-32 >= p exactly: the product p * 2^32 is exact in double. */
  const uint32_t threshold = static_cast<uint32_t>(std::ceil(static_cast<double>(dropout.probability) * 0x1p32));
  const float kept = 1.0f / (1.0f - dropout.probability);
  for (int64_t i = 0; i < kGroups; ++i)
    for (int64_t w = 0; w < 4; ++w) factors[4 * i + w] = words[w][i] >= threshold ? kept : 0.0f;
}

void dropout_row(const AttentionProblem &problem, int64_t sequence, int64_t head, int64_t row, int64_t key,
                 float *factors) {
  const AttentionDropout &dropout = problem.dropout;
  const AttentionLength &length = problem.lengths[static_cast<size_t>(sequence)];
  const int64_t heads = dropout.heads == 0 ? problem.heads : dropout.heads;
  const int64_t number = length.number < 0 ? sequence : length.number;
  const int64_t pair = number * heads + dropout.first_head + head;
  const int64_t query = length.first_q + row, first = length.first_kv + key, past = first % 4;
  if (past == 0) return draw_row(dropout, pair, query, first, factors);
  float drawn[2 * kTile];
  draw_row(dropout, pair, query, first - past, drawn);
  draw_row(dropout, pair, query, first - past + kTile, drawn + kTile);
  std::copy_n(drawn + past, kTile, factors);
}

CHAGRES_CLONES void multiply_run(float *values, const float *factors, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= factors[i];
}

CHAGRES_CLONES void scale_run(float *values, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= factor;
}

CHAGRES_CLONES void score_gradient_row(float *gradient, const float *probability, float delta, int64_t columns) {
  for (int64_t j = 0; j < columns; ++j) gradient[j] = probability[j] * (gradient[j] - delta);
}

CHAGRES_CLONES float dot(const float *a, const float *b, int64_t count) {
  return lane_sum(count, [&](int64_t i) { return a[i] * b[i]; });
}

}  // namespace chagres::reference

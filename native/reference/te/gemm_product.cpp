/*
 * Matrix products: 16-bit and FP8 operands are widened block by block, block scaled ones with their scales; sums are
 * FP32.
 */
#include <algorithm>
#include <memory>

#include "runtime/elementary.h"
#include "te/gemm.h"

namespace chagres::reference {

namespace {

constexpr int64_t kPanelBytes = int64_t{64} << 20; /* of A, widened at a time */

/* ---- epilogues, one row at a time ---- */

CHAGRES_CLONES void add_scaled(float *values, const float *terms, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] += scale * terms[i];
}

CHAGRES_CLONES void apply_gelu(float *values, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] = gelu(values[i]);
}

CHAGRES_CLONES void multiply_gelu_derivative(float *values, const float *inputs, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= gelu_derivative(inputs[i]);
}

/* Answers the largest magnitude where D is FP8. */
float finish_row(const Gemm &gemm, float *values, float *terms, const float *bias, int64_t row, int64_t column,
                int64_t count) {
  const int64_t index = row * gemm.m + column;
  if (gemm.beta != 0) {
    to_float(terms, element(gemm.d.data, index, gemm.d.dtype), gemm.d.dtype, count);
    add_scaled(values, terms, gemm.beta, count);
  }
  if (bias != nullptr) add_scaled(values, bias + column, 1, count);
  if (gemm.with_aux && gemm.gradient) {
    to_float(terms, element(gemm.aux.data, index, gemm.aux.dtype), gemm.aux.dtype, count);
    multiply_gelu_derivative(values, terms, count);
  } else if (gemm.with_aux) {
    from_float(element(gemm.aux.data, index, gemm.aux.dtype), values, gemm.aux.dtype, count);
    apply_gelu(values, count);
  }
  if (gemm.quantized.tensor != nullptr) return store_run(gemm.quantized, index, values, count);
  from_float(element(gemm.d.data, index, gemm.d.dtype), values, gemm.d.dtype, count);
  return 0;
}

/* ---- the product ---- */

/* Columns begin..end of a row, which `values` has. */
void apply_scales(float *values, const BlockScales &blocks, int64_t row, int64_t begin, int64_t end) {
  for (int64_t column = begin; column < end;) {
    const int64_t next = std::min((column / kBlock + 1) * kBlock, end);
    rescale(values + (column - begin), blocks.at(row, column), next - column);
    column = next;
  }
}

/* Rows first..last of a factor with `columns` columns, columns begin..end of them, as floats side by side. */
void widen(float *destination, const Factor &source, int64_t columns, int64_t first, int64_t last, int64_t begin,
           int64_t end) {
  const NVTEDType dtype = source.matrix.dtype;
  for (int64_t row = first; row < last; ++row) {
    float *values = destination + (row - first) * (end - begin);
    to_float(values, element(source.matrix.data, row * columns + begin, dtype), dtype, end - begin);
    if (source.blocks.data != nullptr) apply_scales(values, source.blocks, row, begin, end);
  }
}

struct Operand {
  const float *data;
  int64_t stride;
};

/* The part of A that columns begin..end of D need: [k, end - begin], or [end - begin, k] when transposed. */
Operand panel_of_a(const Gemm &gemm, std::unique_ptr<Scratch> &buffer, int64_t begin, int64_t end) {
  const bool transposed = gemm.a.op == Op::T;
  const int64_t stored_columns = transposed ? gemm.k : gemm.m;
  if (gemm.a.matrix.dtype == kNVTEFloat32) {
    const auto *data = static_cast<const float *>(gemm.a.matrix.data);
    return {transposed ? data + begin * gemm.k : data + begin, stored_columns};
  }
  const int64_t rows = transposed ? end - begin : gemm.k;
  const int64_t columns = transposed ? gemm.k : end - begin;
  const int64_t first_row = transposed ? begin : 0, first_column = transposed ? 0 : begin;
  buffer = std::make_unique<Scratch>(rows * columns);
  float *panel = buffer->data();
  parallel_for(0, rows, grain_for(columns), [&](int64_t first, int64_t last) {
    widen(panel + first * columns, gemm.a, stored_columns, first_row + first, first_row + last, first_column,
          first_column + columns);
  });
  return {panel, columns};
}

/* The part of B that rows first..last of D need: [last - first, k], or [k, last - first] when transposed. */
Operand panel_of_b(const Gemm &gemm, std::unique_ptr<Scratch> &buffer, int64_t first, int64_t last) {
  const bool transposed = gemm.b.op == Op::T;
  if (gemm.b.matrix.dtype == kNVTEFloat32) {
    const auto *data = static_cast<const float *>(gemm.b.matrix.data);
    return transposed ? Operand{data + first, gemm.n} : Operand{data + first * gemm.k, gemm.k};
  }
  buffer = std::make_unique<Scratch>((last - first) * gemm.k);
  if (transposed) {
    widen(buffer->data(), gemm.b, gemm.n, 0, gemm.k, first, last);
    return {buffer->data(), last - first};
  }
  widen(buffer->data(), gemm.b, gemm.k, first, last, 0, gemm.k);
  return {buffer->data(), gemm.k};
}

/* Rows and columns of D that are computed at once. */
struct BlockSize {
  int64_t rows, columns;
};

int64_t divide_up(int64_t count, int64_t by) { return (count - 1) / by + 1; }

/* `count` cut into that many pieces, or fewer. */
int64_t piece_of(int64_t count, int64_t pieces) {
  constexpr int64_t kMultiple = 16;
  return divide_up(divide_up(count, pieces), kMultiple) * kMultiple;
}

/* Whether OpenBLAS writes D itself. Else a block goes through a buffer, which should stay in the processor's cache. */
bool is_direct(const Gemm &gemm) {
  const bool adds_bias = gemm.with_bias && !gemm.gradient;
  return gemm.d.dtype == kNVTEFloat32 && !gemm.with_aux && (!adds_bias || gemm.beta == 0);
}

/* OpenBLAS rearranges its factors anew for each block, so large products have large blocks. An even number of rows of blocks
 * keeps two threads busy to the end, and more threads have work, too, where there are eight blocks. */
BlockSize size_of_blocks(const Gemm &gemm) {
  constexpr int64_t kLargeProduct = int64_t{1} << 26, kColumns = 512, kRows = 256, kWideColumns = 640, kHighRows = 512;
  constexpr int64_t kEnough = 8;
  if (gemm.n * gemm.m < kLargeProduct / gemm.k) return {gemm.n >= 512 ? 128 : 64, kColumns};
  const int64_t across = divide_up(gemm.m, kWideColumns), down = 2 * divide_up(gemm.n, 2 * kHighRows);
  if (is_direct(gemm) && down * across >= kEnough) return {piece_of(gemm.n, down), piece_of(gemm.m, across)};
  return {piece_of(gemm.n, 2 * divide_up(gemm.n, 2 * kRows)), kColumns};
}

/* Sums of D's columns for DGELU with a bias gradient: one row of partial sums a block of rows. */
struct ColumnSums {
  float *partial; /* null: not wanted */
  int64_t columns;
};

/* Answers the largest magnitude where D is FP8. */
float compute_block(const Gemm &gemm, const Operand &a, int64_t a_offset, const float *bias, const ColumnSums &sums,
                   int64_t row_block, int64_t first, int64_t last, int64_t begin, int64_t end) {
  const int64_t rows = last - first, columns = end - begin;
  const auto alpha = static_cast<float>(static_cast<double>(gemm.alpha) * gemm.a.scale_inv * gemm.b.scale_inv);
  std::unique_ptr<Scratch> buffer;
  const Operand b = panel_of_b(gemm, buffer, first, last);
  const float *a_data = gemm.a.op == Op::T ? a.data + a_offset * a.stride : a.data + a_offset;
  if (is_direct(gemm)) {
    float *d = static_cast<float *>(gemm.d.data) + first * gemm.m + begin;
    sgemm(gemm.b.op, gemm.a.op, rows, columns, gemm.k, alpha, b.data, b.stride, a_data, a.stride, gemm.beta, d, gemm.m);
    for (int64_t row = 0; bias != nullptr && row < rows; ++row) add_scaled(d + row * gemm.m, bias + begin, 1, columns);
    return 0;
  }
  Scratch tile(rows * columns), terms(columns);
  sgemm(gemm.b.op, gemm.a.op, rows, columns, gemm.k, alpha, b.data, b.stride, a_data, a.stride, 0, tile.data(),
        columns);
  float *sum = sums.partial == nullptr ? nullptr : sums.partial + row_block * sums.columns + begin;
  if (sum != nullptr) std::fill(sum, sum + columns, 0.0f);
  float largest = 0;
  for (int64_t row = 0; row < rows; ++row) {
    float *values = tile.data() + row * columns;
    largest = std::max(largest, finish_row(gemm, values, terms.data(), bias, first + row, begin, columns));
    if (sum != nullptr) add_scaled(sum, values, 1, columns);
  }
  return largest;
}

}  // namespace

void multiply(const Gemm &gemm) {
  const BlockSize size = size_of_blocks(gemm);
  const int64_t row_blocks = divide_up(gemm.n, size.rows);
  const int64_t wanted = kPanelBytes / (gemm.k * static_cast<int64_t>(sizeof(float)));
  const int64_t width = std::max(size.columns, wanted / size.columns * size.columns);

  std::unique_ptr<Scratch> bias_values, sum_values;
  if (gemm.with_bias && !gemm.gradient) {
    bias_values = std::make_unique<Scratch>(gemm.m);
    to_float(bias_values->data(), gemm.bias.data, gemm.bias.dtype, gemm.m);
  }
  const bool sums_wanted = gemm.with_bias && gemm.gradient && gemm.with_aux;
  if (sums_wanted) sum_values = std::make_unique<Scratch>(row_blocks * gemm.m);
  const ColumnSums sums{sums_wanted ? sum_values->data() : nullptr, gemm.m};

  float largest = 0;
  for (int64_t left = 0; left < gemm.m; left += width) {
    const int64_t right = std::min(left + width, gemm.m);
    std::unique_ptr<Scratch> buffer;
    const Operand a = panel_of_a(gemm, buffer, left, right);
    const int64_t column_blocks = divide_up(right - left, size.columns);
    Scratch block_largest(row_blocks * column_blocks);
    parallel_for(0, row_blocks * column_blocks, 1, [&](int64_t first, int64_t last) {
      for (int64_t block = first; block < last; ++block) {
        const int64_t row = block / column_blocks, column = block % column_blocks * size.columns;
        block_largest[block] = compute_block(gemm, a, column, bias_values ? bias_values->data() : nullptr, sums, row,
                                             row * size.rows, std::min((row + 1) * size.rows, gemm.n), left + column,
                                             std::min(left + column + size.columns, right));
      }
    });
    largest = std::max(largest, largest_magnitude(block_largest.data(), row_blocks * column_blocks));
  }
  if (gemm.quantized.tensor != nullptr) {
    /* cuBLAS overwrites the amax cell, where casts merge into it. */
    auto *amax = static_cast<float *>(gemm.quantized.tensor->record(kNVTEAmax).data_ptr);
    if (amax != nullptr) *amax = 0;
    finish(gemm.quantized, largest);
  }
  if (sums_wanted) {
    for (int64_t row = 1; row < row_blocks; ++row) add_scaled(sums.partial, sums.partial + row * gemm.m, 1, gemm.m);
    from_float(gemm.bias.data, sums.partial, gemm.bias.dtype, gemm.m);
  }
}

void sum_b(const Gemm &gemm) {
  constexpr int64_t kColumns = 64;
  const View &b = gemm.b.matrix;
  parallel_for(0, gemm.n, kColumns, [&](int64_t first, int64_t last) {
    const int64_t count = last - first;
    Scratch sum(count);
    std::fill(sum.data(), sum.data() + count, 0.0f);
    for (int64_t row = 0; gemm.b.op == Op::T && row < gemm.k; ++row) {
      const FloatRun values(element(b.data, row * gemm.n + first, b.dtype), b.dtype, count);
      add_scaled(sum.data(), values.data(), 1, count);
    }
    for (int64_t i = 0; gemm.b.op == Op::N && i < count; ++i) {
      const FloatRun values(element(b.data, (first + i) * gemm.k, b.dtype), b.dtype, gemm.k);
      for (int64_t j = 0; j < gemm.k; ++j) sum[i] += values.data()[j];
    }
    from_float(element(gemm.bias.data, first, gemm.bias.dtype), sum.data(), gemm.bias.dtype, count);
  });
}

}  // namespace chagres::reference

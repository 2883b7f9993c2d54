/* Quantization with block scales. With blocks of a row's elements, rowwise and columnwise data are two matrices:
 * columnwise data has scales of its own, over 128 rows of the input. With square blocks one is the other's transpose.
 */
#include "te/block_scaling.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "te/quantized.h"
#include "te/recipe.h"

namespace chagres::reference {

namespace {

/* One copy of the output. */
struct Side {
  uint8_t *data; /* null: not wanted */
  NVTEDType dtype;
  float *scale_inv;
  int64_t stride; /* of the scales' first dimension */
};

struct BlockOutput {
  Side rowwise, columnwise;
  ScaleRule rule;
};

/* Inverse scales of [first, second], more of either allowed. */
void read_scales(Side &side, const NVTEBasicTensor &scales, const char *name, int64_t first, int64_t second,
                 const Caller &caller) {
  const bool fits = scales.shape.ndim == 2 && static_cast<int64_t>(scales.shape.data[0]) >= first &&
                    static_cast<int64_t>(scales.shape.data[1]) >= second;
  if (scales.data_ptr == nullptr || scales.dtype != kNVTEFloat32 || !fits) {
    fail(caller, text("Tensor \"output\" must have a ", name, " of Float32 of at least (", first, ", ", second, "), got ",
                      dtype_name(scales.dtype), " ", shape_text(scales.shape),
                      scales.data_ptr == nullptr ? " without data" : ""));
  }
  side.scale_inv = static_cast<float *>(scales.data_ptr);
  side.stride = static_cast<int64_t>(scales.shape.data[1]);
}

Side read_side(const Tensor &output, NVTETensorParam record, const char *name, const Caller &caller) {
  const NVTEBasicTensor &data = output.record(record);
  if (!output.has(record)) return {};
  if (!is_fp8(data.dtype)) {
    fail(caller, text("Tensor \"output\" must have ", name, " data of an FP8 dtype, got ", dtype_name(data.dtype)));
  }
  if (data.data_ptr == nullptr && element_count(data.shape) != 0) {
    fail(caller, text("Tensor \"output\" has ", name, " data without a pointer"));
  }
  return {static_cast<uint8_t *>(data.data_ptr), data.dtype, nullptr, 0};
}

/* What stands in for an infinite scale: the largest number of the input's dtype. */
float largest_of(NVTEDType dtype) {
  return dtype == kNVTEFloat32 ? std::numeric_limits<float>::max() : dtype == kNVTEFloat16 ? 65504.0f : bf16_to_float(0x7f7f);
}

BlockOutput read_output(const Tensor &output, const View &x, const QuantizationConfig &config, const Caller &caller) {
  BlockOutput y{read_side(output, kNVTERowwiseData, "rowwise", caller),
                read_side(output, kNVTEColumnwiseData, "columnwise", caller), {}};
  const bool square = output.scaling_mode == NVTE_BLOCK_SCALING_2D;
  const bool rowwise = output.has(kNVTERowwiseData), columnwise = output.has(kNVTEColumnwiseData);
  if (!rowwise && !columnwise) {
    fail(caller, "Tensor \"output\" has no data: either rowwise or columnwise output data need to be allocated");
  }
  if (rowwise && !same_shape(output.record(kNVTERowwiseData).shape, x.shape)) {
    fail(caller, text("Tensor \"output\" must have the shape of \"input\" ", shape_text(x.shape), ", got ",
                      shape_text(output.record(kNVTERowwiseData).shape)));
  }
  const NVTEShape &transposed = output.record(kNVTEColumnwiseData).shape;
  if (columnwise && (transposed.ndim == 0 || static_cast<int64_t>(transposed.data[0]) != x.columns ||
                     static_cast<int64_t>(element_count(transposed)) != x.count())) {
    fail(caller, text("Tensor \"output\" must have columnwise data of shape (", x.columns, ", ", x.rows,
                      "), the transpose of ", shape_text(x.shape), ", got ", shape_text(transposed)));
  }
  if (rowwise && columnwise && y.rowwise.dtype != y.columnwise.dtype) {
    fail(caller, text("Tensor \"output\" must have rowwise and columnwise data of one dtype, got ",
                      dtype_name(y.rowwise.dtype), " and ", dtype_name(y.columnwise.dtype)));
  }
  const int64_t down = blocks_of(x.rows), across = blocks_of(x.columns);
  if (rowwise) {
    read_scales(y.rowwise, output.record(kNVTERowwiseScaleInv), "rowwise scale_inv", square ? down : across,
                square ? across : x.rows, caller);
  }
  if (columnwise) {
    read_scales(y.columnwise, output.record(kNVTEColumnwiseScaleInv), "columnwise scale_inv", square ? across : down,
                square ? down : x.columns, caller);
  }
  y.rule = {fp8_max(output.dtype()), config.force_pow_2_scales != 0, config.amax_epsilon, largest_of(x.dtype)};
  return y;
}

/* ---- blocks of a row ---- */

/* Scales `run` by its own amax; returns the inverse scale. */
float scale_block(float *run, int64_t count, const ScaleRule &rule) {
  const float scale = scale_of(largest_magnitude(run, count), rule);
  rescale(run, scale, count);
  return static_cast<float>(1.0 / scale);
}

void quantize_rows(const View &x, const BlockOutput &y) {
  parallel_for(0, x.rows, grain_for(x.columns * 4), [&](int64_t first, int64_t last) {
    Scratch run(x.columns);
    for (int64_t row = first; row < last; ++row) {
      to_float(run.data(), element(x.data, row * x.columns, x.dtype), x.dtype, x.columns);
      for (int64_t column = 0; column < x.columns; column += kBlock) {
        const int64_t count = std::min(kBlock, x.columns - column);
        y.rowwise.scale_inv[column / kBlock * y.rowwise.stride + row] = scale_block(run.data() + column, count, y.rule);
      }
      from_float(y.rowwise.data + row * x.columns, run.data(), y.rowwise.dtype, x.columns);
    }
  });
}

/* Calls work(row, column, rows, columns, values) for tiles of 128 x 128, fewer at the edges; the tile's values side by
 * side. */
template <class Work>
void for_tiles(const View &x, Work &&work) {
  const int64_t across = blocks_of(x.columns);
  parallel_for(0, blocks_of(x.rows) * across, 1, [&](int64_t first, int64_t last) {
    Scratch values(kBlock * kBlock);
    for (int64_t tile = first; tile < last; ++tile) {
      const int64_t row = tile / across * kBlock, column = tile % across * kBlock;
      const int64_t rows = std::min(kBlock, x.rows - row), columns = std::min(kBlock, x.columns - column);
      for (int64_t i = 0; i < rows; ++i) {
        to_float(values.data() + i * columns, element(x.data, (row + i) * x.columns + column, x.dtype), x.dtype, columns);
      }
      work(row, column, rows, columns, values.data());
    }
  });
}

void quantize_columns(const View &x, const BlockOutput &y) {
  for_tiles(x, [&](int64_t row, int64_t column, int64_t rows, int64_t columns, const float *values) {
    Scratch run(rows);
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) run[i] = values[i * columns + j];
      y.columnwise.scale_inv[row / kBlock * y.columnwise.stride + column + j] = scale_block(run.data(), rows, y.rule);
      from_float(y.columnwise.data + (column + j) * x.rows + row, run.data(), y.columnwise.dtype, rows);
    }
  });
}

/* ---- square blocks ---- */

void quantize_squares(const View &x, const BlockOutput &y) {
  const NVTEDType dtype = y.rowwise.data != nullptr ? y.rowwise.dtype : y.columnwise.dtype;
  for_tiles(x, [&](int64_t row, int64_t column, int64_t rows, int64_t columns, float *values) {
    const float scale = scale_of(largest_magnitude(values, rows * columns), y.rule);
    rescale(values, scale, rows * columns);
    uint8_t codes[kBlock * kBlock];
    from_float(codes, values, dtype, rows * columns);
    if (y.rowwise.data != nullptr) {
      y.rowwise.scale_inv[row / kBlock * y.rowwise.stride + column / kBlock] = 1.0f / scale;
      for (int64_t i = 0; i < rows; ++i) {
        std::memcpy(y.rowwise.data + (row + i) * x.columns + column, codes + i * columns, static_cast<size_t>(columns));
      }
    }
    if (y.columnwise.data == nullptr) return;
    y.columnwise.scale_inv[column / kBlock * y.columnwise.stride + row / kBlock] = 1.0f / scale;
    for (int64_t j = 0; j < columns; ++j) {
      for (int64_t i = 0; i < rows; ++i) y.columnwise.data[(column + j) * x.rows + row + i] = codes[i * columns + j];
    }
  });
}

}  // namespace

void quantize_blocks(NVTETensor input, NVTETensor output, const QuantizationConfig &config, const Caller &caller) {
  const View x = view(input, "input", {}, caller);
  const Tensor &target = tensor(output, "output", caller);
  const BlockOutput y = read_output(target, x, config, caller);
  if (is_noop(config.noop_tensor, caller) || x.count() == 0) return;
  if (target.scaling_mode == NVTE_BLOCK_SCALING_2D) return quantize_squares(x, y);
  if (y.rowwise.data != nullptr) quantize_rows(x, y);
  if (y.columnwise.data != nullptr) quantize_columns(x, y);
}

}  // namespace chagres::reference

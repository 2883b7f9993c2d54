/* Outputs of scaling mode 0, plain or FP8: their checks, and what is written beside the data. */
#include "te/quantized.h"

#include <algorithm>

namespace chagres::reference {

namespace {

constexpr std::initializer_list<NVTEDType> kOutputDtypes = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3,
                                                            kNVTEFloat8E5M2};

/* One Float32, or absent. */
void check_cell(const NVTEBasicTensor &cell, const char *argument, const char *name, const Caller &caller) {
  if (cell.dtype != kNVTEFloat32 || element_count(cell.shape) != 1) {
    fail(caller, text("Tensor \"", argument, "\" must have a ", name, " of one Float32, got ", dtype_name(cell.dtype), " ",
                      shape_text(cell.shape)));
  }
}

void check_scales(const Tensor &tensor, const char *argument, const Caller &caller) {
  if (!tensor.has(kNVTERowwiseScaleInv)) {
    fail(caller, text("Tensor \"", argument, "\" is FP8, so it must have a rowwise scale_inv"));
  }
  check_cell(tensor.record(kNVTERowwiseScaleInv), argument, "rowwise scale_inv", caller);
  if (tensor.has(kNVTEScale)) check_cell(tensor.record(kNVTEScale), argument, "scale", caller);
  if (!tensor.has(kNVTEColumnwiseData)) return;
  if (!tensor.has(kNVTEColumnwiseScaleInv)) {
    fail(caller, text("Tensor \"", argument, "\" has columnwise FP8 data, so it must have a columnwise scale_inv"));
  }
  check_cell(tensor.record(kNVTEColumnwiseScaleInv), argument, "columnwise scale_inv", caller);
  if (tensor.record(kNVTERowwiseScaleInv).data_ptr != tensor.record(kNVTEColumnwiseScaleInv).data_ptr) {
    fail(caller, text("Tensor \"", argument,
                      "\": rowwise and columnwise data must share one scale_inv, got two pointers"));
  }
}

/* The transpose: [last, leading dimensions] or [last, their product]. */
void check_columnwise(const Tensor &tensor, const View &rowwise, const char *argument, const Caller &caller) {
  const NVTEBasicTensor &columnwise = tensor.record(kNVTEColumnwiseData);
  if (columnwise.dtype != rowwise.dtype) {
    fail(caller, text("Tensor \"", argument, "\" must have columnwise data of the rowwise data's dtype ",
                      dtype_name(rowwise.dtype), ", got ", dtype_name(columnwise.dtype)));
  }
  const auto first = columnwise.shape.ndim == 0 ? size_t{1} : columnwise.shape.data[0];
  if (columnwise.shape.ndim == 0 || static_cast<int64_t>(first) != rowwise.columns ||
      static_cast<int64_t>(element_count(columnwise.shape)) != rowwise.count()) {
    fail(caller, text("Tensor \"", argument, "\" must have columnwise data of shape ",
                      shape_text(make_shape({static_cast<size_t>(rowwise.columns), static_cast<size_t>(rowwise.rows)})),
                      ", the transpose of ", shape_text(rowwise.shape), ", got ", shape_text(columnwise.shape)));
  }
}

float *cell_pointer(const Tensor &tensor, NVTETensorParam record) {
  return static_cast<float *>(tensor.record(record).data_ptr);
}

/* Tiles keep the rows read and the rows written in the cache. */
template <class Element>
void move_elements(const void *input, void *output, int64_t rows, int64_t columns) {
  constexpr int64_t kTile = 32;
  const auto *source = static_cast<const Element *>(input);
  auto *destination = static_cast<Element *>(output);
  const int64_t column_tiles = (columns + kTile - 1) / kTile;
  parallel_for(0, (rows + kTile - 1) / kTile * column_tiles, 16, [&](int64_t first, int64_t last) {
    for (int64_t tile = first; tile < last; ++tile) {
      const int64_t row = tile / column_tiles * kTile, column = tile % column_tiles * kTile;
      for (int64_t j = column; j < std::min(column + kTile, columns); ++j) {
        for (int64_t i = row; i < std::min(row + kTile, rows); ++i) destination[j * rows + i] = source[i * columns + j];
      }
    }
  });
}

}  // namespace

Quantized described_quantized(NVTETensor handle, const char *argument, Caller caller) {
  const Tensor &found = tensor(handle, argument, caller);
  if (found.scaling_mode != NVTE_DELAYED_TENSOR_SCALING) {
    fail(caller, text("Tensor \"", argument, "\" must have scaling mode 0 (one scale) here, got ",
                      static_cast<int>(found.scaling_mode)));
  }
  if (found.has(kNVTEColumnwiseData) && !found.has(kNVTERowwiseData)) {
    fail(caller, text("Tensor \"", argument,
                      "\" has columnwise data alone: quantizing in only the columnwise direction is not supported"));
  }
  Quantized result{&found, described(handle, argument, kOutputDtypes, caller), nullptr, nullptr, nullptr};
  if (found.has(kNVTEAmax)) check_cell(found.record(kNVTEAmax), argument, "amax", caller);
  if (is_fp8(result.rowwise.dtype)) {
    check_scales(found, argument, caller);
    result.scale = cell_pointer(found, kNVTEScale);
    result.scale_inv = cell_pointer(found, kNVTERowwiseScaleInv);
  } else {
    expect_unscaled(handle, argument, caller);
  }
  if (found.has(kNVTEColumnwiseData)) {
    check_columnwise(found, result.rowwise, argument, caller);
    result.columnwise = found.record(kNVTEColumnwiseData).data_ptr;
  }
  return result;
}

void expect_data(const Quantized &output, const char *argument, Caller caller) {
  expect_data(output.rowwise, argument, caller);
  if (output.tensor->has(kNVTEColumnwiseData) && output.columnwise == nullptr && output.rowwise.count() != 0) {
    fail(caller, text("Tensor \"", argument, "\" has columnwise data without a pointer"));
  }
}

Quantized quantized_output(NVTETensor handle, const char *argument, Caller caller) {
  const Tensor &found = tensor(handle, argument, caller);
  if (!found.has(kNVTERowwiseData) && !found.has(kNVTEColumnwiseData)) view(handle, argument, {}, caller);
  const Quantized result = described_quantized(handle, argument, caller);
  expect_data(result, argument, caller);
  return result;
}

float store_run(const Quantized &output, int64_t first, float *run, int64_t count) {
  const bool wanted = output.tensor->record(kNVTEAmax).data_ptr != nullptr;
  const float largest = wanted ? largest_magnitude(run, count) : 0;
  if (output.scale != nullptr) rescale(run, *output.scale, count);
  void *elements = element(output.rowwise.data, first, output.rowwise.dtype);
  if (elements != run) from_float(elements, run, output.rowwise.dtype, count);
  return largest;
}

void finish(const Quantized &output, float largest) {
  if (output.rowwise.count() == 0) return;
  merge_amax(*output.tensor, largest);
  if (output.scale_inv != nullptr) *output.scale_inv = 1.0f / (output.scale == nullptr ? 1.0f : *output.scale);
  if (output.columnwise != nullptr) {
    transpose_elements(output.rowwise.data, output.columnwise, output.rowwise.rows, output.rowwise.columns,
                       element_size(output.rowwise.dtype));
  }
}

void transpose_elements(const void *source, void *destination, int64_t rows, int64_t columns, size_t element_size) {
  switch (element_size) {
    case 1:
      return move_elements<uint8_t>(source, destination, rows, columns);
    case 2:
      return move_elements<uint16_t>(source, destination, rows, columns);
    case 4:
      return move_elements<uint32_t>(source, destination, rows, columns);
    default:
      return move_elements<uint64_t>(source, destination, rows, columns);
  }
}

CHAGRES_CLONES float largest_magnitude(const float *values, int64_t count) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const float value = values[i + lane], magnitude = value < 0 ? -value : value;
      lanes[lane] = magnitude > lanes[lane] ? magnitude : lanes[lane];
    }
  }
  for (int lane = 0; i < count; ++i, ++lane) {
    const float magnitude = values[i] < 0 ? -values[i] : values[i];
    lanes[lane] = magnitude > lanes[lane] ? magnitude : lanes[lane];
  }
  return *std::max_element(lanes, lanes + kLanes);
}

CHAGRES_CLONES void rescale(float *values, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= factor;
}

bool is_noop(NVTETensor noop, const Caller &caller) {
  if (noop == nullptr || !tensor(noop, "noop", caller).has(kNVTERowwiseData)) return false;
  const View flag = view(noop, "noop", {kNVTEFloat32}, caller);
  expect_count(flag, "noop", 1, caller);
  return *static_cast<const float *>(flag.data) == 1.0f;
}

Fp8Input fp8_input(NVTETensor handle, const char *argument, Caller caller) {
  const Tensor &found = tensor(handle, argument, caller);
  if (found.scaling_mode != NVTE_DELAYED_TENSOR_SCALING) {
    fail(caller, text("Tensor \"", argument, "\" must have scaling mode 0 (one scale) here, got ",
                      static_cast<int>(found.scaling_mode)));
  }
  const View rowwise = view(handle, argument, {kNVTEFloat8E4M3, kNVTEFloat8E5M2}, caller);
  const NVTEBasicTensor &scale_inv = found.record(kNVTERowwiseScaleInv);
  if (!found.has(kNVTERowwiseScaleInv) || scale_inv.data_ptr == nullptr) {
    fail(caller, text("Tensor \"", argument, "\" is FP8, so it must have a rowwise scale_inv"));
  }
  check_cell(scale_inv, argument, "rowwise scale_inv", caller);
  return {rowwise, *static_cast<const float *>(scale_inv.data_ptr)};
}

}  // namespace chagres::reference

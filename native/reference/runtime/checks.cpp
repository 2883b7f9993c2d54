/* Errors, and the checks that exported functions make of their tensor arguments. */
#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "runtime/reference.h"

namespace chagres::reference {

void fail(const Caller &caller, const std::string &message) {
  const char *slash = std::strrchr(caller.file, '/');
  throw std::runtime_error(text(slash == nullptr ? caller.file : slash + 1, ":", caller.line, " in function ",
                                caller.function, ": ", message));
}

NVTEShape make_shape(std::initializer_list<size_t> dimensions) {
  NVTEShape shape{};
  for (const size_t dimension : dimensions) shape.data[shape.ndim++] = dimension;
  return shape;
}

bool same_shape(const NVTEShape &a, const NVTEShape &b) {
  return a.ndim == b.ndim && std::equal(a.data, a.data + a.ndim, b.data);
}

size_t element_count(const NVTEShape &shape) {
  size_t count = 1;
  for (size_t i = 0; i < shape.ndim; ++i) count *= shape.data[i];
  return count;
}

std::string shape_text(const NVTEShape &shape) {
  std::string out = "(";
  for (size_t i = 0; i < shape.ndim; ++i) out += (i == 0 ? "" : ", ") + std::to_string(shape.data[i]);
  return out + ")";
}

View described(NVTETensor handle, const char *argument, std::initializer_list<NVTEDType> dtypes, Caller caller) {
  static constexpr NVTEDType kFloats[] = {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16};
  const NVTEBasicTensor &data = tensor(handle, argument, caller).data();
  const NVTEDType *first = dtypes.size() == 0 ? std::begin(kFloats) : dtypes.begin();
  const NVTEDType *last = dtypes.size() == 0 ? std::end(kFloats) : dtypes.end();
  if (std::find(first, last, data.dtype) == last) {
    std::string expected;
    for (; first != last; ++first) expected += (expected.empty() ? "" : ", ") + std::string(dtype_name(*first));
    fail(caller, text("Tensor \"", argument, "\" must have dtype ", expected, ", got ", dtype_name(data.dtype),
                      ", which the reference does not compute here"));
  }
  View result{data.data_ptr, data.dtype, 1, 1, data.shape};
  for (size_t i = 0; i < data.shape.ndim; ++i) {
    (i + 1 == data.shape.ndim ? result.columns : result.rows) *= static_cast<int64_t>(data.shape.data[i]);
  }
  return result;
}

void expect_data(const View &view, const char *argument, Caller caller) {
  const bool unset = view.shape.ndim == 1 && view.count() == 0;
  if (view.data == nullptr && (unset || view.count() != 0)) {
    fail(caller, text("Tensor \"", argument, "\" has no data: expected a data pointer for shape ",
                      shape_text(view.shape), ", got null"));
  }
}

View view(NVTETensor handle, const char *argument, std::initializer_list<NVTEDType> dtypes, Caller caller) {
  const NVTEBasicTensor &data = tensor(handle, argument, caller).data();
  if (data.data_ptr == nullptr) {
    /* An unset tensor is Float32: its missing data is the fault, not its dtype. */
    expect_data({nullptr, data.dtype, 1, static_cast<int64_t>(element_count(data.shape)), data.shape}, argument, caller);
  }
  return described(handle, argument, dtypes, caller);
}

void expect_unscaled(NVTETensor handle, const char *argument, Caller caller) {
  const Tensor &found = tensor(handle, argument, caller);
  if (found.scaling_mode != NVTE_DELAYED_TENSOR_SCALING) {
    fail(caller, text("Tensor \"", argument, "\" must have scaling mode 0, got ", static_cast<int>(found.scaling_mode)));
  }
  const std::pair<NVTETensorParam, const char *> records[] = {
      {kNVTEScale, "scale"}, {kNVTERowwiseScaleInv, "rowwise scale_inv"}, {kNVTEColumnwiseScaleInv, "columnwise scale_inv"}};
  for (const auto &[record, name] : records) {
    if (found.has(record)) {
      fail(caller, text("Tensor \"", argument, "\" is not FP8, so it must have no ", name,
                        ": clear it with a null pointer and shape (0)"));
    }
  }
}

void expect_shape(const View &view, const char *argument, std::initializer_list<size_t> dimensions, Caller caller) {
  const NVTEShape expected = make_shape(dimensions);
  if (!same_shape(view.shape, expected)) {
    fail(caller, text("Tensor \"", argument, "\" must have shape ", shape_text(expected), ", got ",
                      shape_text(view.shape)));
  }
}

void expect_same_shape(const View &view, const char *argument, const View &other, const char *other_argument,
                       Caller caller) {
  if (!same_shape(view.shape, other.shape)) {
    fail(caller, text("Tensor \"", argument, "\" must have the shape of \"", other_argument, "\" ",
                      shape_text(other.shape), ", got ", shape_text(view.shape)));
  }
}

void expect_matrix(const View &view, const char *argument, int64_t rows, int64_t columns, Caller caller) {
  if (view.rows != rows || view.columns != columns) {
    fail(caller, text("Tensor \"", argument, "\" must be ", rows, " x ", columns, " when flattened to two dimensions, got ",
                      view.rows, " x ", view.columns, " of shape ", shape_text(view.shape)));
  }
}

void expect_count(const View &view, const char *argument, int64_t count, Caller caller) {
  if (view.count() != count) {
    fail(caller, text("Tensor \"", argument, "\" must have ", count, " elements, got ", view.count(), " of shape ",
                      shape_text(view.shape)));
  }
}

void expect_dtype(const View &view, const char *argument, NVTEDType dtype, Caller caller) {
  if (view.dtype != dtype) {
    fail(caller, text("Tensor \"", argument, "\" must have dtype ", dtype_name(dtype), ", got ", dtype_name(view.dtype)));
  }
}

bool workspace_query(NVTETensor workspace, const char *argument, std::initializer_list<size_t> dimensions,
                     NVTEDType dtype, Caller caller) {
  NVTEBasicTensor &data = tensor(workspace, argument, caller).records[kNVTERowwiseData];
  const NVTEShape needed = make_shape(dimensions);
  if (element_count(data.shape) == 0) {
    data.shape = needed;
    data.dtype = dtype;
    return true;
  }
  if (!same_shape(data.shape, needed) || data.dtype != dtype || data.data_ptr == nullptr) {
    fail(caller, text("Tensor \"", argument, "\" must be ", dtype_name(dtype), " of shape exactly ", shape_text(needed),
                      " with data, as the call with an unset workspace answers; got ", dtype_name(data.dtype), " ",
                      shape_text(data.shape), data.data_ptr == nullptr ? " without data" : ""));
  }
  return false;
}

void merge_amax(const Tensor &tensor, float value) {
  const NVTEBasicTensor &amax = tensor.record(kNVTEAmax);
  if (amax.data_ptr == nullptr) return;
  CHAGRES_CHECK(amax.dtype == kNVTEFloat32, "An amax cell must be Float32, got ", dtype_name(amax.dtype));
  auto *cell = static_cast<float *>(amax.data_ptr);
  /* As the GPU's atomic maximum on the bits: a NaN in the cell stays, and anything negative gives way. */
  const float magnitude = std::fabs(value);
  if (bit_cast<int32_t>(magnitude) > bit_cast<int32_t>(*cell)) *cell = magnitude;
}

}  // namespace chagres::reference

/* Operations that move elements: reshape, which reads the same memory by other strides, and concatenation. */
#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

constexpr int kReshapeX = 2200, kReshapeY = 2201;
constexpr int kAxis = 1800, kInputs = 1801, kOutput = 1803;

}  // namespace

void check_reshape(const Descriptor &operation) {
  const TensorSpec &x = operation.spec(kReshapeX), &y = operation.spec(kReshapeY);
  CHAGRES_REQUIRE(count_of(x.dims) == count_of(y.dims) && x.span() == y.span(), kShapeMismatch,
                  "CUDNN_ATTR_OPERATION_RESHAPE_YDESC: expected as many elements over as much memory as ", x.text(),
                  ", got ", y.text());
  CHAGRES_REQUIRE(x.span() <= kMostElements, kNotSupported,
                  "CUDNN_ATTR_OPERATION_RESHAPE_XDESC: the CPU reference reshapes at most ", kMostElements,
                  " elements");
}

void compute_reshape(Evaluation &values, const Descriptor &operation) {
  const TensorSpec &from = operation.spec(kReshapeX), &to = operation.spec(kReshapeY);
  const Array &x = values.read(operation, kReshapeX);
  std::vector<double> memory(static_cast<size_t>(from.span()));
  walk<1>(from.dims, {from.strides}, [&](int64_t position, const std::array<int64_t, 1> &at) {
    memory[static_cast<size_t>(at[0])] = x.values[static_cast<size_t>(position)];
  });
  Array y(to.dims);
  walk<1>(to.dims, {to.strides}, [&](int64_t position, const std::array<int64_t, 1> &at) {
    y.values[static_cast<size_t>(position)] = memory[static_cast<size_t>(at[0])];
  });
  values.write(operation, kReshapeY, std::move(y));
}

void check_concatenate(const Descriptor &operation) {
  const TensorSpec &output = operation.spec(kOutput);
  const int64_t axis = operation.integer(kAxis);
  CHAGRES_REQUIRE(axis >= 0 && axis < static_cast<int64_t>(output.dims.size()), kOutOfBound,
          "CUDNN_ATTR_OPERATION_CONCAT_AXIS: expected an axis of ", output.text(), ", got ", axis);
  Dims sum = output.dims;
  sum[static_cast<size_t>(axis)] = 0;
  for (const auto &input : operation.values.at(kInputs).descriptors) {
    const Dims &dims = input->tensor.dims;
    bool fits = dims.size() == sum.size();
    for (size_t i = 0; fits && i < dims.size(); ++i) fits = static_cast<int64_t>(i) == axis || dims[i] == sum[i];
    CHAGRES_REQUIRE(fits, kShapeMismatch, "CUDNN_ATTR_OPERATION_CONCAT_INPUT_DESCS: expected ", output.text(),
                    " but along axis ", axis, ", got ", input->tensor.text());
    sum[static_cast<size_t>(axis)] += dims[static_cast<size_t>(axis)];
  }
  CHAGRES_REQUIRE(sum == output.dims, kShapeMismatch, "CUDNN_ATTR_OPERATION_CONCAT_OUTPUT_DESC: expected ",
                  dims_text(sum), ", got ", output.text());
}

void compute_concatenate(Evaluation &values, const Descriptor &operation) {
  const size_t axis = static_cast<size_t>(operation.integer(kAxis));
  Array output(operation.spec(kOutput).dims);
  const Dims strides = row_major(output.dims);
  int64_t start = 0;
  const size_t count = operation.values.at(kInputs).descriptors.size();
  for (size_t i = 0; i < count; ++i) {
    const Array &input = values.read_one_of(operation, kInputs, i);
    walk<1>(input.dims, {strides}, [&](int64_t position, const std::array<int64_t, 1> &at) {
      output.values[static_cast<size_t>(start + at[0])] = input.values[static_cast<size_t>(position)];
    });
    start += input.dims[axis] * strides[axis];
  }
  values.write(operation, kOutput, std::move(output));
}

}  // namespace chagres::reference::cudnn

/* Reductions over the dimensions in which the result has one element, or one for each group of neighbours. */
#include <cmath>

#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

/* The other operators of cudnnReduceTensorOp_t cuDNN refuses in graphs. */
enum Operator { kAdd, kMul, kMin, kMax, kAmax };

constexpr int kOperator = 1600, kComputeType = 1601, kX = 1610, kY = 1611, kDescription = 1612;

double first(int64_t mode) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  return mode == kMin ? infinity : mode == kMax ? -infinity : mode == kMul ? 1 : 0;
}

double merged(int64_t mode, double so_far, double x) {
  switch (mode) {
    case kMul: return so_far * x;
    case kMin: return std::isnan(x) || x < so_far ? x : so_far;
    case kMax: return std::isnan(x) || x > so_far ? x : so_far;
    case kAmax: return std::fmax(so_far, std::fabs(x)); /* rows without tokens have no weights: NaN */
    default: return so_far + x; /* kAdd */
  }
}

}  // namespace

void check_reduction_operator(const Descriptor &description) {
  CHAGRES_REQUIRE(description.integer(kOperator) <= kAmax, kNotSupported,
                  "CUDNN_ATTR_REDUCTION_OPERATOR: expected 0 to 4 in a graph, got ", description.integer(kOperator));
}

void check_reduction(const Descriptor &operation) {
  const TensorSpec &x = operation.spec(kX), &y = operation.spec(kY);
  CHAGRES_REQUIRE(divides(y.dims, x.dims), kShapeMismatch,
                  "CUDNN_ATTR_OPERATION_REDUCTION_YDESC: expected dimensions of ", x.text(),
                  ", 1 or a number that divides them, got ", y.text());
}

void compute_reduction(Evaluation &values, const Descriptor &operation) {
  const Descriptor &description = operation.descriptor(kDescription);
  const int64_t mode = description.integer(kOperator);
  const Array &x = values.read(operation, kX);
  Array y(operation.spec(kY).dims);
  std::fill(y.values.begin(), y.values.end(), first(mode));
  /* Each dimension in two: groups, and the neighbours of a group. */
  Dims dims, strides;
  const Dims results = row_major(y.dims);
  for (size_t i = 0; i < y.dims.size(); ++i) {
    dims.insert(dims.end(), {y.dims[i], x.dims[i] / y.dims[i]});
    strides.insert(strides.end(), {results[i], 0});
  }
  walk<1>(dims, {strides}, [&](int64_t position, const std::array<int64_t, 1> &at) {
    double &result = y.values[static_cast<size_t>(at[0])];
    result = merged(mode, result, x.values[static_cast<size_t>(position)]);
  });
  const int math = static_cast<int>(description.integer(kComputeType));
  for (double &value : y.values) value = rounded(value, math);
  values.write(operation, kY, std::move(y));
}

}  // namespace chagres::reference::cudnn

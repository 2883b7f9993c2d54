/* Tensors whose blocks have a scale each: y = x scale, and the scales of a tensor that is quantized. */
#include <cmath>
#include <limits>

#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

struct Names {
  int x, y, scale, precision, block;
};

Names names(const Descriptor &operation) {
  if (operation.type == kBlockScaleQuantize) return {2500, 2501, 2502, 2503, 2504};
  return {2600, 2602, 2601, 2603, 2604};
}

constexpr int kNegative = 2605;

Dims block_sizes(const Descriptor &operation, int name) {
  const Value &value = operation.values.at(name);
  Dims all(static_cast<size_t>(value.count));
  for (size_t i = 0; i < all.size(); ++i) {
    int32_t one;
    std::memcpy(&one, value.bytes.data() + 4 * i, sizeof(one));
    CHAGRES_REQUIRE(one >= 1, kBadParam, attribute(operation.type, name).text, ": expected at least 1, got ", one);
    all[i] = one;
  }
  return all;
}

/* The size of a block along each dimension: one number is that of the dimension that has fewer scales. */
Dims blocks(const Descriptor &operation) {
  const Names n = names(operation);
  const Dims given = block_sizes(operation, n.block), &dims = operation.spec(n.x).dims,
             &scales = operation.spec(n.scale).dims;
  Dims all(dims.size(), 1);
  CHAGRES_REQUIRE(scales.size() == dims.size() && given.size() <= dims.size(), kShapeMismatch,
                  attribute(operation.type, n.scale).text, ": expected dimensions of ", operation.spec(n.x).text(),
                  ", got ", operation.spec(n.scale).text());
  for (size_t i = 0; i < dims.size(); ++i) {
    const size_t behind = dims.size() - given.size();
    if (given.size() == 1 ? scales[i] != dims[i] : i >= behind) all[i] = given[given.size() == 1 ? 0 : i - behind];
    CHAGRES_REQUIRE(scales[i] == (dims[i] + all[i] - 1) / all[i], kShapeMismatch,
                    attribute(operation.type, n.scale).text, ": expected one scale a block of ", dims_text(all),
                    " of ", operation.spec(n.x).text(), ", got ", operation.spec(n.scale).text());
  }
  return all;
}

/* Calls visit(element, block) for each element of x. */
template <class Visit>
void each(const Dims &dims, const Dims &sizes, const Dims &scales, Visit &&visit) {
  const Dims strides = row_major(scales), own = row_major(dims);
  const int64_t count = count_of(dims);
  for (int64_t i = 0; i < count; ++i) {
    int64_t block = 0;
    for (size_t d = 0; d < dims.size(); ++d) block += i / own[d] % dims[d] / sizes[d] * strides[d];
    visit(static_cast<size_t>(i), static_cast<size_t>(block));
  }
}

/* The largest number of a type of eight bits; others need no scale. */
double largest(int type) { return type == kE4m3 ? 448 : type == kE5m2 ? 57344 : 1; }

}  // namespace

void check_block_scale(const Descriptor &operation) {
  const Names n = names(operation);
  require_dims(operation, n.y, operation.spec(n.x).dims);
  blocks(operation);
}

void compute_block_scale_dequantize(Evaluation &values, const Descriptor &operation) {
  const Names n = names(operation);
  const int math = static_cast<int>(operation.integer(n.precision));
  const double sign = operation.integer(kNegative, 0) != 0 ? -1 : 1;
  const Array &x = values.read(operation, n.x), &scale = values.read(operation, n.scale);
  Array y(x.dims);
  each(x.dims, blocks(operation), scale.dims,
       [&](size_t i, size_t block) { y.values[i] = rounded(sign * x.values[i] * scale.values[block], math); });
  values.write(operation, n.y, std::move(y));
}

void compute_block_scale_quantize(Evaluation &values, const Descriptor &operation) {
  const Names n = names(operation);
  const TensorSpec &y_spec = operation.spec(n.y), &scale_spec = operation.spec(n.scale);
  const int math = static_cast<int>(operation.integer(n.precision));
  const Array &x = values.read(operation, n.x);
  const Dims sizes = blocks(operation);
  Array y(x.dims), scale(scale_spec.dims);
  each(x.dims, sizes, scale.dims, [&](size_t i, size_t block) {
    double &most = scale.values[block];
    most = std::isnan(x.values[i]) || std::isnan(most) ? std::numeric_limits<double>::quiet_NaN()
                                                       : std::max(most, std::fabs(x.values[i]));
  });
  for (double &one : scale.values) one = rounded(one / largest(y_spec.type), scale_spec.type);
  each(x.dims, sizes, scale.dims, [&](size_t i, size_t block) {
    y.values[i] = scale.values[block] == 0 ? 0 : rounded(x.values[i] / scale.values[block], math);
  });
  values.write(operation, n.y, std::move(y));
  values.write(operation, n.scale, std::move(scale));
}

}  // namespace chagres::reference::cudnn

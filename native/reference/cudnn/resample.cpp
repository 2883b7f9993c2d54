/* Resampling by windows: averages and maxima, and their gradients. */
#include "cudnn/windows.h"

namespace chagres::reference::cudnn {

namespace {

enum Mode { kAverageWithPadding = 2, kMaximum = 3, kAverageWithoutPadding = 4 };
enum Padding { kZero = 0, kNegativeInfinity = 1, kEdge = 2 };

constexpr int kMode = 1700, kComputeType = 1701, kSpatial = 1702, kPost = 1703, kPre = 1704, kStrides = 1705,
              kWindow = 1706, kPadding = 1708;
constexpr int kX = 1710, kY = 1711, kIndex = 1712, kBeta = 1714, kAlpha = 1713, kDescription = 1716;
constexpr int kDx = 1720, kDy = 1721, kBackIndex = 1722, kBackAlpha = 1723, kBackBeta = 1724, kBackDescription = 1725,
              kBackX = 1726;

Windows windows(const Descriptor &description, const Dims &x, const Dims &y) {
  return {spatial(x),
          spatial(y),
          description.integers(kWindow),
          description.integers(kStrides),
          Dims(x.size() - 2, 1),
          description.integers(kPre),
          description.integers(kPost)};
}

/* The value and place of the largest element of a window, the first of equals; padding has its own value. */
struct Largest {
  double value = -std::numeric_limits<double>::infinity();
  int64_t at = 0, from = -1;
};

Largest largest(const Windows &all, const Dims &to, const double *image, bool zero_padding) {
  Largest best;
  bool any = false;
  all.elements(to, [&](bool in, int64_t at, int64_t from) {
    if (!in && !zero_padding) return;
    const double value = in ? image[from] : 0;
    if (any && !(value > best.value) && value == value) return;
    any = true;
    best = {value, at, in ? from : -1};
  });
  return best;
}

double average(const Windows &all, const Dims &to, const double *image, bool with_padding) {
  double sum = 0;
  int64_t count = 0;
  all.elements(to, [&](bool in, int64_t, int64_t from) {
    if (in) sum += image[from];
    count += in || with_padding;
  });
  return count == 0 ? 0 : sum / static_cast<double>(count);
}

int64_t counted(const Windows &all, const Dims &to, bool with_padding) {
  int64_t count = 0;
  all.elements(to, [&](bool in, int64_t, int64_t) { count += in || with_padding; });
  return count;
}

}  // namespace

void check_resample(const Descriptor &operation) {
  const bool forward = operation.type == kResampleForward;
  const Descriptor &description = operation.descriptor(forward ? kDescription : kBackDescription);
  const TensorSpec &x = operation.spec(forward ? kX : kDx), &y = operation.spec(forward ? kY : kDy);
  const size_t rank = x.dims.size();
  CHAGRES_REQUIRE(rank >= 3 && y.dims.size() == rank && x.dims[0] == y.dims[0] && x.dims[1] == y.dims[1],
                  kShapeMismatch, descriptor_name(operation.type), ": expected x[N, C, …] and y[N, C, …], got ",
                  x.text(), " and ", y.text());
  CHAGRES_REQUIRE(description.integer(kSpatial) == static_cast<int64_t>(rank) - 2, kBadParam,
                  "CUDNN_ATTR_RESAMPLE_SPATIAL_DIMS: expected ", rank - 2, " for ", x.text(), ", got ",
                  description.integer(kSpatial));
  for (const int name : {kStrides, kWindow})
    require_each(description.integers(name), rank - 2, 1, attribute(kResample, name).text);
  for (const int name : {kPre, kPost})
    require_each(description.integers(name), rank - 2, 0, attribute(kResample, name).text);
  CHAGRES_REQUIRE(description.integer(kPadding) != kEdge, kNotSupported, descriptor_name(operation.type),
          ": padding by the edge's values is not computed by the CPU reference");
  if (description.integer(kMode) > 1)
    CHAGRES_REQUIRE(windows(description, x.dims, y.dims).result_sizes() == spatial(y.dims), kShapeMismatch,
                    descriptor_name(operation.type), ": expected sizes ",
                    dims_text(windows(description, x.dims, y.dims).result_sizes()), " for ", x.text(), ", got ",
                    y.text());
  const int index = forward ? kIndex : kBackIndex;
  CHAGRES_REQUIRE(!operation.has(index) || operation.spec(index).dims == y.dims, kShapeMismatch,
                  attribute(operation.type, index).text, ": expected ", dims_text(y.dims));
  CHAGRES_REQUIRE(operation.number(forward ? kBeta : kBackBeta, 0) == 0, kNotSupported, descriptor_name(operation.type),
          ": only a beta of 0 is computed by the CPU reference");
  if (forward || description.integer(kMode) != kMaximum) return;
  CHAGRES_REQUIRE(operation.has(kBackIndex) || operation.has(kBackX), kBadParam, descriptor_name(operation.type),
          ": expected CUDNN_ATTR_OPERATION_RESAMPLE_BWD_XDESC or IDXDESC to be set for maxima");
  CHAGRES_REQUIRE(!operation.has(kBackX) || operation.spec(kBackX).dims == x.dims, kShapeMismatch,
          "CUDNN_ATTR_OPERATION_RESAMPLE_BWD_XDESC: expected ", dims_text(x.dims));
}

void compute_resample_forward(Evaluation &values, const Descriptor &operation) {
  const Descriptor &description = operation.descriptor(kDescription);
  const Array &x = values.read(operation, kX);
  Array y(operation.spec(kY).dims), index(y.dims);
  const Windows all = windows(description, x.dims, y.dims);
  const int64_t mode = description.integer(kMode), image = count_of(all.image), result = count_of(all.result);
  const double alpha = operation.number(kAlpha, 1);
  const int math = static_cast<int>(description.integer(kComputeType));
  for (int64_t i = 0; i < static_cast<int64_t>(y.values.size()); ++i) {
    const Dims to = index_at(all.result, i % result);
    const double *from = x.values.data() + i / result * image;
    const Largest best = mode == kMaximum ? largest(all, to, from, description.integer(kPadding) == kZero) : Largest();
    const double value = mode == kMaximum ? best.value : average(all, to, from, mode == kAverageWithPadding);
    y.values[static_cast<size_t>(i)] = rounded(alpha * value, math);
    index.values[static_cast<size_t>(i)] = static_cast<double>(best.at);
  }
  values.write(operation, kY, std::move(y));
  if (operation.has(kIndex)) values.write(operation, kIndex, std::move(index));
}

void compute_resample_backward(Evaluation &values, const Descriptor &operation) {
  const Descriptor &description = operation.descriptor(kBackDescription);
  const Array &dy = values.read(operation, kDy);
  Array dx(operation.spec(kDx).dims);
  const Windows all = windows(description, dx.dims, dy.dims);
  const int64_t mode = description.integer(kMode), image = count_of(all.image), result = count_of(all.result);
  const Array *x = operation.has(kBackX) ? &values.read(operation, kBackX) : nullptr;
  const Array *index = x == nullptr && operation.has(kBackIndex) ? &values.read(operation, kBackIndex) : nullptr;
  for (int64_t i = 0; i < static_cast<int64_t>(dy.values.size()); ++i) {
    const Dims to = index_at(all.result, i % result);
    const int64_t start = i / result * image;
    const double gradient = dy.values[static_cast<size_t>(i)];
    if (mode == kMaximum && x != nullptr) {
      const Largest best = largest(all, to, x->values.data() + start, description.integer(kPadding) == kZero);
      if (best.from >= 0) dx.values[static_cast<size_t>(start + best.from)] += gradient;
      continue;
    }
    const double share =
        mode == kMaximum ? 1
                         : 1 / static_cast<double>(std::max<int64_t>(1, counted(all, to, mode == kAverageWithPadding)));
    all.elements(to, [&](bool in, int64_t at, int64_t from) {
      const bool takes = mode != kMaximum || index->values[static_cast<size_t>(i)] == static_cast<double>(at);
      if (in && takes) dx.values[static_cast<size_t>(start + from)] += share * gradient;
    });
  }
  const double alpha = operation.number(kBackAlpha, 1);
  const int math = static_cast<int>(description.integer(kComputeType));
  for (double &value : dx.values) value = rounded(alpha * value, math);
  values.write(operation, kDx, std::move(dx));
}

}  // namespace chagres::reference::cudnn

/* Convolutions y[N, K, …] = x[N, C, …] * w[K, C / groups, …], and their gradients. */
#include "cudnn/windows.h"

namespace chagres::reference::cudnn {

namespace {

constexpr int kComputeType = 100, kMode = 101, kDilations = 102, kStrides = 103, kPost = 104, kPre = 105,
              kSpatial = 106;

/* The attributes of one of the three operations. */
struct Names {
  int alpha, beta, description, w, x, y;
};

Names names(int type) {
  switch (type) {
    case kConvolutionForward:
      return {700, 701, 702, 703, 704, 705};
    case kConvolutionBackwardData:
      return {706, 707, 708, 709, 710, 711};
    default:
      return {712, 713, 714, 715, 716, 717};
  }
}

struct Problem {
  Windows windows;
  int64_t batch, channels, results, group_channels, groups;
  bool flipped;
  double alpha;
  int math;
};

Problem problem(const Descriptor &operation) {
  const Names at = names(operation.type);
  const Descriptor &description = operation.descriptor(at.description);
  const Dims &x = operation.spec(at.x).dims, &w = operation.spec(at.w).dims, &y = operation.spec(at.y).dims;
  Problem all{};
  all.windows = {spatial(x),
                 spatial(y),
                 spatial(w),
                 description.integers(kStrides),
                 description.integers(kDilations),
                 description.integers(kPre),
                 description.integers(kPost)};
  all.batch = x[0];
  all.channels = x[1];
  all.results = w[0];
  all.group_channels = w[1];
  all.groups = x[1] / w[1];
  all.flipped = description.integer(kMode) == 0;
  all.alpha = operation.number(at.alpha, 1);
  all.math = static_cast<int>(description.integer(kComputeType));
  return all;
}

/* Calls visit(x, w, y), the places of three elements that belong together, for each product of the convolution. */
template <class Visit>
void products(const Problem &all, Visit &&visit) {
  const int64_t image = count_of(all.windows.image), window = count_of(all.windows.window),
                result = count_of(all.windows.result);
  const int64_t group_results = all.results / all.groups;
  for (int64_t place = 0; place < result; ++place)
    all.windows.elements(index_at(all.windows.result, place), [&](bool in, int64_t at, int64_t from) {
      if (!in) return;
      const int64_t tap = all.flipped ? window - 1 - at : at;
      for (int64_t n = 0; n < all.batch; ++n)
        for (int64_t k = 0; k < all.results; ++k)
          for (int64_t c = 0; c < all.group_channels; ++c) {
            const int64_t channel = k / group_results * all.group_channels + c;
            visit(static_cast<size_t>((n * all.channels + channel) * image + from),
                  static_cast<size_t>((k * all.group_channels + c) * window + tap),
                  static_cast<size_t>((n * all.results + k) * result + place));
          }
    });
}

void finish(Evaluation &values, const Descriptor &operation, int name, const Problem &all, Array sums) {
  for (double &sum : sums.values) sum = rounded(all.alpha * sum, all.math);
  values.write(operation, name, std::move(sums));
}

}  // namespace

void check_convolution(const Descriptor &operation) {
  const Names at = names(operation.type);
  const Descriptor &description = operation.descriptor(at.description);
  const TensorSpec &x = operation.spec(at.x), &w = operation.spec(at.w), &y = operation.spec(at.y);
  const size_t rank = x.dims.size();
  CHAGRES_REQUIRE(rank >= 3 && w.dims.size() == rank && y.dims.size() == rank, kShapeMismatch,
                  descriptor_name(operation.type),
                  ": expected x[N, C, …], w[K, C / groups, …], y[N, K, …] of as many dimensions, at least 3, got ",
                  x.text(), ", ", w.text(), ", ", y.text());
  CHAGRES_REQUIRE(description.integer(kSpatial) == static_cast<int64_t>(rank) - 2, kBadParam,
                  "CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS: expected ", rank - 2, " for ", x.text(), ", got ",
                  description.integer(kSpatial));
  for (const int name : {kStrides, kDilations})
    require_each(description.integers(name), rank - 2, 1, attribute(kConvolution, name).text);
  for (const int name : {kPre, kPost})
    require_each(description.integers(name), rank - 2, 0, attribute(kConvolution, name).text);
  CHAGRES_REQUIRE(x.dims[1] % w.dims[1] == 0 && w.dims[0] % (x.dims[1] / w.dims[1]) == 0, kShapeMismatch,
                  descriptor_name(operation.type), ": expected groups of channels that divide ", x.text(), " and ",
                  w.text());
  const Problem all = problem(operation);
  Dims wanted{x.dims[0], w.dims[0]};
  for (const int64_t size : all.windows.result_sizes()) wanted.push_back(size);
  CHAGRES_REQUIRE(y.dims == wanted, kShapeMismatch, descriptor_name(operation.type), ": expected ", dims_text(wanted),
                  " for ", x.text(), " and ", w.text(), ", got ", y.text());
  CHAGRES_REQUIRE(operation.number(at.beta, 0) == 0, kNotSupported, attribute(operation.type, at.beta).text,
          ": only 0 is computed by the CPU reference");
}

void compute_convolution_forward(Evaluation &values, const Descriptor &operation) {
  const Names at = names(operation.type);
  const Array &x = values.read(operation, at.x), &w = values.read(operation, at.w);
  const Problem all = problem(operation);
  Array y(operation.spec(at.y).dims);
  products(all, [&](size_t i, size_t j, size_t k) { y.values[k] += x.values[i] * w.values[j]; });
  finish(values, operation, at.y, all, std::move(y));
}

void compute_convolution_backward_data(Evaluation &values, const Descriptor &operation) {
  const Names at = names(operation.type);
  const Array &w = values.read(operation, at.w), &dy = values.read(operation, at.y);
  const Problem all = problem(operation);
  Array dx(operation.spec(at.x).dims);
  products(all, [&](size_t i, size_t j, size_t k) { dx.values[i] += w.values[j] * dy.values[k]; });
  finish(values, operation, at.x, all, std::move(dx));
}

void compute_convolution_backward_filter(Evaluation &values, const Descriptor &operation) {
  const Names at = names(operation.type);
  const Array &x = values.read(operation, at.x), &dy = values.read(operation, at.y);
  const Problem all = problem(operation);
  Array dw(operation.spec(at.w).dims);
  products(all, [&](size_t i, size_t j, size_t k) { dw.values[j] += x.values[i] * dy.values[k]; });
  finish(values, operation, at.w, all, std::move(dw));
}

}  // namespace chagres::reference::cudnn

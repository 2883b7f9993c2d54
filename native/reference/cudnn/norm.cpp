/* Layer, RMS, instance and batch norm: y = scale (x - mean) invVariance + bias, and its gradients. */
#include <cmath>

#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

enum Mode { kLayer = 0, kInstance = 1, kBatch = 2, kRms = 4 };

constexpr int kMode = 2000, kPhase = 2001, kX = 2002, kMean = 2003, kInverse = 2004, kScale = 2005, kBias = 2006,
              kEpsilon = 2007, kFactor = 2008, kMeanIn = 2009, kVarianceIn = 2010, kMeanOut = 2011, kVarianceOut = 2012,
              kY = 2013;
constexpr int kBackMode = 2100, kBackX = 2101, kBackMean = 2102, kBackInverse = 2103, kBackDy = 2104, kBackScale = 2105,
              kBackDscale = 2107, kBackDbias = 2108, kBackDx = 2109;

/* The dimensions of means: 1 where they are taken over. */
Dims statistics_dims(int64_t mode, const Dims &x, const Dims *scale) {
  Dims dims = x;
  for (size_t i = 0; i < dims.size(); ++i) {
    const bool over = mode == kInstance  ? i >= 2
                      : mode == kBatch   ? i != 1
                      : scale != nullptr ? (*scale)[i] != 1
                                         : i != 0;
    if (over) dims[i] = 1;
  }
  return dims;
}

void require_scale(const Descriptor &operation, int name, const TensorSpec &x) {
  if (!operation.has(name)) return;
  CHAGRES_REQUIRE(broadcasts(operation.spec(name).dims, x.dims), kShapeMismatch, attribute(operation.type, name).text,
          ": expected dimensions of ", x.text(), " or 1, got ", operation.spec(name).text());
}

void require_set(const Descriptor &operation, int name) {
  CHAGRES_REQUIRE(operation.has(name), kBadParam, descriptor_name(operation.type), ": expected ",
                  attribute(operation.type, name).text, " to be set");
}

const Dims *dims_or_null(const Descriptor &operation, int name) {
  return operation.has(name) ? &operation.spec(name).dims : nullptr;
}

void check_rank(const TensorSpec &x, int64_t mode) {
  CHAGRES_REQUIRE(x.dims.size() >= ((mode == kInstance || mode == kBatch) ? 3u : 2u), kShapeMismatch, "norm: expected ",
          (mode == kInstance || mode == kBatch) ? "x[N, C, …]" : "x[N, …]", ", got ", x.text());
}

struct Statistics {
  Array mean, inverse, variance;
};

Statistics statistics(const Array &x, const Dims &dims, bool centered, double epsilon) {
  Statistics result{Array(dims), Array(dims), Array(dims)};
  const double share = static_cast<double>(result.mean.values.size()) / static_cast<double>(x.values.size());
  const std::array<Dims, 1> strides{broadcast_strides(dims, x.dims)};
  if (centered)
    walk<1>(x.dims, strides, [&](int64_t position, const std::array<int64_t, 1> &at) {
      result.mean.values[static_cast<size_t>(at[0])] += share * x.values[static_cast<size_t>(position)];
    });
  walk<1>(x.dims, strides, [&](int64_t position, const std::array<int64_t, 1> &at) {
    const double distance = x.values[static_cast<size_t>(position)] - result.mean.values[static_cast<size_t>(at[0])];
    result.variance.values[static_cast<size_t>(at[0])] += share * distance * distance;
  });
  for (size_t i = 0; i < result.inverse.values.size(); ++i)
    result.inverse.values[i] = 1 / std::sqrt(result.variance.values[i] + epsilon);
  return result;
}

/* running = (1 - factor) previous + factor present */
void write_running(Evaluation &values, const Descriptor &operation, int from, int to, const Array &present,
                   double scale) {
  if (!operation.has(from) || !operation.has(to)) return;
  const double factor = values.scalar(operation, kFactor);
  const Array &previous = values.read(operation, from);
  Array running(present.dims);
  for (size_t i = 0; i < running.values.size(); ++i)
    running.values[i] = (1 - factor) * previous.values[i] + factor * scale * present.values[i];
  values.write(operation, to, std::move(running));
}

Dims strides_or_zero(const Array *array, const Dims &large) {
  return array != nullptr ? broadcast_strides(array->dims, large) : Dims(large.size(), 0);
}

double at_or(const Array *array, int64_t offset, double otherwise) {
  return array != nullptr ? array->values[static_cast<size_t>(offset)] : otherwise;
}

}  // namespace

void check_norm_forward(const Descriptor &operation) {
  const TensorSpec &x = operation.spec(kX);
  const int64_t mode = operation.integer(kMode);
  check_rank(x, mode);
  require_dims(operation, kY, x.dims);
  require_scale(operation, kScale, x);
  require_scale(operation, kBias, x);
  const Dims statistics = statistics_dims(mode, x.dims, dims_or_null(operation, kScale));
  const bool reads = operation.integer(kPhase) == 0 && (mode == kBatch || mode == kInstance);
  if (reads) {
    require_set(operation, kMean);
    require_set(operation, kInverse);
  } else {
    require_set(operation, kEpsilon);
  }
  for (const int name : {kMean, kInverse, kMeanIn, kVarianceIn, kMeanOut, kVarianceOut})
    require_dims(operation, name, statistics);
  for (const int name : {kMeanOut, kVarianceOut})
    if (operation.has(name)) {
      require_set(operation, name - 2);
      require_set(operation, kFactor);
    }
  for (const int name : {kEpsilon, kFactor})
    require_dims(operation, name, Dims(operation.has(name) ? operation.spec(name).dims.size() : 0, 1));
}

void compute_norm_forward(Evaluation &values, const Descriptor &operation) {
  const Array &x = values.read(operation, kX);
  const int64_t mode = operation.integer(kMode);
  const bool training = operation.integer(kPhase) == 1;
  const bool reads = !training && (mode == kBatch || mode == kInstance);
  Statistics present;
  if (reads) {
    present.mean = values.read(operation, kMean);
    present.inverse = values.read(operation, kInverse);
  } else {
    present = statistics(x, statistics_dims(mode, x.dims, dims_or_null(operation, kScale)), mode != kRms,
                         values.scalar(operation, kEpsilon));
  }
  const Array *scale = operation.has(kScale) ? &values.read(operation, kScale) : nullptr;
  const Array *bias = operation.has(kBias) ? &values.read(operation, kBias) : nullptr;
  Array y(x.dims);
  walk<3>(x.dims,
          {broadcast_strides(present.mean.dims, x.dims), strides_or_zero(scale, x.dims), strides_or_zero(bias, x.dims)},
          [&](int64_t position, const std::array<int64_t, 3> &at) {
            const size_t i = static_cast<size_t>(position), s = static_cast<size_t>(at[0]);
            const double normed = (x.values[i] - present.mean.values[s]) * present.inverse.values[s];
            y.values[i] = at_or(scale, at[1], 1) * normed + at_or(bias, at[2], 0);
          });
  values.write(operation, kY, std::move(y));
  if (reads) return;
  const double count = static_cast<double>(x.values.size()) / static_cast<double>(present.mean.values.size());
  write_running(values, operation, kMeanIn, kMeanOut, present.mean, 1);
  write_running(values, operation, kVarianceIn, kVarianceOut, present.variance, count > 1 ? count / (count - 1) : 1);
  if (training && operation.has(kMean)) values.write(operation, kMean, std::move(present.mean));
  if (training && operation.has(kInverse)) values.write(operation, kInverse, std::move(present.inverse));
}

void check_norm_backward(const Descriptor &operation) {
  const TensorSpec &x = operation.spec(kBackX);
  const int64_t mode = operation.integer(kBackMode);
  check_rank(x, mode);
  require_dims(operation, kBackDy, x.dims);
  require_dims(operation, kBackDx, x.dims);
  require_set(operation, kBackScale);
  require_scale(operation, kBackScale, x);
  require_dims(operation, kBackDscale, operation.spec(kBackScale).dims);
  require_dims(operation, kBackDbias, operation.spec(kBackScale).dims);
  require_set(operation, kBackInverse);
  if (mode != kRms) require_set(operation, kBackMean);
  const Dims statistics = statistics_dims(mode, x.dims, dims_or_null(operation, kBackScale));
  for (const int name : {kBackMean, kBackInverse}) require_dims(operation, name, statistics);
}

/* dx = inverse (scale dy - mean(scale dy) - normed mean(scale dy normed)); RMS norm has no first mean. */
void compute_norm_backward(Evaluation &values, const Descriptor &operation) {
  const Array &x = values.read(operation, kBackX), &dy = values.read(operation, kBackDy);
  const Array &scale = values.read(operation, kBackScale), &inverse = values.read(operation, kBackInverse);
  const bool centered = operation.integer(kBackMode) != kRms;
  const Array *mean = centered ? &values.read(operation, kBackMean) : nullptr;
  Array dscale(scale.dims), dbias(scale.dims), sums(inverse.dims), products(inverse.dims), dx(x.dims);
  const double share = static_cast<double>(inverse.values.size()) / static_cast<double>(x.values.size());
  const std::array<Dims, 2> strides{broadcast_strides(inverse.dims, x.dims), broadcast_strides(scale.dims, x.dims)};
  const auto normed = [&](size_t i, size_t s) {
    return (x.values[i] - at_or(mean, static_cast<int64_t>(s), 0)) * inverse.values[s];
  };
  walk<2>(x.dims, strides, [&](int64_t position, const std::array<int64_t, 2> &at) {
    const size_t i = static_cast<size_t>(position), s = static_cast<size_t>(at[0]), c = static_cast<size_t>(at[1]);
    const double scaled = scale.values[c] * dy.values[i];
    sums.values[s] += share * scaled;
    products.values[s] += share * scaled * normed(i, s);
    dscale.values[c] += dy.values[i] * normed(i, s);
    dbias.values[c] += dy.values[i];
  });
  walk<2>(x.dims, strides, [&](int64_t position, const std::array<int64_t, 2> &at) {
    const size_t i = static_cast<size_t>(position), s = static_cast<size_t>(at[0]), c = static_cast<size_t>(at[1]);
    const double rest = (centered ? sums.values[s] : 0) + normed(i, s) * products.values[s];
    dx.values[i] = inverse.values[s] * (scale.values[c] * dy.values[i] - rest);
  });
  values.write(operation, kBackDx, std::move(dx));
  if (operation.has(kBackDscale)) values.write(operation, kBackDscale, std::move(dscale));
  if (operation.has(kBackDbias)) values.write(operation, kBackDbias, std::move(dbias));
}

}  // namespace chagres::reference::cudnn

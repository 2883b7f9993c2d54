/* Statistics of batch norm, as cuDNN fuses them with convolutions: sums, what follows from sums, gradients of weights. */
#include <cmath>

#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

constexpr int kStatsPrecision = 771, kStatsX = 772, kSum = 773, kSquares = 774;
constexpr int kMode = 780, kPrecision = 781, kYSum = 782, kYSquares = 783, kScale = 784, kBias = 785, kMeanBefore = 786,
              kVarianceBefore = 787, kMeanAfter = 788, kVarianceAfter = 789, kSavedMean = 790, kSavedInverse = 791,
              kEqScale = 792, kEqBias = 793, kCount = 794, kEpsilon = 795, kFactor = 796;
constexpr int kWeightsPrecision = 1620, kMean = 1621, kInverse = 1622, kWeightsScale = 1623, kX = 1624, kDy = 1625,
              kDscale = 1626, kDbias = 1627, kEqDyScale = 1628, kEqXScale = 1629, kEqShift = 1630;

/* [1, C, 1, …] of x[N, C, …]. */
Dims channels(const TensorSpec &x) {
  CHAGRES_REQUIRE(x.dims.size() >= 2, kShapeMismatch, "expected [N, C, …], got ", x.text());
  Dims dims(x.dims.size(), 1);
  dims[1] = x.dims[1];
  return dims;
}

size_t channel_of(int64_t position, const Dims &dims) {
  int64_t inner = 1;
  for (size_t i = 2; i < dims.size(); ++i) inner *= dims[i];
  return static_cast<size_t>(position / inner % dims[1]);
}

void require_number(const Descriptor &operation, int name) {
  CHAGRES_REQUIRE(!operation.has(name) || count_of(operation.spec(name).dims) == 1, kShapeMismatch,
                  attribute(operation.type, name).text, ": expected a tensor of one element, got ",
                  operation.spec(name).text());
}

}  // namespace

void check_gen_stats(const Descriptor &operation) {
  const Dims dims = channels(operation.spec(kStatsX));
  require_dims(operation, kSum, dims);
  require_dims(operation, kSquares, dims);
}

void compute_gen_stats(Evaluation &values, const Descriptor &operation) {
  const int math = static_cast<int>(operation.integer(kStatsPrecision));
  const Array &x = values.read(operation, kStatsX);
  Array sum(operation.spec(kSum).dims), squares(operation.spec(kSquares).dims);
  for (size_t i = 0; i < x.values.size(); ++i) {
    const size_t c = channel_of(static_cast<int64_t>(i), x.dims);
    sum.values[c] += x.values[i];
    squares.values[c] += x.values[i] * x.values[i];
  }
  for (Array *one : {&sum, &squares})
    for (double &value : one->values) value = rounded(value, math);
  values.write(operation, kSum, std::move(sum));
  values.write(operation, kSquares, std::move(squares));
}

void check_bn_finalize(const Descriptor &operation) {
  const Dims dims = operation.spec(kYSum).dims;
  for (const int name : {kYSquares, kScale, kBias, kMeanBefore, kVarianceBefore, kMeanAfter, kVarianceAfter, kSavedMean,
                         kSavedInverse, kEqScale, kEqBias})
    require_dims(operation, name, dims);
  for (const int name : {kCount, kEpsilon, kFactor}) require_number(operation, name);
  const bool running = operation.has(kMeanAfter);
  for (const int name : {kMeanBefore, kVarianceBefore, kVarianceAfter, kFactor})
    CHAGRES_REQUIRE(operation.has(name) == running, kBadParam, attribute(kBnFinalize, name).text,
                    ": expected all of the running statistics or none");
  CHAGRES_REQUIRE(operation.integer(kMode) == 0, kNotSupported,
                  "CUDNN_ATTR_OPERATION_BN_FINALIZE_STATS_MODE: inference is not computed by the CPU reference");
}

/* Mean and variance from sums; the norm is eq_scale x + eq_bias. */
void compute_bn_finalize(Evaluation &values, const Descriptor &operation) {
  const int math = static_cast<int>(operation.integer(kPrecision));
  const Array &sum = values.read(operation, kYSum), &squares = values.read(operation, kYSquares);
  const Array &scale = values.read(operation, kScale), &bias = values.read(operation, kBias);
  const double count = values.scalar(operation, kCount), epsilon = values.scalar(operation, kEpsilon);
  const bool running = operation.has(kMeanAfter);
  Array mean(sum.dims), inverse(sum.dims), eq_scale(sum.dims), eq_bias(sum.dims), next_mean(sum.dims), next(sum.dims);
  for (size_t c = 0; c < sum.values.size(); ++c) {
    const double average = sum.values[c] / count;
    const double variance = std::max(squares.values[c] / count - average * average, 0.0);
    const double invert = 1 / std::sqrt(variance + epsilon);
    mean.values[c] = rounded(average, math);
    inverse.values[c] = rounded(invert, math);
    eq_scale.values[c] = rounded(scale.values[c] * invert, math);
    eq_bias.values[c] = rounded(bias.values[c] - average * scale.values[c] * invert, math);
    if (!running) continue;
    const double factor = values.scalar(operation, kFactor);
    const double unbiased = count > 1 ? variance * count / (count - 1) : variance;
    next_mean.values[c] =
        rounded((1 - factor) * values.read(operation, kMeanBefore).values[c] + factor * average, math);
    next.values[c] = rounded((1 - factor) * values.read(operation, kVarianceBefore).values[c] + factor * unbiased, math);
  }
  values.write(operation, kSavedMean, std::move(mean));
  values.write(operation, kSavedInverse, std::move(inverse));
  values.write(operation, kEqScale, std::move(eq_scale));
  values.write(operation, kEqBias, std::move(eq_bias));
  if (!running) return;
  values.write(operation, kMeanAfter, std::move(next_mean));
  values.write(operation, kVarianceAfter, std::move(next));
}

void check_bn_backward_weights(const Descriptor &operation) {
  const Dims dims = channels(operation.spec(kX));
  require_dims(operation, kDy, operation.spec(kX).dims);
  for (const int name :
       {kMean, kInverse, kWeightsScale, kDscale, kDbias, kEqDyScale, kEqXScale, kEqShift})
    require_dims(operation, name, dims);
}

/* Gradients of scale and bias, and the numbers by which dx = eq_dy_scale dy + eq_x_scale x + eq_bias. */
void compute_bn_backward_weights(Evaluation &values, const Descriptor &operation) {
  const int math = static_cast<int>(operation.integer(kWeightsPrecision));
  const Array &x = values.read(operation, kX), &dy = values.read(operation, kDy);
  const Array &mean = values.read(operation, kMean), &inverse = values.read(operation, kInverse);
  const Array &scale = values.read(operation, kWeightsScale);
  Array dscale(mean.dims), dbias(mean.dims), of_dy(mean.dims), of_x(mean.dims), shift(mean.dims);
  for (size_t i = 0; i < x.values.size(); ++i) {
    const size_t c = channel_of(static_cast<int64_t>(i), x.dims);
    dbias.values[c] += dy.values[i];
    dscale.values[c] += dy.values[i] * (x.values[i] - mean.values[c]) * inverse.values[c];
  }
  const double share = static_cast<double>(mean.values.size()) / static_cast<double>(x.values.size());
  for (size_t c = 0; c < mean.values.size(); ++c) {
    const double factor = scale.values[c] * inverse.values[c];
    const double slope = -factor * inverse.values[c] * dscale.values[c] * share;
    of_dy.values[c] = rounded(factor, math);
    of_x.values[c] = rounded(slope, math);
    shift.values[c] = rounded(-factor * dbias.values[c] * share - slope * mean.values[c], math);
    dscale.values[c] = rounded(dscale.values[c], math);
    dbias.values[c] = rounded(dbias.values[c], math);
  }
  values.write(operation, kDscale, std::move(dscale));
  values.write(operation, kDbias, std::move(dbias));
  values.write(operation, kEqDyScale, std::move(of_dy));
  values.write(operation, kEqXScale, std::move(of_x));
  values.write(operation, kEqShift, std::move(shift));
}

}  // namespace chagres::reference::cudnn

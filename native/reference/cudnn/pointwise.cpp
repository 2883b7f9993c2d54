/* Pointwise operations: their formulas, by the modes of cudnnPointwiseMode_t. */
#include <cmath>

#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

enum Mode {
  kAdd = 0,
  kMul = 1,
  kMin = 2,
  kMax = 3,
  kSqrt = 4,
  kAddSquare = 5,
  kDiv = 6,
  kMod = 7,
  kPow = 8,
  kSub = 9,
  kAbs = 10,
  kCeil = 11,
  kCos = 12,
  kExp = 13,
  kFloor = 14,
  kLog = 15,
  kNeg = 16,
  kRsqrt = 17,
  kSin = 18,
  kTan = 19,
  kErf = 20,
  kIdentity = 21,
  kReciprocal = 22,
  kAtan2 = 23,
  kReluFwd = 100,
  kTanhFwd = 101,
  kSigmoidFwd = 102,
  kEluFwd = 103,
  kGeluFwd = 104,
  kSoftplusFwd = 105,
  kSwishFwd = 106,
  kGeluTanhFwd = 107,
  kReluBwd = 200,
  kTanhBwd = 201,
  kSigmoidBwd = 202,
  kEluBwd = 203,
  kGeluBwd = 204,
  kSoftplusBwd = 205,
  kSwishBwd = 206,
  kGeluTanhBwd = 207,
  kEqual = 300,
  kNotEqual = 301,
  kGreater = 302,
  kGreaterEqual = 303,
  kLess = 304,
  kLessEqual = 305,
  kAnd = 400,
  kOr = 401,
  kNot = 402,
  kGenIndex = 501,
  kSelect = 601,
};

constexpr int kModeName = 0, kMathPrecision = 1, kLowerClip = 3, kUpperClip = 4, kSlope = 5, kEluAlpha = 6,
              kSoftplusBeta = 7, kSwishBeta = 8, kAxis = 9;
constexpr int kDescription = 750, kX = 751, kB = 752, kY = 753, kAlpha1 = 754, kAlpha2 = 755, kDx = 756, kDy = 757,
              kT = 758;

bool is_backward(int64_t mode) { return mode >= kReluBwd && mode <= kGeluTanhBwd; }

bool is_binary(int64_t mode) {
  return mode <= kMax || (mode >= kAddSquare && mode <= kSub) || mode == kAtan2 ||
         (mode >= kEqual && mode <= kOr) || mode == kSelect;
}

bool is_known(int64_t mode) {
  return (mode >= kAdd && mode <= kAtan2) || (mode >= kReluFwd && mode <= kGeluTanhFwd) || is_backward(mode) ||
         (mode >= kEqual && mode <= kLessEqual) || (mode >= kAnd && mode <= kNot) || mode == kGenIndex ||
         mode == kSelect;
}

struct Parameters {
  int64_t mode;
  double lower, upper, slope, elu_alpha, softplus_beta, swish_beta;
};

Parameters parameters(const Descriptor &description) {
  return {description.integer(kModeName),
          description.number(kLowerClip, 0),
          description.number(kUpperClip, std::numeric_limits<double>::infinity()),
          description.number(kSlope, 0),
          description.number(kEluAlpha, 1),
          description.number(kSoftplusBeta, 1),
          description.number(kSwishBeta, 1)};
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

constexpr double kInverseSqrt2 = 0.70710678118654752440;
constexpr double kInverseSqrt2Pi = 0.39894228040143267794;
constexpr double kSqrt2OverPi = 0.79788456080286535588;
constexpr double kCubic = 0.044715;

double binary(int64_t mode, double x, double b) {
  switch (mode) {
    case kAdd: return x + b;
    case kMul: return x * b;
    case kMin: return std::isnan(x) || std::isnan(b) ? x + b : std::min(x, b);
    case kMax: return std::isnan(x) || std::isnan(b) ? x + b : std::max(x, b);
    case kAddSquare: return x + b * b;
    case kDiv: return x / b;
    case kMod: return std::fmod(x, b);
    case kPow: return std::pow(x, b);
    case kSub: return x - b;
    case kAtan2: return std::atan2(x, b);
    case kEqual: return x == b;
    case kNotEqual: return x != b;
    case kGreater: return x > b;
    case kGreaterEqual: return x >= b;
    case kLess: return x < b;
    case kLessEqual: return x <= b;
    case kAnd: return x != 0 && b != 0;
    default: return x != 0 || b != 0;
  }
}

double unary(const Parameters &p, double x) {
  switch (p.mode) {
    case kSqrt: return std::sqrt(x);
    case kAbs: return std::fabs(x);
    case kCeil: return std::ceil(x);
    case kCos: return std::cos(x);
    case kExp: return std::exp(x);
    case kFloor: return std::floor(x);
    case kLog: return std::log(x);
    case kNeg: return -x;
    case kRsqrt: return 1 / std::sqrt(x);
    case kSin: return std::sin(x);
    case kTan: return std::tan(x);
    case kErf: return std::erf(x);
    case kIdentity: return x;
    case kReciprocal: return 1 / x;
    case kReluFwd: return x > p.upper ? p.upper : x < p.lower ? p.lower + p.slope * (x - p.lower) : x;
    case kTanhFwd: return std::tanh(x);
    case kSigmoidFwd: return sigmoid(x);
    case kEluFwd: return x > 0 ? x : p.elu_alpha * std::expm1(x);
    case kGeluFwd: return 0.5 * x * (1 + std::erf(x * kInverseSqrt2));
    case kSoftplusFwd: {
      const double scaled = p.softplus_beta * x;
      return (std::max(scaled, 0.0) + std::log1p(std::exp(-std::fabs(scaled)))) / p.softplus_beta;
    }
    case kSwishFwd: return x * sigmoid(p.swish_beta * x);
    case kGeluTanhFwd: return 0.5 * x * (1 + std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x)));
    default: return x == 0; /* kNot */
  }
}

/* The derivative of the forward function at x. */
double derivative(const Parameters &p, double x) {
  switch (p.mode) {
    case kReluBwd: return x > p.upper ? 0 : x <= p.lower ? p.slope : 1;
    case kTanhBwd: {
      const double y = std::tanh(x);
      return 1 - y * y;
    }
    case kSigmoidBwd: return sigmoid(x) * sigmoid(-x);
    case kEluBwd: return x > 0 ? 1 : p.elu_alpha * std::exp(x);
    case kGeluBwd: return 0.5 * (1 + std::erf(x * kInverseSqrt2)) + x * kInverseSqrt2Pi * std::exp(-0.5 * x * x);
    case kSoftplusBwd: return sigmoid(p.softplus_beta * x);
    case kSwishBwd: {
      const double s = sigmoid(p.swish_beta * x);
      return s + p.swish_beta * x * s * (1 - s);
    }
    default: { /* kGeluTanhBwd */
      const double t = std::tanh(kSqrt2OverPi * (x + kCubic * x * x * x));
      return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * kSqrt2OverPi * (1 + 3 * kCubic * x * x);
    }
  }
}

void require_tensor(const Descriptor &operation, int name, int64_t mode) {
  CHAGRES_REQUIRE(operation.has(name), kBadParam, attribute(kPointwiseOperation, name).text,
                  ": expected a tensor for pointwise mode ", mode, ", got none");
}

void require_broadcast(const Descriptor &operation, int name, const TensorSpec &result) {
  if (!operation.has(name)) return;
  CHAGRES_REQUIRE(broadcasts(operation.spec(name).dims, result.dims), kShapeMismatch,
                  attribute(kPointwiseOperation, name).text, ": expected dimensions of ", result.text(), " or 1, got ",
                  operation.spec(name).text());
}

void compute_backward(Evaluation &values, const Descriptor &operation, const Parameters &p, int math) {
  const Array &x = values.read(operation, kX), &dy = values.read(operation, kDy);
  Array dx(operation.spec(kDx).dims);
  walk<2>(dx.dims, {broadcast_strides(x.dims, dx.dims), broadcast_strides(dy.dims, dx.dims)},
          [&](int64_t position, const std::array<int64_t, 2> &at) {
            const double gradient = dy.values[static_cast<size_t>(at[1])];
            dx.values[static_cast<size_t>(position)] =
                rounded(gradient * derivative(p, x.values[static_cast<size_t>(at[0])]), math);
          });
  values.write(operation, kDx, std::move(dx));
}

void compute_index(Evaluation &values, const Descriptor &operation, int64_t axis) {
  Array y(operation.spec(kY).dims);
  Dims along(y.dims.size(), 0);
  along[static_cast<size_t>(axis)] = 1;
  walk<1>(y.dims, {along}, [&](int64_t position, const std::array<int64_t, 1> &at) {
    y.values[static_cast<size_t>(position)] = static_cast<double>(at[0]);
  });
  values.write(operation, kY, std::move(y));
}

}  // namespace

void check_pointwise(const Descriptor &operation) {
  const Descriptor &description = operation.descriptor(kDescription);
  const int64_t mode = description.integer(kModeName);
  CHAGRES_REQUIRE(is_known(mode), kBadParam, "CUDNN_ATTR_POINTWISE_MODE: expected a mode of cudnnPointwiseMode_t, got ",
                  mode);
  require_tensor(operation, kX, mode);
  if (is_backward(mode)) {
    require_tensor(operation, kDy, mode);
    require_tensor(operation, kDx, mode);
    require_broadcast(operation, kX, operation.spec(kDx));
    require_broadcast(operation, kDy, operation.spec(kDx));
    CHAGRES_REQUIRE(
        operation.number(kAlpha1, 1) == 1 && operation.number(kAlpha2, 1) == 1, kNotSupported,
        "CUDNN_ATTR_OPERATION_POINTWISE_ALPHA1, ALPHA2: only 1 is computed by the CPU reference for pointwise mode ",
        mode);
    return;
  }
  require_tensor(operation, kY, mode);
  if (is_binary(mode)) require_tensor(operation, kB, mode);
  if (mode == kSelect) require_tensor(operation, kT, mode);
  for (const int name : {kX, kB, kT}) require_broadcast(operation, name, operation.spec(kY));
  if (mode == kGenIndex) {
    const int64_t axis = description.integer(kAxis, -1);
    CHAGRES_REQUIRE(axis >= 0 && axis < static_cast<int64_t>(operation.spec(kY).dims.size()), kOutOfBound,
            "CUDNN_ATTR_POINTWISE_AXIS: expected an axis of ", operation.spec(kY).text(), ", got ", axis);
  }
}

void compute_pointwise(Evaluation &values, const Descriptor &operation) {
  const Descriptor &description = operation.descriptor(kDescription);
  const Parameters p = parameters(description);
  const int math = static_cast<int>(description.integer(kMathPrecision));
  if (is_backward(p.mode)) return compute_backward(values, operation, p, math);
  if (p.mode == kGenIndex) return compute_index(values, operation, description.integer(kAxis));
  const double alpha1 = operation.number(kAlpha1, 1), alpha2 = operation.number(kAlpha2, 1);
  const Array &x = values.read(operation, kX);
  const Array &b = is_binary(p.mode) ? values.read(operation, kB) : x;
  const Array &t = p.mode == kSelect ? values.read(operation, kT) : x;
  Array y(operation.spec(kY).dims);
  walk<3>(y.dims,
          {broadcast_strides(x.dims, y.dims), broadcast_strides(b.dims, y.dims), broadcast_strides(t.dims, y.dims)},
          [&](int64_t position, const std::array<int64_t, 3> &at) {
            const double left = alpha1 * x.values[static_cast<size_t>(at[0])];
            const double right = alpha2 * b.values[static_cast<size_t>(at[1])];
            const double value = p.mode == kSelect ? (t.values[static_cast<size_t>(at[2])] != 0 ? left : right)
                                 : is_binary(p.mode) ? binary(p.mode, left, right)
                                                     : unary(p, left);
            y.values[static_cast<size_t>(position)] = rounded(value, math);
          });
  values.write(operation, kY, std::move(y));
}

}  // namespace chagres::reference::cudnn

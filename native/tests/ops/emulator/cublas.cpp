/* The functions of cuBLASLt that chagres_ops calls: three kernels for every product, which compute the same by plain loops in
 * double precision. The second is the fastest. The third, which is said to round parts of sums, is named first where the
 * question allows it. */
#include <cstring>
#include <functional>
#include <map>
#include <vector>

#include "cublas.h"
#include "emulator.h"
#include "faults.h"
#include "harness/numbers.h"

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace cublas = chagres::ops::cublas;
using namespace chagres::tests;

void emulator_enqueue(const std::function<void()> &work); /* of cuda.cpp: now, or in the graph that is captured */

namespace {

constexpr int kInvalidValue = 7, kKernels = 3, kFastest = 2, kRounding = 3;

struct Descriptor {
  int compute;
  std::map<int, std::vector<unsigned char>> attributes;

  template <class T>
  T get(int attribute, T otherwise) const {
    const auto found = attributes.find(attribute);
    if (found == attributes.end()) return otherwise;
    T value;
    memcpy(&value, found->second.data(), sizeof value);
    return value;
  }
};

struct Layout {
  int type;
  int64_t rows, columns, leading;
};

struct Preference {
  uint32_t reductions = UINT32_MAX; /* all schemes */
};

struct Matrix {
  Layout layout;
  const unsigned char *data;

  double at(int64_t row, int64_t column) const {
    const int64_t index = column * layout.leading + row;
    if (layout.type == cublas::kR8FE4M3) return float8(data[index], 4, 7);
    if (layout.type == cublas::kR8FE5M2) return float8(data[index], 5, 15);
    const Format &format = format_of(layout.type == cublas::kR32F ? 4 : layout.type == cublas::kR16F ? 5 : 6);
    uint32_t bits = 0;
    memcpy(&bits, data + index * format.size, static_cast<size_t>(format.size));
    return decode(format, bits);
  }

  void set(int64_t row, int64_t column, double value) const {
    const Format &format = format_of(layout.type == cublas::kR32F ? 4 : layout.type == cublas::kR16F ? 5 : 6);
    const uint32_t bits = encode(format, round_to(format, value));
    auto *place = const_cast<unsigned char *>(data) + (column * layout.leading + row) * format.size;
    memcpy(place, &bits, static_cast<size_t>(format.size));
  }

 private:
  static double float8(unsigned char bits, int exponent_bits, int bias) {
    const int fraction = 7 - exponent_bits, exponent = (bits & 0x7f) >> fraction;
    const int mantissa = bits & ((1 << fraction) - 1);
    const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - fraction)
                                           : std::ldexp((1 << fraction) + mantissa, exponent - bias - fraction);
    return (bits & 0x80) != 0 ? -magnitude : magnitude;
  }
};

/* All that a product needs after the call has returned. */
struct Product {
  Descriptor descriptor;
  Matrix a, b, d;
  double beta;

  double operand(const Matrix &matrix, int attribute, int64_t row, int64_t column) const {
    return descriptor.get(attribute, 0) == cublas::kOperationT ? matrix.at(column, row) : matrix.at(row, column);
  }

  double scale(int attribute) const {
    const auto *scale = descriptor.get<const float *>(attribute, nullptr);
    return scale == nullptr ? 1 : *scale;
  }

  void compute() const {
    const int64_t k = descriptor.get(cublas::kTransA, 0) == cublas::kOperationT ? a.layout.rows : a.layout.columns;
    const int epilogue = descriptor.get(cublas::kEpilogue, int{cublas::kDefault});
    const auto *added = descriptor.get<const unsigned char *>(cublas::kBiasPointer, nullptr);
    const Matrix bias = {{descriptor.get(cublas::kBiasDataType, d.layout.type), d.layout.rows, 1, d.layout.rows}, added};
    const Matrix sums = {{d.layout.type, d.layout.columns, 1, d.layout.columns}, added};
    const Matrix aux = {{descriptor.get(cublas::kEpilogueAuxDataType, d.layout.type), d.layout.rows, d.layout.columns,
                         descriptor.get<int64_t>(cublas::kEpilogueAuxLd, 0)},
                        descriptor.get<const unsigned char *>(cublas::kEpilogueAuxPointer, nullptr)};
    const double factor = scale(cublas::kAScalePointer) * scale(cublas::kBScalePointer);
    for (int64_t j = 0; j < d.layout.columns; ++j) {
      double sum_b = 0;
      for (int64_t l = 0; l < k; ++l) sum_b += operand(b, cublas::kTransB, l, j);
      if (epilogue == cublas::kBGradB) sums.set(j, 0, sum_b);
      for (int64_t i = 0; i < d.layout.rows; ++i) {
        double sum = 0;
        for (int64_t l = 0; l < k; ++l) sum += operand(a, cublas::kTransA, i, l) * operand(b, cublas::kTransB, l, j);
        sum *= factor;
        if (beta != 0) sum += beta * d.at(i, j);
        if (epilogue == cublas::kBias || epilogue == cublas::kGeluAuxBias) sum += bias.at(i, 0);
        if (epilogue == cublas::kGeluAux || epilogue == cublas::kGeluAuxBias) {
          aux.set(i, j, sum);
          sum = gelu(sum);
        }
        if (epilogue == cublas::kDGelu) sum *= gelu_derivative(aux.at(i, j));
        d.set(i, j, sum);
      }
    }
  }

  static double inner(double x) { return std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x); }
  static double gelu(double x) { return x / 2 * (1 + std::tanh(inner(x))); }
  static double gelu_derivative(double x) {
    const double t = std::tanh(inner(x));
    return (1 + t) / 2 + x / 2 * (1 - t * t) * std::sqrt(2 / M_PI) * (1 + 3 * 0.044715 * x * x);
  }
};

cublas::Heuristic answer(int kernel) {
  cublas::Heuristic result = {};
  result.algorithm.data[0] = static_cast<uint64_t>(kernel);
  return result;
}

}  // namespace

EXPORT size_t cublasLtGetVersion() { return 130100; }
EXPORT const char *cublasLtGetStatusName(int status) {
  return status == cublas::kNotSupported ? "CUBLAS_STATUS_NOT_SUPPORTED" : "CUBLAS_STATUS_OTHER";
}
EXPORT int cublasLtCreate(void **handle) {
  *handle = malloc(1);
  return 0;
}
EXPORT int cublasLtMatmulDescCreate(void **descriptor, int compute, int) {
  *descriptor = new Descriptor{compute, {}};
  return 0;
}
EXPORT int cublasLtMatmulDescDestroy(void *descriptor) {
  delete static_cast<Descriptor *>(descriptor);
  return 0;
}
EXPORT int cublasLtMatmulDescSetAttribute(void *descriptor, int attribute, const void *value, size_t bytes) {
  const auto *first = static_cast<const unsigned char *>(value);
  static_cast<Descriptor *>(descriptor)->attributes[attribute].assign(first, first + bytes);
  return 0;
}
EXPORT int cublasLtMatrixLayoutCreate(void **layout, int type, uint64_t rows, uint64_t columns, int64_t leading) {
  *layout = new Layout{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), leading};
  return 0;
}
EXPORT int cublasLtMatrixLayoutDestroy(void *layout) {
  delete static_cast<Layout *>(layout);
  return 0;
}
EXPORT int cublasLtMatmulPreferenceCreate(void **preference) {
  *preference = new Preference;
  return 0;
}
EXPORT int cublasLtMatmulPreferenceDestroy(void *preference) {
  delete static_cast<Preference *>(preference);
  return 0;
}
EXPORT int cublasLtMatmulPreferenceSetAttribute(void *preference, int attribute, const void *value, size_t bytes) {
  uint32_t &mask = static_cast<Preference *>(preference)->reductions;
  if (attribute != cublas::kReductionSchemeMask) return 0;
  if (bytes != sizeof mask) return kInvalidValue;
  memcpy(&mask, value, bytes);
  return 0;
}

EXPORT int cublasLtMatmulAlgoGetHeuristic(void *, void *, void *, void *, void *, void *d, void *preference, int wanted,
                                          cublas::Heuristic *results, int *count) {
  ++emulator_faults()->heuristics;
  *count = 0;
  if (static_cast<Layout *>(d)->rows == 13) return cublas::kNotSupported; /* a size for tests of refusals */
  const bool rounds = static_cast<Preference *>(preference)->reductions != cublas::kReductionInComputeType;
  if (rounds) results[(*count)++] = answer(kRounding);
  for (int kernel = 1; *count < wanted && kernel < kRounding; ++kernel) results[(*count)++] = answer(kernel);
  return 0;
}

EXPORT int cublasLtMatmulAlgoCheck(void *, void *, void *, void *, void *, void *, const cublas::Algorithm *algorithm,
                                   cublas::Heuristic *result) {
  *result = answer(static_cast<int>(algorithm->data[0]));
  return algorithm->data[0] >= 1 && algorithm->data[0] <= kKernels ? 0 : kInvalidValue;
}

EXPORT int cublasLtMatmul(void *, void *descriptor, const void *, const void *a, void *a_layout, const void *b,
                          void *b_layout, const void *beta, const void *, void *, void *d, void *d_layout,
                          const cublas::Algorithm *algorithm, void *, size_t, OpsStream) {
  const auto matrix = [](const void *data, void *layout) {
    return Matrix{*static_cast<Layout *>(layout), static_cast<const unsigned char *>(data)};
  };
  const auto kernel = static_cast<int>(algorithm->data[0]);
  if (kernel < 1 || kernel > kKernels) return kInvalidValue;
  ++emulator_faults()->products;
  emulator_faults()->last_kernel = kernel;
  const Product product = {*static_cast<Descriptor *>(descriptor), matrix(a, a_layout), matrix(b, b_layout),
                           matrix(d, d_layout), *static_cast<const float *>(beta)};
  emulator_enqueue([product, kernel] {
    product.compute();
    emulator_faults()->nanoseconds += kernel == kFastest ? 1000 : 200000;
  });
  return 0;
}

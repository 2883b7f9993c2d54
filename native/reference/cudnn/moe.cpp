/* Products of tokens with the weights of their experts; the tokens of an expert lie one behind the other. */
#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

constexpr int kMode = 2900, kPrecision = 2901, kTokens = 2902, kWeights = 2903, kFirst = 2904, kOutput = 2905,
              kIndex = 2906;
constexpr int kGather = 1;

}  // namespace

void check_moe(const Descriptor &operation) {
  const Dims &tokens = operation.spec(kTokens).dims, &weights = operation.spec(kWeights).dims;
  const Dims &first = operation.spec(kFirst).dims;
  CHAGRES_REQUIRE(tokens.size() == 3 && weights.size() == 3 && tokens[0] == 1 && tokens[2] == weights[1],
                  kShapeMismatch, descriptor_name(operation.type),
                  ": expected tokens [1, T, K] and weights [E, K, N], got ", operation.spec(kTokens).text(), ", ",
                  operation.spec(kWeights).text());
  CHAGRES_REQUIRE(count_of(first) == weights[0], kShapeMismatch, attribute(kMoeGroupedMatmul, kFirst).text,
                  ": expected the first token of each of ", weights[0], " experts, got ", operation.spec(kFirst).text());
  int64_t rows = tokens[1];
  if (operation.integer(kMode) == kGather) {
    CHAGRES_REQUIRE(operation.has(kIndex), kBadParam, attribute(kMoeGroupedMatmul, kIndex).text,
                    ": expected the tokens to gather, got none");
    rows = count_of(operation.spec(kIndex).dims);
  }
  require_dims(operation, kOutput, {1, rows, weights[2]});
}

void compute_moe(Evaluation &values, const Descriptor &operation) {
  const int math = static_cast<int>(operation.integer(kPrecision));
  const Array &tokens = values.read(operation, kTokens), &weights = values.read(operation, kWeights);
  const Array &first = values.read(operation, kFirst);
  const Array *index = operation.integer(kMode) == kGather ? &values.read(operation, kIndex) : nullptr;
  Array output(operation.spec(kOutput).dims);
  const int64_t rows = output.dims[1], n = output.dims[2], k = tokens.dims[2], experts = weights.dims[0];
  for (int64_t row = 0; row < rows; ++row) {
    int64_t expert = -1;
    for (int64_t e = 0; e < experts; ++e)
      if (first.values[static_cast<size_t>(e)] <= static_cast<double>(row)) expert = e;
    const double token = index == nullptr ? static_cast<double>(row) : index->values[static_cast<size_t>(row)];
    if (expert < 0 || !(token >= 0 && token < static_cast<double>(tokens.dims[1]))) continue;
    const double *left = tokens.values.data() + static_cast<int64_t>(token) * k;
    double *sum = output.values.data() + row * n;
    for (int64_t i = 0; i < k; ++i) {
      const double *right = weights.values.data() + (expert * k + i) * n;
      for (int64_t j = 0; j < n; ++j) sum[j] += left[i] * right[j];
    }
    for (int64_t j = 0; j < n; ++j) sum[j] = rounded(sum[j], math);
  }
  values.write(operation, kOutput, std::move(output));
}

}  // namespace chagres::reference::cudnn

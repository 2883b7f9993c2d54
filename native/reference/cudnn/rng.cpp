/* Random numbers: Philox with the seed as key and the position, from the offset on, as counter. */
#include <cmath>

#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

enum Distribution { kBernoulli, kUniform, kNormal };

constexpr int kDistribution = 2300, kMean = 2301, kDeviation = 2302, kMaximum = 2303, kMinimum = 2304,
              kProbability = 2305;
constexpr int kY = 2310, kSeed = 2311, kDescription = 2312, kOffset = 2313;

/* Of (0, 1]. */
double unit(uint32_t word) { return (static_cast<double>(word) + 1) * 0x1p-32; }

int64_t whole(double value) { return static_cast<int64_t>(rounded(value, kInt64)); }

}  // namespace

void check_rng(const Descriptor &operation) {
  const Value &seed = operation.values.at(kSeed);
  CHAGRES_REQUIRE(seed.type == kInt64Type || count_of(operation.spec(kSeed).dims) == 1, kShapeMismatch,
          "CUDNN_ATTR_OPERATION_RNG_SEED: expected a tensor of one element");
  CHAGRES_REQUIRE(!operation.has(kOffset) || count_of(operation.spec(kOffset).dims) == 1, kShapeMismatch,
          "CUDNN_ATTR_OPERATION_RNG_OFFSET_DESC: expected a tensor of one element");
}

void compute_rng(Evaluation &values, const Descriptor &operation) {
  const Descriptor &description = operation.descriptor(kDescription);
  const int64_t distribution = description.integer(kDistribution);
  const bool immediate = operation.values.at(kSeed).type == kInt64Type;
  const int64_t seed =
      immediate ? operation.integer(kSeed) : whole(values.scalar(operation, kSeed));
  const int64_t offset = operation.has(kOffset) ? whole(values.scalar(operation, kOffset)) : 0;
  const double probability = description.number(kProbability, 0.5);
  const double least = description.number(kMinimum, 0), most = description.number(kMaximum, 1);
  const double mean = description.number(kMean, 0), deviation = description.number(kDeviation, 1);
  Array y(operation.spec(kY).dims);
  for (size_t i = 0; i < y.values.size(); ++i) {
    const Philox4 random = philox(static_cast<uint64_t>(seed), static_cast<uint64_t>(i), static_cast<uint64_t>(offset));
    const double first = unit(random.word[0]), second = unit(random.word[1]);
    y.values[i] = distribution == kBernoulli ? first <= probability
                  : distribution == kUniform ? least + (most - least) * (1 - first)
                                             : mean + deviation * std::sqrt(-2 * std::log(first)) *
                                                          std::cos(6.283185307179586 * second);
  }
  values.write(operation, kY, std::move(y));
}

}  // namespace chagres::reference::cudnn

/* Operations of a graph in the order in which they can be computed, and what the reference computes of them. */
#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

void add_tensor(Graph &graph, const TensorSpec &tensor) {
  const auto [found, added] = graph.tensors.emplace(tensor.uid, tensor);
  const TensorSpec &first = found->second;
  CHAGRES_REQUIRE(added || (first.type == tensor.type && first.dims == tensor.dims && first.strides == tensor.strides &&
                            first.is_virtual == tensor.is_virtual && first.is_by_value == tensor.is_by_value &&
                            (first.offsets == nullptr) == (tensor.offsets == nullptr) &&
                            (first.offsets == nullptr || first.offsets->uid == tensor.offsets->uid)),
                  kBadParam, "CUDNN_ATTR_TENSOR_UNIQUE_ID: expected one tensor of each id, got ", first.text(), " and ",
                  tensor.text());
  if (tensor.offsets != nullptr) add_tensor(graph, *tensor.offsets);
}

bool is_operation(int type) {
  return (type >= kConvolutionForward && type <= kGenStats) || type == kMatmulOperation || type == kBnFinalize ||
         type == kReductionOperation || type == kBnBackwardWeights ||
         (type >= kResampleForward && type <= kConcatenate) || (type >= kNormForward && type <= kReshape) ||
         type == kRngOperation || (type >= kPagedCacheLoad && type <= kBlockScaleDequantize) ||
         (type >= kSdpaForward && type <= kSdpaBackward);
}

Step make_step(Graph &graph, const std::shared_ptr<const Descriptor> &operation) {
  Step step;
  step.operation = operation;
  CHAGRES_REQUIRE(is_operation(operation->type), kDescriptorMismatch,
                  "CUDNN_ATTR_OPERATIONGRAPH_OPS: expected operations, got ", descriptor_name(operation->type));
  for (const auto &[name, value] : operation->values) {
    const Attribute &holder = attribute(operation->type, name);
    if (holder.role == Role::kNone || value.type != kDescriptorType) continue;
    for (const auto &held : value.descriptors) {
      add_tensor(graph, held->tensor);
      (writes(*operation, holder) ? step.writes : step.reads).push_back(&held->tensor);
    }
  }
  return step;
}

void check_writers(const Graph &graph, std::vector<Step> &steps) {
  std::map<int64_t, int> writers;
  for (const Step &step : steps)
    for (const TensorSpec *tensor : step.writes) {
      CHAGRES_REQUIRE(!tensor->is_by_value, kBadParam, tensor->text(),
                      ": expected one in device memory, got one by value that ", descriptor_name(step.operation->type),
                      " writes");
      CHAGRES_REQUIRE(++writers[tensor->uid] == 1, kBadParam, tensor->text(),
                      ": expected one operation that writes it");
    }
  for (const auto &[uid, tensor] : graph.tensors) {
    CHAGRES_REQUIRE(!tensor.is_virtual || writers.count(uid) != 0, kBadParam, tensor.text(),
            ": expected an operation that writes it, for it is virtual");
    CHAGRES_REQUIRE(count_of(tensor.dims) <= kMostElements, kNotSupported, tensor.text(),
                    ": the CPU reference computes at most ", kMostElements, " elements");
  }
}

/* Takes, in their order, the operations whose inputs no operation that is left writes. */
std::vector<Step> ordered(std::vector<Step> steps) {
  std::vector<Step> done;
  std::map<int64_t, bool> pending;
  for (const Step &step : steps)
    for (const TensorSpec *tensor : step.writes) pending[tensor->uid] = true;
  while (!steps.empty()) {
    const auto ready = std::find_if(steps.begin(), steps.end(), [&](const Step &step) {
      return std::none_of(step.reads.begin(), step.reads.end(),
                          [&](const TensorSpec *tensor) { return pending[tensor->uid]; });
    });
    CHAGRES_REQUIRE(ready != steps.end(), kBadParam, "CUDNN_ATTR_OPERATIONGRAPH_OPS: expected no cycle, but each of ",
                    steps.size(), " operations waits for another, such as ",
                    descriptor_name(steps.front().operation->type));
    for (const TensorSpec *tensor : ready->writes) pending[tensor->uid] = false;
    done.push_back(*ready);
    steps.erase(ready);
  }
  return done;
}

/* The operation of a type that writes a tensor; null where another does. */
const Descriptor *writer(const Graph &graph, const TensorSpec &tensor, int type) {
  for (const Step &step : graph.steps)
    for (const TensorSpec *written : step.writes)
      if (written->uid == tensor.uid) return step.operation->type == type ? step.operation.get() : nullptr;
  return nullptr;
}

const Descriptor *pointwise_writer(const Graph &graph, const TensorSpec &tensor, int mode) {
  constexpr int kDescription = 750, kMode = 0;
  const Descriptor *operation = writer(graph, tensor, kPointwiseOperation);
  return operation != nullptr && operation->descriptor(kDescription).integer(kMode) == mode ? operation : nullptr;
}

/* A sum of exp(sink - statistics) * sum of o do, beside products: cuDNN's engine for gradients of attention knows it
 * as the gradient of the sink, and puts the minus before it that the operations leave out. */
bool is_sink_gradient(const Graph &graph, const Descriptor &operation) {
  constexpr int kReducedX = 1610, kX = 751, kB = 752, kMul = 1, kSub = 9, kExp = 13;
  if (operation.type != kReductionOperation) return false;
  const Descriptor *product = pointwise_writer(graph, operation.spec(kReducedX), kMul);
  if (product == nullptr) return false;
  const Descriptor *power = pointwise_writer(graph, product->spec(kX), kExp);
  if (power == nullptr) return false;
  const Descriptor *exponent = pointwise_writer(graph, power->spec(kX), kSub);
  if (exponent == nullptr) return false;
  const Dims &sink = exponent->spec(kX).dims, &rows = exponent->spec(kB).dims;
  const bool one_a_head = sink.size() == 4 && rows.size() == 4 && sink[0] == 1 && sink[2] == 1 && sink[3] == 1 &&
                          sink[1] == rows[1] && rows[3] == 1;
  return one_a_head && std::any_of(graph.steps.begin(), graph.steps.end(),
                                   [](const Step &step) { return step.operation->type == kMatmulOperation; });
}

void check_resample_support(const Descriptor &operation, int descriptor_name_of) {
  constexpr int kMode = 1700, kNearest = 0, kBilinear = 1;
  const int64_t mode = operation.descriptor(descriptor_name_of).integer(kMode);
  CHAGRES_REQUIRE(mode != kNearest && mode != kBilinear, kNotSupported, descriptor_name(operation.type),
          ": nearest and bilinear resampling are not computed by the CPU reference");
}

void check_step_support(const Descriptor &operation) {
  constexpr int kNormModes[] = {2000, 2100};
  constexpr int kLayer = 0, kInstance = 1, kBatch = 2, kRms = 4;
  switch (operation.type) {
    case kSdpaForward:
      CHAGRES_REQUIRE(!operation.has(2806), kNotSupported, attribute(kSdpaForward, 2806).text,
                      ": masks of blocks are not computed by the CPU reference");
      return;
    case kMoeGroupedMatmul:
      CHAGRES_REQUIRE(operation.integer(2900) != 2, kNotSupported, attribute(kMoeGroupedMatmul, 2900).text,
                      ": scattered products are not computed by the CPU reference");
      return;
    case kResampleForward:
      return check_resample_support(operation, 1716);
    case kResampleBackward:
      return check_resample_support(operation, 1725);
    case kNormForward:
    case kNormBackward: {
      const int64_t mode = operation.integer(kNormModes[operation.type == kNormBackward]);
      CHAGRES_REQUIRE(mode == kLayer || mode == kInstance || mode == kBatch || mode == kRms, kNotSupported,
              descriptor_name(operation.type), ": norm mode ", mode, " is not computed by the CPU reference");
      CHAGRES_REQUIRE(!operation.has(2014) && !operation.has(2110), kNotSupported, descriptor_name(operation.type),
              ": statistics over several devices are not computed by the CPU reference");
      return;
    }
    default:
      return;
  }
}

}  // namespace

std::shared_ptr<const Graph> make_graph(const std::vector<std::shared_ptr<const Descriptor>> &operations) {
  auto graph = std::make_shared<Graph>();
  std::vector<Step> steps;
  for (const auto &operation : operations) steps.push_back(make_step(*graph, operation));
  check_writers(*graph, steps);
  graph->steps = ordered(std::move(steps));
  for (const Step &step : graph->steps)
    if (is_sink_gradient(*graph, *step.operation)) graph->negated.insert(step.writes.front()->uid);
  return graph;
}

void check_support(const Graph &graph) {
  for (const Step &step : graph.steps) check_step_support(*step.operation);
}

}  // namespace chagres::reference::cudnn

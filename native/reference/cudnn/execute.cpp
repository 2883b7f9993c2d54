/* cudnnBackendExecute: reads a plan's tensors, computes its operations in order, writes what is not virtual. */
#include "cuda/capture.h"
#include "cudnn/handles.h"

namespace chagres::reference::cudnn {

namespace {

void compute(Evaluation &values, const Descriptor &operation) {
  switch (operation.type) {
    case kPointwiseOperation:
      return compute_pointwise(values, operation);
    case kMatmulOperation:
      return compute_matmul(values, operation);
    case kReductionOperation:
      return compute_reduction(values, operation);
    case kConvolutionForward:
      return compute_convolution_forward(values, operation);
    case kConvolutionBackwardData:
      return compute_convolution_backward_data(values, operation);
    case kConvolutionBackwardFilter:
      return compute_convolution_backward_filter(values, operation);
    case kResampleForward:
      return compute_resample_forward(values, operation);
    case kResampleBackward:
      return compute_resample_backward(values, operation);
    case kConcatenate:
      return compute_concatenate(values, operation);
    case kNormForward:
      return compute_norm_forward(values, operation);
    case kNormBackward:
      return compute_norm_backward(values, operation);
    case kReshape:
      return compute_reshape(values, operation);
    case kRngOperation:
      return compute_rng(values, operation);
    case kGenStats:
      return compute_gen_stats(values, operation);
    case kBnFinalize:
      return compute_bn_finalize(values, operation);
    case kBnBackwardWeights:
      return compute_bn_backward_weights(values, operation);
    case kPagedCacheLoad:
      return compute_paged_cache_load(values, operation);
    case kBlockScaleQuantize:
      return compute_block_scale_quantize(values, operation);
    case kBlockScaleDequantize:
      return compute_block_scale_dequantize(values, operation);
    case kSdpaForward:
      return compute_sdpa_forward(values, operation);
    case kSdpaBackward:
      return compute_sdpa_backward(values, operation);
    case kMoeGroupedMatmul:
      return compute_moe(values, operation);
    default:
      refuse(kNotSupported, descriptor_name(operation.type), " is not computed by the CPU reference");
  }
}

std::map<int64_t, void *> pointers_of(const Descriptor &pack) {
  constexpr int kUniqueIds = 1000, kPointers = 1001;
  const Dims uids = pack.integers(kUniqueIds);
  std::map<int64_t, void *> pointers;
  for (size_t i = 0; i < uids.size(); ++i)
    std::memcpy(&pointers[uids[i]], pack.values.at(kPointers).bytes.data() + i * sizeof(void *), sizeof(void *));
  return pointers;
}

void check_pointers(const Graph &graph, const std::map<int64_t, void *> &pointers) {
  for (const auto &[uid, tensor] : graph.tensors) {
    if (tensor.is_virtual) continue;
    const auto found = pointers.find(uid);
    CHAGRES_REQUIRE(found != pointers.end() && found->second != nullptr, kNullPointer, tensor.text(),
            ": expected a pointer in the variant pack");
    if (tensor.is_by_value) continue;
    CHAGRES_REQUIRE(reinterpret_cast<uintptr_t>(found->second) % static_cast<uintptr_t>(tensor.alignment) == 0,
                    kMisalignedPointer, tensor.text(), ": expected a pointer at a multiple of ", tensor.alignment,
                    " bytes");
    /* How far a ragged tensor reaches its offsets say, which are read when it runs. */
    const size_t bytes =
        static_cast<size_t>(tensor.offsets != nullptr ? 1 : tensor.span()) * data_type_size(tensor.type);
    CHAGRES_REQUIRE(accessible_bytes(found->second) >= bytes, kBadParam, tensor.text(), ": expected ", bytes,
            " bytes of device memory, got ", accessible_bytes(found->second));
  }
}

/* What lies in host memory may be gone when a graph runs. */
std::map<int64_t, std::array<char, 8>> host_values(const Graph &graph, const std::map<int64_t, void *> &pointers) {
  std::map<int64_t, std::array<char, 8>> values;
  for (const auto &[uid, tensor] : graph.tensors)
    if (tensor.is_by_value) std::memcpy(values[uid].data(), pointers.at(uid), data_type_size(tensor.type));
  return values;
}

void run(const Graph &graph, std::map<int64_t, void *> pointers) {
  Evaluation values(graph, pointers);
  for (const Step &step : graph.steps) compute(values, *step.operation);
  values.store();
}

}  // namespace

template <class Visit>
void Evaluation::placed(const TensorSpec &tensor, Visit &&visit) {
  if (tensor.offsets == nullptr) {
    walk<1>(tensor.dims, {tensor.strides},
            [&](int64_t position, const std::array<int64_t, 1> &at) { visit(position, at[0]); });
    return;
  }
  const TensorSpec &offsets = *tensor.offsets;
  const void *numbers = pointers_.at(offsets.uid);
  const int64_t room = static_cast<int64_t>(accessible_bytes(pointers_.at(tensor.uid)) / data_type_size(tensor.type));
  const Dims dims(tensor.dims.begin() + 1, tensor.dims.end()), strides(tensor.strides.begin() + 1, tensor.strides.end());
  const int64_t count = count_of(dims);
  for (int64_t b = 0; b < tensor.dims[0]; ++b) {
    const double first = load_element(numbers, b, offsets.type), last = load_element(numbers, b + 1, offsets.type);
    CHAGRES_REQUIRE(first >= 0 && last >= first && last <= 0x1p40, kBadParam, tensor.text(),
                    ": expected offsets that ascend from 0, got ", first, " and ", last, " in ", offsets.text());
    const int64_t begin = static_cast<int64_t>(first), length = static_cast<int64_t>(last) - begin;
    walk<1>(dims, {strides}, [&](int64_t position, const std::array<int64_t, 1> &at) {
      if (at[0] >= length) return;
      CHAGRES_REQUIRE(begin + at[0] < room, kBadParam, tensor.text(), ": expected offsets within ", room,
                      " elements of memory, got element ", begin + at[0], " by ", offsets.text());
      visit(b * count + position, begin + at[0]);
    });
  }
}

const Array &Evaluation::read_one_of(const Descriptor &operation, int name, size_t index) {
  const int64_t uid = operation.values.at(name).descriptors.at(index)->tensor.uid;
  const auto found = arrays_.find(uid);
  if (found != arrays_.end()) return found->second;
  const TensorSpec &tensor = graph_.tensors.at(uid);
  Array array(tensor.dims);
  const void *data = pointers_.at(uid);
  placed(tensor, [&](int64_t position, int64_t index) {
    array.values[static_cast<size_t>(position)] = load_element(data, index, tensor.type);
  });
  return arrays_.emplace(uid, std::move(array)).first->second;
}

void Evaluation::write(const Descriptor &operation, int name, Array array) {
  const TensorSpec &tensor = operation.spec(name);
  const double sign = graph_.negated.count(tensor.uid) != 0 ? -1 : 1;
  for (double &value : array.values) value = rounded(sign * value, tensor.type);
  arrays_[tensor.uid] = std::move(array);
  written_.push_back(tensor.uid);
}

void Evaluation::store() {
  for (const int64_t uid : written_) {
    const TensorSpec &tensor = graph_.tensors.at(uid);
    if (tensor.is_virtual) continue;
    const Array &array = arrays_.at(uid);
    void *data = pointers_.at(uid);
    placed(tensor, [&](int64_t position, int64_t index) {
      store_element(data, index, tensor.type, array.values[static_cast<size_t>(position)]);
    });
  }
}

}  // namespace chagres::reference::cudnn

using namespace chagres::reference;
using namespace chagres::reference::cudnn;

CHAGRES_EXPORT int cudnnBackendExecute(void *handle, void *plan, void *pack) try {
  const Handle &living = living_handle(handle);
  const auto wanted = living_descriptor(plan, "executionPlan");
  const auto given = living_descriptor(pack, "variantPack");
  CHAGRES_REQUIRE(wanted->type == kExecutionPlan, kDescriptorMismatch,
                  "executionPlan: expected an execution plan, got ", descriptor_name(wanted->type));
  CHAGRES_REQUIRE(given->type == kVariantPack, kDescriptorMismatch, "variantPack: expected a variant pack, got ",
          descriptor_name(given->type));
  CHAGRES_REQUIRE(wanted->finalized && given->finalized, kNotFinalized,
                  "executionPlan, variantPack: expected finalized descriptors");
  const auto graph = wanted->graph;
  const auto pointers = pointers_of(*given);
  check_pointers(*graph, pointers);
  if (!is_capturing(living.stream)) {
    run(*graph, pointers);
    return kSuccess;
  }
  record(living.stream,
         [graph, pointers = std::map<int64_t, void *>(pointers), kept = host_values(*graph, pointers)](void *) mutable {
           for (auto &[uid, bytes] : kept) pointers[uid] = bytes.data();
           run(*graph, pointers);
         });
  return kSuccess;
} CHAGRES_CUDNN_CATCH

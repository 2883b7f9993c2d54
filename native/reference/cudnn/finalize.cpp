/* What a descriptor must have when it is finalized. */
#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

std::string dims_of(const Dims &dims) {
  std::string all = "[";
  for (const int64_t dim : dims) all += (all.size() == 1 ? "" : ", ") + std::to_string(dim);
  return all + "]";
}

void check_required(const Descriptor &descriptor) {
  for (const Attribute &attribute : attributes())
    if (attribute.descriptor == descriptor.type && attribute.required)
      CHAGRES_REQUIRE(descriptor.has(attribute.name), kBadParam, descriptor_name(descriptor.type), ": expected ",
                      attribute.text, " to be set");
}

/* Descriptors of other descriptors, by the attribute that names them; 0: none. */
int wanted_descriptor(const Attribute &attribute) {
  switch (attribute.name) {
    case 201:  /* CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH */
    case 1300: /* CUDNN_ATTR_ENGINE_OPERATION_GRAPH */
      return kOperationGraph;
    case 300: /* CUDNN_ATTR_ENGINECFG_ENGINE */
      return kEngine;
    case 401: /* CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG */
      return kEngineConfig;
    case 702:  /* CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC */
    case 708:  /* CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC */
    case 714:  /* CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC */
      return kConvolution;
    case 750: /* CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR */
      return kPointwise;
    case 913: /* CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC */
      return kTensor;
    case 1523: /* CUDNN_ATTR_OPERATION_MATMUL_DESC */
      return kMatmul;
    case 1612: /* CUDNN_ATTR_OPERATION_REDUCTION_DESC */
      return kReduction;
    case 1716: /* CUDNN_ATTR_OPERATION_RESAMPLE_FWD_DESC */
    case 1725: /* CUDNN_ATTR_OPERATION_RESAMPLE_BWD_DESC */
      return kResample;
    case 2312: /* CUDNN_ATTR_OPERATION_RNG_DESC */
      return kRng;
    default:
      return attribute.role == Role::kNone ? 0 : static_cast<int>(kTensor);
  }
}

void check_descriptors(const Descriptor &descriptor) {
  for (const auto &[name, value] : descriptor.values) {
    if (value.type != kDescriptorType) continue;
    const Attribute &holder = attribute(descriptor.type, name);
    const int wanted = wanted_descriptor(holder);
    for (const auto &held : value.descriptors)
      CHAGRES_REQUIRE(wanted == 0 || held->type == wanted, kDescriptorMismatch, holder.text, ": expected ",
                      descriptor_name(wanted), ", got ", descriptor_name(held->type));
  }
}

void check_dimensions(const TensorSpec &tensor) {
  CHAGRES_REQUIRE(tensor.dims.size() == tensor.strides.size(), kBadParam, "CUDNN_ATTR_TENSOR_STRIDES: expected ",
                  tensor.dims.size(), " elements, as CUDNN_ATTR_TENSOR_DIMENSIONS has, got ", tensor.strides.size());
  constexpr int64_t most = int64_t(1) << 40;
  int64_t count = 1, last = 0;
  for (size_t i = 0; i < tensor.dims.size(); ++i) {
    CHAGRES_REQUIRE(tensor.dims[i] >= 1 && tensor.dims[i] <= most, kBadParam,
                    "CUDNN_ATTR_TENSOR_DIMENSIONS: expected at least 1, got ", dims_of(tensor.dims));
    CHAGRES_REQUIRE(tensor.strides[i] >= 1 && tensor.strides[i] <= most, kBadParam,
            "CUDNN_ATTR_TENSOR_STRIDES: expected at least 1, got ", dims_of(tensor.strides));
    CHAGRES_REQUIRE(count <= most / tensor.dims[i], kNotSupported, "CUDNN_ATTR_TENSOR_DIMENSIONS: expected at most ",
                    most, " elements, got ", dims_of(tensor.dims));
    count *= tensor.dims[i];
    CHAGRES_REQUIRE(tensor.dims[i] == 1 || tensor.strides[i] <= most / (tensor.dims[i] - 1), kNotSupported,
            "CUDNN_ATTR_TENSOR_STRIDES: expected at most ", most, " elements between the first and the last, got ",
            dims_of(tensor.strides));
    last += (tensor.dims[i] - 1) * tensor.strides[i];
  }
}

void finalize_tensor(Descriptor &descriptor) {
  constexpr int kAlignment = 900, kType = 901, kDimensions = 902, kStrides = 903, kVectorCount = 904, kUniqueId = 906,
                kVirtual = 907, kByValue = 908, kReordering = 909, kRagged = 913;
  TensorSpec tensor;
  tensor.uid = descriptor.integer(kUniqueId);
  tensor.type = static_cast<int>(descriptor.integer(kType));
  tensor.dims = descriptor.integers(kDimensions);
  tensor.strides = descriptor.integers(kStrides);
  tensor.alignment = descriptor.integer(kAlignment);
  tensor.is_virtual = descriptor.integer(kVirtual, 0) != 0;
  tensor.is_by_value = descriptor.integer(kByValue, 0) != 0;
  CHAGRES_REQUIRE(data_type_size(tensor.type) != 0, kUnsupportedDataType,
                  "CUDNN_ATTR_TENSOR_DATA_TYPE: ", data_type_name(tensor.type),
                  " is not computed by the CPU reference");
  check_dimensions(tensor);
  const int64_t bytes = static_cast<int64_t>(data_type_size(tensor.type));
  CHAGRES_REQUIRE(
      tensor.alignment > 0 && (tensor.alignment & (tensor.alignment - 1)) == 0 && tensor.alignment % bytes == 0,
      kBadParam, "CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT: expected a power of 2 that is a multiple of ", bytes, ", got ",
      tensor.alignment);
  CHAGRES_REQUIRE(!tensor.is_virtual || !tensor.is_by_value, kBadParam,
                  "CUDNN_ATTR_TENSOR_IS_BY_VALUE: expected false, for ", tensor.text(), " is virtual");
  CHAGRES_REQUIRE(!tensor.is_by_value || count_of(tensor.dims) == 1, kBadParam,
          "CUDNN_ATTR_TENSOR_IS_BY_VALUE: expected a tensor of one element, got ", tensor.text());
  CHAGRES_REQUIRE(descriptor.integer(kVectorCount, 1) == 1, kNotSupported,
          "CUDNN_ATTR_TENSOR_VECTOR_COUNT: the CPU reference has no vectorized tensors");
  CHAGRES_REQUIRE(descriptor.integer(kReordering, 0) == 0, kNotSupported,
          "CUDNN_ATTR_TENSOR_REORDERING_MODE: the CPU reference has no reordered tensors");
  if (descriptor.has(kRagged)) {
    tensor.offsets = std::make_shared<const TensorSpec>(descriptor.spec(kRagged));
    const TensorSpec &offsets = *tensor.offsets;
    CHAGRES_REQUIRE(!tensor.is_by_value && !offsets.is_virtual && !offsets.is_by_value && offsets.offsets == nullptr &&
                        (offsets.type == kInt32 || offsets.type == kInt64) &&
                        count_of(offsets.dims) == tensor.dims[0] + 1,
                    kBadParam, "CUDNN_ATTR_TENSOR_RAGGED_OFFSET_DESC: expected ", tensor.dims[0] + 1,
                    " INT32 or INT64 in memory, got ", offsets.text());
  }
  descriptor.tensor = tensor;
}

void finalize_variant_pack(const Descriptor &pack) {
  constexpr int kUniqueIds = 1000, kPointers = 1001;
  const Dims uids = pack.integers(kUniqueIds);
  CHAGRES_REQUIRE(pack.values.at(kPointers).count == static_cast<int64_t>(uids.size()), kBadParam,
          "CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS: expected ", uids.size(), " pointers, one for each unique id, got ",
          pack.values.at(kPointers).count);
  Dims sorted = uids;
  std::sort(sorted.begin(), sorted.end());
  CHAGRES_REQUIRE(std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end(), kDuplicatedEntries,
          "CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS: expected each id once");
}

void finalize_engine(Descriptor &engine) {
  constexpr int kGraphOfEngine = 1300, kIndex = 1301;
  engine.graph = engine.descriptor(kGraphOfEngine).graph;
  CHAGRES_REQUIRE(engine.integer(kIndex) == 0, kOutOfBound,
                  "CUDNN_ATTR_ENGINE_GLOBAL_INDEX: expected 0, the only engine, got ", engine.integer(kIndex));
  check_support(*engine.graph);
}

void finalize_rest(Descriptor &descriptor) {
  switch (descriptor.type) {
    case kTensor:
      return finalize_tensor(descriptor);
    case kOperationGraph:
      descriptor.graph = make_graph(descriptor.values.at(801).descriptors);
      return;
    case kEngineHeuristics:
      descriptor.graph = descriptor.descriptor(201).graph;
      return check_support(*descriptor.graph);
    case kEngine:
      return finalize_engine(descriptor);
    case kEngineConfig:
      descriptor.graph = descriptor.descriptor(300).graph;
      return;
    case kExecutionPlan:
      CHAGRES_REQUIRE(descriptor.has(401) != descriptor.has(405), kBadParam,
                      "CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: expected CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG to be set,"
                      " or CUDNN_ATTR_EXECUTION_PLAN_JSON_REPRESENTATION");
      descriptor.graph = descriptor.has(401) ? descriptor.descriptor(401).graph : planned_graph(descriptor);
      return;
    case kVariantPack:
      return finalize_variant_pack(descriptor);
    case kPointwiseOperation:
      return check_pointwise(descriptor);
    case kMatmulOperation:
      return check_matmul(descriptor);
    case kReduction:
      return check_reduction_operator(descriptor);
    case kReductionOperation:
      return check_reduction(descriptor);
    case kConvolutionForward:
    case kConvolutionBackwardData:
    case kConvolutionBackwardFilter:
      return check_convolution(descriptor);
    case kResampleForward:
    case kResampleBackward:
      return check_resample(descriptor);
    case kConcatenate:
      return check_concatenate(descriptor);
    case kNormForward:
      return check_norm_forward(descriptor);
    case kNormBackward:
      return check_norm_backward(descriptor);
    case kReshape:
      return check_reshape(descriptor);
    case kRngOperation:
      return check_rng(descriptor);
    case kGenStats:
      return check_gen_stats(descriptor);
    case kBnFinalize:
      return check_bn_finalize(descriptor);
    case kBnBackwardWeights:
      return check_bn_backward_weights(descriptor);
    case kPagedCacheLoad:
      return check_paged_cache_load(descriptor);
    case kBlockScaleQuantize:
    case kBlockScaleDequantize:
      return check_block_scale(descriptor);
    case kSdpaForward:
    case kSdpaBackward:
      return check_sdpa(descriptor);
    case kMoeGroupedMatmul:
      return check_moe(descriptor);
    default:
      return;
  }
}

}  // namespace

std::string dims_text(const Dims &dims) { return dims_of(dims); }

int64_t count_of(const Dims &dims) {
  int64_t count = 1;
  for (const int64_t dim : dims) count *= dim;
  return count;
}

Dims row_major(const Dims &dims) {
  Dims strides(dims.size(), 1);
  for (size_t i = dims.size(); i-- > 1;) strides[i - 1] = strides[i] * dims[i];
  return strides;
}

int64_t TensorSpec::span() const {
  int64_t last = 0;
  for (size_t i = 0; i < dims.size(); ++i) last += (dims[i] - 1) * strides[i];
  return last + 1;
}

std::string TensorSpec::text() const {
  return chagres::reference::text("tensor ", uid, " ", data_type_name(type), dims_text(dims));
}

void require_dims(const Descriptor &operation, int name, const Dims &dims) {
  CHAGRES_REQUIRE(!operation.has(name) || operation.spec(name).dims == dims, kShapeMismatch,
                  attribute(operation.type, name).text, ": expected ", dims_text(dims), ", got ",
                  operation.spec(name).text());
}

bool broadcasts(const Dims &small, const Dims &large) {
  if (small.size() != large.size()) return false;
  for (size_t i = 0; i < small.size(); ++i)
    if (small[i] != large[i] && small[i] != 1) return false;
  return true;
}

bool divides(const Dims &small, const Dims &large) {
  if (small.size() != large.size()) return false;
  for (size_t i = 0; i < small.size(); ++i)
    if (large[i] % small[i] != 0) return false;
  return true;
}

Dims broadcast_strides(const Dims &small, const Dims &large) {
  Dims strides = row_major(small);
  for (size_t i = 0; i < small.size(); ++i)
    if (small[i] == 1 && large[i] != 1) strides[i] = 0;
  return strides;
}

void finalize(Descriptor &descriptor) {
  check_required(descriptor);
  check_descriptors(descriptor);
  finalize_rest(descriptor);
  descriptor.finalized = true;
}

}  // namespace chagres::reference::cudnn

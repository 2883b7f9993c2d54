/* cuDNN's backend functions but for the execution: descriptors are made, filled, finalized, read and destroyed. */
#include "cudnn/handles.h"

namespace chagres::reference::cudnn {

namespace {

/* What a cudnnBackendDescriptor_t points to. */
struct Living {
  std::shared_ptr<Descriptor> descriptor;
};

Objects<Living> &descriptors() {
  static auto *all = new Objects<Living>;
  return *all;
}

/* The memory of attributes that hold descriptors: handles, which are pointers. */
std::vector<void *> pointers(const void *elements, int64_t count) {
  std::vector<void *> all(static_cast<size_t>(count));
  if (count != 0) std::memcpy(all.data(), elements, all.size() * sizeof(void *));
  return all;
}

/* Enumerations that cuDNN numbers from 0, and how many values of them the header has. */
int64_t value_count(int type) {
  switch (type) {
    case kDataTypeType:
      return 22;
    case kConvolutionModeType:
    case kNanPropagationType:
    case kNormPhaseType:
      return 2;
    case kHeuristicModeType:
    case kReorderingModeType:
      return 4;
    case kGenStatsModeType:
      return 1;
    case kBnFinalizeModeType:
      return 2;
    case kMoeModeType:
      return 3;
    case kReductionOperatorType:
      return 9;
    case kResampleModeType:
      return 5;
    case kPaddingModeType:
    case kRngDistributionType:
      return 3;
    case kNormModeType:
      return 6;
    default:
      return 0;
  }
}

void check_values(const Attribute &attribute, const Value &value) {
  const int64_t count = value_count(value.type);
  for (int64_t i = 0; count != 0 && i < value.count; ++i) {
    int32_t number;
    std::memcpy(&number, value.bytes.data() + 4 * i, sizeof(number));
    CHAGRES_REQUIRE(number >= 0 && number < count, kBadParam, attribute.text, ": expected 0 to ", count - 1, " of ",
            attribute_type_name(value.type), ", got ", number);
  }
}

Value make_value(const Attribute &attribute, int type, int64_t count, const void *elements) {
  Value value;
  value.type = type;
  value.count = count;
  if (type == kDescriptorType) {
    for (const void *handle : pointers(elements, count)) {
      const Living *living = descriptors().find(handle);
      CHAGRES_REQUIRE(living != nullptr, kBadParam, attribute.text, ": expected descriptors that live, got ", handle);
      CHAGRES_REQUIRE(living->descriptor->finalized, kNotFinalized, attribute.text,
                      ": expected a finalized descriptor, got ", descriptor_name(living->descriptor->type),
                      " that is not");
      value.descriptors.push_back(living->descriptor);
    }
    return value;
  }
  value.bytes.resize(static_cast<size_t>(count) * attribute_size(type));
  if (count != 0) std::memcpy(value.bytes.data(), elements, value.bytes.size());
  check_values(attribute, value);
  if (type == kHandleType) living_handle(pointers(elements, count).at(0));
  return value;
}

/* Gives what a finalized descriptor answers, of which none was set. */
void fill(Descriptor &result, const Descriptor &source, int type) {
  CHAGRES_REQUIRE(!result.finalized, kBadParam, "arrayOfElements: expected descriptors that are not finalized");
  CHAGRES_REQUIRE(result.type == type, kDescriptorMismatch, "arrayOfElements: expected ", descriptor_name(type),
                  ", got ", descriptor_name(result.type));
  result.values = source.values;
  result.tensor = source.tensor;
  result.graph = source.graph;
  result.finalized = true;
}

void copy_descriptors(const std::vector<std::shared_ptr<const Descriptor>> &sources, int64_t requested,
                      void *elements) {
  const int64_t count = std::min<int64_t>(requested, static_cast<int64_t>(sources.size()));
  const std::vector<void *> results = pointers(elements, count);
  for (size_t i = 0; i < results.size(); ++i) {
    Living *living = descriptors().find(results[i]);
    CHAGRES_REQUIRE(living != nullptr, kBadParam, "arrayOfElements: expected descriptors that live, got ", results[i]);
    fill(*living->descriptor, *sources[i], sources[i]->type);
  }
}

/* The one engine of a graph, as a configuration. */
std::shared_ptr<const Descriptor> only_configuration(const Descriptor &heuristics) {
  constexpr int kGraphOfHeuristics = 201, kGraphOfEngine = 1300, kIndexOfEngine = 1301, kEngineOfConfiguration = 300;
  auto engine = std::make_shared<Descriptor>();
  engine->type = kEngine;
  engine->values[kGraphOfEngine] = heuristics.values.at(kGraphOfHeuristics);
  engine->values[kIndexOfEngine] = Value{kInt64Type, 1, std::vector<char>(8, 0), {}};
  finalize(*engine);
  auto configuration = std::make_shared<Descriptor>();
  configuration->type = kEngineConfig;
  configuration->values[kEngineOfConfiguration] = Value{kDescriptorType, 1, {}, {engine}};
  finalize(*configuration);
  return configuration;
}

/* What the reference answers by itself: one engine, which is deterministic and needs no workspace. */
int64_t answered(const Descriptor &descriptor, int name, int64_t requested, void *elements) {
  constexpr int kResults = 202, kWorkspaceOfConfiguration = 303, kSharedMemory = 304, kWorkspaceOfPlan = 402,
                kEngines = 802, kJson = 405;
  if (name == kJson) {
    const std::string text = plan_text(descriptor);
    const size_t size = std::min(text.size(), static_cast<size_t>(requested));
    if (size != 0) std::memcpy(elements, text.data(), size);
    return static_cast<int64_t>(text.size());
  }
  if (name == kResults) {
    if (requested > 0) copy_descriptors({only_configuration(descriptor)}, requested, elements);
    return 1;
  }
  if (name == kWorkspaceOfPlan || name == kWorkspaceOfConfiguration || name == kEngines) {
    const int64_t number = name == kEngines ? 1 : 0;
    if (requested > 0) std::memcpy(elements, &number, sizeof(number));
    return 1;
  }
  if (name == kSharedMemory) {
    if (requested > 0) std::memset(elements, 0, 4);
    return 1;
  }
  return 0; /* no notes, knobs, layouts, intermediates */
}

int64_t get_attribute(const Descriptor &descriptor, int name, int type, int64_t requested, void *elements) {
  CHAGRES_REQUIRE(descriptor.finalized, kNotFinalized, descriptor_name(descriptor.type), ": expected a finalized one");
  const Attribute &wanted = attribute(descriptor.type, name);
  CHAGRES_REQUIRE(requested >= 0, kBadParam, wanted.text, ": expected a count of at least 0, got ", requested);
  CHAGRES_REQUIRE(elements != nullptr || requested == 0, kNullPointer, wanted.text,
                  ": expected a place for elements, got null");
  const auto found = descriptor.values.find(name);
  if (found == descriptor.values.end()) {
    CHAGRES_REQUIRE(wanted.type_is(type), kAttributeType, wanted.text, ": got ", attribute_type_name(type));
    return answered(descriptor, name, requested, elements);
  }
  const Value &value = found->second;
  CHAGRES_REQUIRE(value.type == type, kAttributeType, wanted.text, ": expected ", attribute_type_name(value.type),
                  ", got ", attribute_type_name(type));
  if (type == kDescriptorType) {
    copy_descriptors(value.descriptors, requested, elements);
  } else if (requested > 0) {
    std::memcpy(elements, value.bytes.data(),
                static_cast<size_t>(std::min(requested, value.count)) * attribute_size(type));
  }
  return value.count;
}

}  // namespace

void set_attribute(Descriptor &descriptor, int name, int type, int64_t count, const void *elements) {
  CHAGRES_REQUIRE(!descriptor.finalized, kNotInitialized, descriptor_name(descriptor.type),
                  ": expected one that is not finalized");
  const Attribute &wanted = attribute(descriptor.type, name);
  bool fits = false;
  std::string types;
  for (const int allowed : wanted.types) {
    fits = fits || allowed == type;
    types += (types.empty() ? "" : " or ") + attribute_type_name(allowed);
  }
  CHAGRES_REQUIRE(fits, kAttributeType, wanted.text, ": expected ", types, ", got ", attribute_type_name(type));
  const bool answered = wanted.most == 0 && !(descriptor.type == kEngineConfig && wanted.type_is(kDescriptorType));
  CHAGRES_REQUIRE(!answered, kBadParam, wanted.text, ": expected to be asked for, got a value to be set");
  /* The one engine has no knobs to choose. */
  CHAGRES_REQUIRE(wanted.most != 0 || count == 0, kNotSupported, wanted.text,
                  ": the CPU reference has none to choose, got ", count);
  CHAGRES_REQUIRE(count >= wanted.least && count <= wanted.most, kBadParam, wanted.text, ": expected ", wanted.least,
                  " to ", wanted.most, " elements, got ", count);
  CHAGRES_REQUIRE(elements != nullptr || count == 0, kNullPointer, wanted.text, ": expected elements, got null");
  descriptor.values[name] = make_value(wanted, type, count, elements);
}

void replace_descriptor(const void *handle, std::shared_ptr<Descriptor> made) {
  Living *living = descriptors().find(handle);
  if (living != nullptr) living->descriptor = std::move(made);
}

std::shared_ptr<Descriptor> living_descriptor(const void *handle, const char *argument) {
  const Living *living = descriptors().find(handle);
  CHAGRES_REQUIRE(living != nullptr, kBadParam, argument, ": expected a descriptor that lives");
  return living->descriptor;
}

}  // namespace chagres::reference::cudnn

using namespace chagres::reference;
using namespace chagres::reference::cudnn;

CHAGRES_EXPORT int cudnnBackendCreateDescriptor(int type, void **descriptor) try {
  CHAGRES_REQUIRE(descriptor != nullptr, kNullPointer, "descriptor: expected a place for the descriptor, got null");
  bool known = false;
  for (const Attribute &candidate : attributes()) known = known || candidate.descriptor == type;
  CHAGRES_REQUIRE(known, kNotSupported, descriptor_name(type), " (", type, ") is not provided by the CPU reference");
  auto made = std::make_shared<Descriptor>();
  made->type = type;
  *descriptor = descriptors().add(std::move(made));
  return kSuccess;
} CHAGRES_CUDNN_CATCH

CHAGRES_EXPORT int cudnnBackendDestroyDescriptor(void *descriptor) try {
  CHAGRES_REQUIRE(descriptors().remove(descriptor), kBadParam, "descriptor: expected a descriptor that lives");
  return kSuccess;
} CHAGRES_CUDNN_CATCH

/* Others that hold the descriptor keep it as it was. */
CHAGRES_EXPORT int cudnnBackendInitialize(void *descriptor) try {
  auto made = std::make_shared<Descriptor>();
  made->type = living_descriptor(descriptor, "descriptor")->type;
  replace_descriptor(descriptor, std::move(made));
  return kSuccess;
} CHAGRES_CUDNN_CATCH

CHAGRES_EXPORT int cudnnBackendFinalize(void *descriptor) try {
  const auto living = living_descriptor(descriptor, "descriptor");
  CHAGRES_REQUIRE(!living->finalized, kBadParam, descriptor_name(living->type), ": expected one that is not finalized");
  finalize(*living);
  return kSuccess;
} CHAGRES_CUDNN_CATCH

CHAGRES_EXPORT int cudnnBackendSetAttribute(void *descriptor, int name, int type, int64_t count,
                                            const void *elements) try {
  set_attribute(*living_descriptor(descriptor, "descriptor"), name, type, count, elements);
  return kSuccess;
}
CHAGRES_CUDNN_CATCH

CHAGRES_EXPORT int cudnnBackendGetAttribute(const void *descriptor, int name, int type, int64_t requested,
                                            int64_t *count, void *elements) try {
  const int64_t found = get_attribute(*living_descriptor(descriptor, "descriptor"), name, type, requested, elements);
  if (count != nullptr) *count = found;
  return kSuccess;
}
CHAGRES_CUDNN_CATCH

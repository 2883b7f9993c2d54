/* Quantization and matrix-product configurations: objects with attributes, no computing. */
#include "te/config.h"

#include <vector>

namespace chagres::reference {

namespace {

#define CHAGRES_VALUE(type, field) \
  { offsetof(type, field), sizeof(type::field), Attribute::Value }
#define CHAGRES_FLAG(type, field) \
  { offsetof(type, field), 1, Attribute::Flag }

constexpr Attribute kQuantizationAttributes[] = {
    CHAGRES_FLAG(QuantizationConfig, force_pow_2_scales),
    CHAGRES_VALUE(QuantizationConfig, amax_epsilon),
    CHAGRES_VALUE(QuantizationConfig, noop_tensor),
    {offsetof(QuantizationConfig, block_scale_format), sizeof(int32_t), Attribute::Ignored},
    CHAGRES_VALUE(QuantizationConfig, rng_state),
    CHAGRES_FLAG(QuantizationConfig, nvfp4_2d_quantization),
    CHAGRES_FLAG(QuantizationConfig, stochastic_rounding),
    CHAGRES_FLAG(QuantizationConfig, use_fast_math),
    CHAGRES_VALUE(QuantizationConfig, nvfp4_4over6_mode),
    CHAGRES_FLAG(QuantizationConfig, nvfp4_4over6_err_use_fast_math),
    CHAGRES_FLAG(QuantizationConfig, mxfp8_2d_quantization),
};

constexpr Attribute kMatmulAttributes[] = {
    CHAGRES_VALUE(MatmulConfig, bias_tensor),        CHAGRES_VALUE(MatmulConfig, dbias_tensor),
    CHAGRES_FLAG(MatmulConfig, with_gelu_epilogue),  CHAGRES_FLAG(MatmulConfig, with_dgelu_epilogue),
    CHAGRES_VALUE(MatmulConfig, epilogue_aux_tensor), CHAGRES_FLAG(MatmulConfig, use_split_accumulator),
    CHAGRES_VALUE(MatmulConfig, sm_count),
};

constexpr AttributeTable kQuantizationTable = {"NVTEQuantizationConfigAttribute", kQuantizationAttributes,
                                               kNVTEQuantizationConfigNumAttributes};
constexpr AttributeTable kMatmulTable = {"NVTEMatmulConfigAttribute", kMatmulAttributes,
                                         kNVTEMatmulConfigNumAttributes};

static_assert(std::size(kQuantizationAttributes) == kNVTEQuantizationConfigNumAttributes, "one entry an attribute");
static_assert(std::size(kMatmulAttributes) == kNVTEMatmulConfigNumAttributes, "one entry an attribute");

Handles<QuantizationConfig> &quantization_configs() {
  static auto *handles = new Handles<QuantizationConfig>("NVTEQuantizationConfig");
  return *handles;
}

Handles<MatmulConfig> &matmul_configs() {
  static auto *handles = new Handles<MatmulConfig>("NVTEMatmulConfig");
  return *handles;
}

}  // namespace

QuantizationConfig quantization_config(NVTEQuantizationConfig config, Caller caller) {
  return config == nullptr ? QuantizationConfig{} : quantization_configs().at(config, caller);
}

MatmulConfig matmul_config(NVTEMatmulConfig config, Caller caller) {
  return config == nullptr ? MatmulConfig{} : matmul_configs().at(config, caller);
}

namespace {

/* The configuration's tensors live as long as its copy. */
template <class Object>
std::shared_ptr<void> kept(Handles<Object> &handles, void *handle, std::initializer_list<NVTETensor Object::*> tensors,
                           std::shared_ptr<void> (*keep)(void *)) {
  Object values = handles.at(handle);
  std::vector<std::shared_ptr<void>> owned;
  for (NVTETensor Object::*field : tensors) {
    owned.push_back(keep(values.*field));
    values.*field = owned.back().get();
  }
  std::shared_ptr<void> copy(handles.create(), [&handles, owned](void *created) noexcept { handles.remove(created); });
  handles.at(copy.get()) = values;
  return copy;
}

}  // namespace

std::shared_ptr<void> kept_config(void *handle, std::shared_ptr<void> (*keep)(void *)) {
  if (quantization_configs().lives(handle)) {
    return kept(quantization_configs(), handle, {&QuantizationConfig::noop_tensor, &QuantizationConfig::rng_state}, keep);
  }
  if (matmul_configs().lives(handle)) {
    return kept(matmul_configs(), handle,
                {&MatmulConfig::bias_tensor, &MatmulConfig::dbias_tensor, &MatmulConfig::epilogue_aux_tensor}, keep);
  }
  return nullptr;
}

}  // namespace chagres::reference

using namespace chagres::reference;

NVTEQuantizationConfig nvte_create_quantization_config(void) { return quantization_configs().create(); }

void nvte_get_quantization_config_attribute(NVTEQuantizationConfig config, NVTEQuantizationConfigAttribute attribute,
                                            void *buffer, size_t size, size_t *size_written) {
  const void *object = buffer == nullptr ? nullptr : &quantization_configs().at(config);
  get_attribute(kQuantizationTable, object, attribute, buffer, size, size_written);
}

void nvte_set_quantization_config_attribute(NVTEQuantizationConfig config, NVTEQuantizationConfigAttribute attribute,
                                            const void *buffer, size_t size) {
  QuantizationConfig &object = quantization_configs().at(config);
  if (attribute == kNVTEQuantizationConfigNVFP44Over6Mode && buffer != nullptr && size >= 1) {
    const int mode = *static_cast<const uint8_t *>(buffer);
    CHAGRES_CHECK(mode <= kNVTENVFP44Over6MinMSE, "Invalid NVFP4 4over6 mode: expected 0, 1 or 2, got ", mode);
  }
  set_attribute(kQuantizationTable, &object, attribute, buffer, size);
}

void nvte_destroy_quantization_config(NVTEQuantizationConfig config) {
  if (config != nullptr) quantization_configs().destroy(config);
}

NVTEMatmulConfig nvte_create_matmul_config(void) { return matmul_configs().create(); }

void nvte_get_matmul_config_attribute(NVTEMatmulConfig config, NVTEMatmulConfigAttribute attribute, void *buffer,
                                      size_t size, size_t *size_written) {
  CHAGRES_CHECK(size_written != nullptr, "Invalid size_written (got NULL)");
  const void *object = buffer == nullptr ? nullptr : &matmul_configs().at(config);
  get_attribute(kMatmulTable, object, attribute, buffer, size, size_written);
}

void nvte_set_matmul_config_attribute(NVTEMatmulConfig config, NVTEMatmulConfigAttribute attribute, const void *buffer,
                                      size_t size) {
  set_attribute(kMatmulTable, &matmul_configs().at(config), attribute, buffer, size);
}

void nvte_destroy_matmul_config(NVTEMatmulConfig config) {
  if (config != nullptr) matmul_configs().destroy(config);
}

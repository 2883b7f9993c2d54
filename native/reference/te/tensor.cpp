/* The records of a tensor: the functions that set and read them. */
#include <algorithm>
#include <cstring>

#include "te/tensor_pool.h"

namespace chagres::reference {

namespace {

constexpr size_t kMaxDimensions = 15;

constexpr size_t kParameterSizes[kNVTENumTensorParams] = {
    sizeof(NVTEBasicTensor), sizeof(NVTEBasicTensor), sizeof(NVTEBasicTensor), sizeof(NVTEBasicTensor),
    sizeof(NVTEBasicTensor), sizeof(NVTEBasicTensor), sizeof(NVTEBasicTensor), 1, 1, 4};

void check_record(const NVTEBasicTensor &record, const Caller &caller) {
  if (record.shape.ndim > kMaxDimensions) {
    fail(caller, text("A tensor has at most ", kMaxDimensions, " dimensions, got ", record.shape.ndim));
  }
  if (element_bits(record.dtype) == 0) {
    fail(caller, text("Invalid dtype: expected an NVTEDType 0 to 10, got ", static_cast<int>(record.dtype)));
  }
  size_t bits = element_bits(record.dtype);
  for (size_t i = 0; i < record.shape.ndim; ++i) {
    const size_t dimension = record.shape.data[i];
    if (dimension != 0 && bits > (size_t{1} << 62) / dimension) {
      fail(caller, text("Shape ", shape_text(record.shape), " has too many elements"));
    }
    bits *= dimension == 0 ? 1 : dimension;
  }
}

size_t check_parameter(int parameter, const Caller &caller) {
  if (parameter < 0 || parameter >= kNVTENumTensorParams) {
    fail(caller, text("Invalid NVTETensorParam: expected 0 to ", kNVTENumTensorParams - 1, ", got ", parameter));
  }
  return kParameterSizes[parameter];
}

void check_parameter_buffer(int parameter, size_t needed, size_t size, const Caller &caller) {
  if (size < needed) {
    fail(caller, text("Buffer is too small for tensor parameter ", parameter, ": needs ", needed, " bytes, got ", size));
  }
}

}  // namespace

bool Tensor::has(NVTETensorParam record) const {
  const NVTEBasicTensor &value = records[record];
  return !(value.data_ptr == nullptr && value.shape.ndim == 1 && value.shape.data[0] == 0);
}

NVTEShape Tensor::shape() const {
  if (has(kNVTERowwiseData) || !has(kNVTEColumnwiseData)) return data().shape;
  const NVTEShape &columnwise = records[kNVTEColumnwiseData].shape;
  if (scaling_mode == NVTE_MXFP8_1D_SCALING || columnwise.ndim == 0) return columnwise;
  NVTEShape shape = columnwise;
  std::rotate(shape.data, shape.data + 1, shape.data + shape.ndim);
  return shape;
}

NVTEDType Tensor::dtype() const {
  return !has(kNVTERowwiseData) && has(kNVTEColumnwiseData) ? records[kNVTEColumnwiseData].dtype : data().dtype;
}

}  // namespace chagres::reference

using namespace chagres::reference;

NVTEShape nvte_make_shape(const size_t *data, size_t ndim) {
  CHAGRES_CHECK(ndim <= kMaxDimensions, "A tensor has at most ", kMaxDimensions, " dimensions, got ", ndim);
  NVTEShape shape{};
  shape.ndim = ndim;
  if (data != nullptr) std::copy(data, data + ndim, shape.data);
  return shape;
}

void *nvte_tensor_data(const NVTETensor tensor) {
  const Tensor *found = find_tensor(tensor);
  return found == nullptr ? nullptr : found->data().data_ptr;
}

void *nvte_tensor_columnwise_data(const NVTETensor tensor) {
  const Tensor *found = find_tensor(tensor);
  return found == nullptr ? nullptr : found->record(kNVTEColumnwiseData).data_ptr;
}

NVTEShape nvte_tensor_shape(const NVTETensor handle) { return living_tensor(handle, "tensor").shape(); }

NVTEShape nvte_tensor_columnwise_shape(const NVTETensor handle) {
  return living_tensor(handle, "tensor").record(kNVTEColumnwiseData).shape;
}

size_t nvte_tensor_ndims(const NVTETensor handle) { return living_tensor(handle, "tensor").shape().ndim; }

size_t nvte_tensor_size(const NVTETensor handle, const size_t dim) {
  const NVTEShape shape = living_tensor(handle, "tensor").shape();
  CHAGRES_CHECK(dim < shape.ndim, "Argument \"dim\" must be below the number of dimensions of ", shape_text(shape),
                ", got ", dim);
  return shape.data[dim];
}

size_t nvte_tensor_numel(const NVTETensor handle) { return element_count(living_tensor(handle, "tensor").shape()); }

size_t nvte_tensor_element_size_bits(const NVTETensor tensor) {
  const Tensor *found = find_tensor(tensor);
  return found == nullptr ? 32 : element_bits(found->dtype());
}

size_t nvte_tensor_element_size(const NVTETensor tensor) {
  const size_t bits = nvte_tensor_element_size_bits(tensor);
  CHAGRES_CHECK(bits % 8 == 0, "A Float4E2M1 element is no whole number of bytes: use nvte_tensor_element_size_bits");
  return bits / 8;
}

size_t nvte_tensor_size_bytes(const NVTETensor tensor) {
  const Tensor *found = find_tensor(tensor);
  return found == nullptr ? 0 : (element_count(found->shape()) * element_bits(found->dtype())) / 8;
}

NVTEDType nvte_tensor_type(const NVTETensor tensor) {
  const Tensor *found = find_tensor(tensor);
  return found == nullptr ? kNVTEFloat32 : found->dtype();
}

static float *float_record(const NVTETensor tensor, NVTETensorParam parameter, const char *name, const Caller &caller) {
  const Tensor *found = find_tensor(tensor);
  if (found == nullptr) return nullptr;
  const NVTEBasicTensor &record = found->record(parameter);
  if (record.dtype != kNVTEFloat32) {
    fail(caller, text("The tensor's ", name, " must be Float32, got ", dtype_name(record.dtype)));
  }
  return static_cast<float *>(record.data_ptr);
}

float *nvte_tensor_amax(const NVTETensor tensor) { return float_record(tensor, kNVTEAmax, "amax", Caller::here()); }

float *nvte_tensor_scale(const NVTETensor tensor) { return float_record(tensor, kNVTEScale, "scale", Caller::here()); }

float *nvte_tensor_scale_inv(const NVTETensor tensor) {
  const Tensor *found = find_tensor(tensor);
  return found == nullptr ? nullptr : static_cast<float *>(found->record(kNVTERowwiseScaleInv).data_ptr);
}

NVTEShape nvte_tensor_scale_inv_shape(const NVTETensor tensor) {
  const Tensor *found = find_tensor(tensor);
  return found == nullptr ? make_shape({0}) : found->record(kNVTERowwiseScaleInv).shape;
}

NVTEScalingMode nvte_tensor_scaling_mode(const NVTETensor handle) {
  return handle == nullptr ? NVTE_DELAYED_TENSOR_SCALING : living_tensor(handle, "tensor").scaling_mode;
}

void nvte_set_tensor_param_v2(NVTETensor handle, NVTETensorParam param, const void *buf, size_t size_in_bytes) {
  const size_t needed = check_parameter(param, Caller::here());
  Tensor &target = living_tensor(handle, "tensor");
  check_parameter_buffer(param, needed, size_in_bytes, Caller::here());
  CHAGRES_CHECK(buf != nullptr, "Invalid buffer (got NULL) for tensor parameter ", static_cast<int>(param));
  switch (param) {
    case kNVTEWithGEMMSwizzledScales:
      target.with_gemm_swizzled_scales = *static_cast<const uint8_t *>(buf) != 0;
      return;
    case kNVTERowScaledNVFP4:
      target.row_scaled_nvfp4 = *static_cast<const uint8_t *>(buf) != 0;
      return;
    case kNVTENVFP4E4M3Max: {
      int32_t value;
      std::memcpy(&value, buf, sizeof(value));
      CHAGRES_CHECK(value == 448 || value == 256, "Unsupported NVFP4 E4M3 maximum: expected 448 or 256, got ", value);
      target.nvfp4_e4m3_max = value;
      return;
    }
    default: {
      NVTEBasicTensor record;
      std::memcpy(&record, buf, sizeof(record));
      check_record(record, Caller::here());
      target.records[param] = record;
    }
  }
}

void nvte_get_tensor_param_v2(const NVTETensor handle, NVTETensorParam param, void *buf, size_t size_in_bytes,
                              size_t *size_written) {
  const size_t needed = check_parameter(param, Caller::here());
  if (size_written != nullptr) *size_written = needed;
  if (buf == nullptr) return;
  check_parameter_buffer(param, needed, size_in_bytes, Caller::here());
  const Tensor *found = find_tensor(handle);
  const Tensor &source = found == nullptr ? absent_tensor() : *found;
  switch (param) {
    case kNVTEWithGEMMSwizzledScales:
      std::memcpy(buf, &source.with_gemm_swizzled_scales, needed);
      return;
    case kNVTERowScaledNVFP4:
      std::memcpy(buf, &source.row_scaled_nvfp4, needed);
      return;
    case kNVTENVFP4E4M3Max:
      std::memcpy(buf, &source.nvfp4_e4m3_max, needed);
      return;
    default:
      std::memcpy(buf, &source.records[param], needed);
  }
}

void nvte_set_tensor_param(NVTETensor *handle, NVTETensorParam param_name, const NVTEBasicTensor *param) {
  CHAGRES_CHECK(handle != nullptr, "Argument \"tensor\" must point to a tensor handle, got NULL");
  CHAGRES_CHECK(param != nullptr, "Argument \"param\" must point to an NVTEBasicTensor, got NULL");
  CHAGRES_CHECK(param_name >= 0 && param_name < kRecords, "Tensor parameter ", static_cast<int>(param_name),
                " is no NVTEBasicTensor: use nvte_set_tensor_param_v2");
  check_record(*param, Caller::here());
  living_tensor(*handle, "tensor").records[param_name] = *param;
}

NVTEBasicTensor nvte_get_tensor_param(const NVTETensor handle, NVTETensorParam param_name) {
  if (handle == nullptr) return absent_record();
  CHAGRES_CHECK(param_name >= 0 && param_name < kRecords, "Tensor parameter ", static_cast<int>(param_name),
                " is no NVTEBasicTensor: use nvte_get_tensor_param_v2");
  return living_tensor(handle, "tensor").record(param_name);
}

/* As on compute capability 9.0, which the reference reports: FP8 products are "TN" only. */
int nvte_is_non_tn_fp8_gemm_supported(void) { return 0; }

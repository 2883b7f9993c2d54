/* Tensor handles: slots of a process-wide pool, and the functions that set and read their records. */
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

#include "reference.h"

namespace chagres::reference {

namespace {

constexpr size_t kMaxDimensions = 15;
constexpr size_t kPackSize = 10;
constexpr size_t kChunk = 1024; /* slots allocated at a time; a slot never moves */
constexpr size_t kUpstreamRecordBytes = 1032; /* Transformer Engine's pool is measured in MiB of records this big */

constexpr size_t kParameterSizes[kNVTENumTensorParams] = {
    sizeof(NVTEBasicTensor), sizeof(NVTEBasicTensor), sizeof(NVTEBasicTensor), sizeof(NVTEBasicTensor),
    sizeof(NVTEBasicTensor), sizeof(NVTEBasicTensor), sizeof(NVTEBasicTensor), 1, 1, 4};

NVTEBasicTensor absent_record() { return {nullptr, kNVTEFloat32, make_shape({0})}; }

Tensor fresh_tensor(NVTEScalingMode mode) {
  Tensor tensor{};
  for (NVTEBasicTensor &record : tensor.records) record = absent_record();
  tensor.scaling_mode = mode;
  tensor.nvfp4_e4m3_max = 448;
  return tensor;
}

/* A handle is the 1-based slot number, with the number of times the slot was reused above its low 32 bits: a handle
 * that was destroyed stays recognizable when its slot has a new owner. */
struct Slot {
  Tensor tensor;
  std::atomic<uintptr_t> handle{0}; /* 0: free */
  uintptr_t reused = 0;
};

class Pool {
 public:
  static Pool &instance() {
    static Pool *pool = new Pool;
    return *pool;
  }

  void create(NVTEScalingMode mode, NVTETensor *out, size_t count, const Caller &caller) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (free_.size() + (capacity_ - used_) < count) {
      fail(caller, text("Cannot allocate ", count, " tensors: the pool of ", capacity_, " tensor handles is full. ",
                        "Destroy handles that are no longer needed or raise NVTE_TENSOR_HANDLE_POOL_SIZE_MB."));
    }
    for (size_t i = 0; i < count; ++i) {
      const size_t index = take_index();
      Slot &slot = at(index);
      slot.tensor = fresh_tensor(mode);
      const uintptr_t handle = (slot.reused << 32) | (index + 1);
      slot.handle.store(handle, std::memory_order_release);
      out[i] = reinterpret_cast<NVTETensor>(handle);
    }
  }

  /* Frees every living handle among them, then throws when one was dead. */
  void destroy(const NVTETensor *handles, size_t count, const Caller &caller) {
    size_t dead = count;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      for (size_t i = 0; i < count; ++i) {
        const auto handle = reinterpret_cast<uintptr_t>(handles[i]);
        if (handle == 0) continue;
        Slot *slot = find(handle);
        if (slot == nullptr) {
          dead = std::min(dead, i);
          continue;
        }
        slot->handle.store(0, std::memory_order_release);
        ++slot->reused;
        free_.push_back((handle & 0xffffffffu) - 1);
      }
    }
    if (dead < count) {
      fail(caller, text("Invalid tensor. Handle ", reinterpret_cast<uintptr_t>(handles[dead]),
                        " was destroyed already or never created"));
    }
  }

  /* null when the handle is not alive. Takes no lock. */
  Slot *find(uintptr_t handle) {
    const uintptr_t index = (handle & 0xffffffffu) - 1;
    if (handle == 0 || index >= capacity_) return nullptr;
    Slot *chunk = chunks_[index / kChunk].load(std::memory_order_acquire);
    if (chunk == nullptr) return nullptr;
    Slot &slot = chunk[index % kChunk];
    return slot.handle.load(std::memory_order_acquire) == handle ? &slot : nullptr;
  }

 private:
  Pool() : capacity_(read_capacity()), chunks_((capacity_ + kChunk - 1) / kChunk) {}

  static size_t read_capacity() {
    size_t mebibytes = 20;
    const char *wanted = std::getenv("NVTE_TENSOR_HANDLE_POOL_SIZE_MB");
    if (wanted != nullptr && *wanted != '\0') {
      char *end = nullptr;
      const long value = std::strtol(wanted, &end, 10);
      CHAGRES_CHECK(*end == '\0' && value > 0 && value <= 65536,
                    "NVTE_TENSOR_HANDLE_POOL_SIZE_MB must be a number from 1 to 65536, got \"", wanted, "\"");
      mebibytes = static_cast<size_t>(value);
    }
    return mebibytes * (size_t{1} << 20) / kUpstreamRecordBytes;
  }

  size_t take_index() {
    if (!free_.empty()) {
      const size_t index = free_.back();
      free_.pop_back();
      return index;
    }
    auto &chunk = chunks_[used_ / kChunk];
    if (chunk.load(std::memory_order_relaxed) == nullptr) chunk.store(new Slot[kChunk], std::memory_order_release);
    return used_++;
  }

  Slot &at(size_t index) { return chunks_[index / kChunk].load(std::memory_order_relaxed)[index % kChunk]; }

  const size_t capacity_;
  std::vector<std::atomic<Slot *>> chunks_;
  std::mutex mutex_;
  std::vector<size_t> free_;
  size_t used_ = 0;
};

/* For the getters that answer defaults instead of throwing. */
const Tensor *find_tensor(NVTETensor handle) {
  Slot *slot = Pool::instance().find(reinterpret_cast<uintptr_t>(handle));
  return slot == nullptr ? nullptr : &slot->tensor;
}

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

size_t record_bytes(const NVTEBasicTensor &record) {
  return (element_count(record.shape) * element_bits(record.dtype) + 7) / 8;
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

Tensor &tensor(NVTETensor handle, const char *argument, Caller caller) {
  Slot *slot = Pool::instance().find(reinterpret_cast<uintptr_t>(handle));
  if (slot == nullptr) {
    fail(caller, text("Invalid tensor. Argument \"", argument, "\" must be a living tensor handle, got ",
                      reinterpret_cast<uintptr_t>(handle),
                      handle == nullptr ? "" : ", which was destroyed or never created"));
  }
  return slot->tensor;
}

}  // namespace chagres::reference

using namespace chagres::reference;

NVTETensor nvte_create_tensor(NVTEScalingMode scaling_mode) {
  NVTETensor handle;
  Pool::instance().create(scaling_mode, &handle, 1, Caller::here());
  return handle;
}

void nvte_create_tensors(NVTEScalingMode scaling_mode, NVTETensor *tensors, size_t N) {
  CHAGRES_CHECK(tensors != nullptr || N == 0, "Argument \"tensors\" must be an array of ", N, " handles, got NULL");
  Pool::instance().create(scaling_mode, tensors, N, Caller::here());
}

void nvte_destroy_tensor(NVTETensor tensor) { Pool::instance().destroy(&tensor, 1, Caller::here()); }

void nvte_destroy_tensors(NVTETensor *tensors, size_t N) {
  CHAGRES_CHECK(tensors != nullptr || N == 0, "Argument \"tensors\" must be an array of ", N, " handles, got NULL");
  Pool::instance().destroy(tensors, N, Caller::here());
}

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

NVTEShape nvte_tensor_shape(const NVTETensor handle) { return tensor(handle, "tensor").shape(); }

NVTEShape nvte_tensor_columnwise_shape(const NVTETensor handle) {
  return tensor(handle, "tensor").record(kNVTEColumnwiseData).shape;
}

size_t nvte_tensor_ndims(const NVTETensor handle) { return tensor(handle, "tensor").shape().ndim; }

size_t nvte_tensor_size(const NVTETensor handle, const size_t dim) {
  const NVTEShape shape = tensor(handle, "tensor").shape();
  CHAGRES_CHECK(dim < shape.ndim, "Argument \"dim\" must be below the number of dimensions of ", shape_text(shape),
                ", got ", dim);
  return shape.data[dim];
}

size_t nvte_tensor_numel(const NVTETensor handle) { return element_count(tensor(handle, "tensor").shape()); }

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
  return handle == nullptr ? NVTE_DELAYED_TENSOR_SCALING : tensor(handle, "tensor").scaling_mode;
}

void nvte_set_tensor_param_v2(NVTETensor handle, NVTETensorParam param, const void *buf, size_t size_in_bytes) {
  const size_t needed = check_parameter(param, Caller::here());
  Tensor &target = tensor(handle, "tensor");
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
  const Tensor source = found == nullptr ? fresh_tensor(NVTE_DELAYED_TENSOR_SCALING) : *found;
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
  tensor(*handle, "tensor").records[param_name] = *param;
}

NVTEBasicTensor nvte_get_tensor_param(const NVTETensor handle, NVTETensorParam param_name) {
  if (handle == nullptr) return absent_record();
  CHAGRES_CHECK(param_name >= 0 && param_name < kRecords, "Tensor parameter ", static_cast<int>(param_name),
                " is no NVTEBasicTensor: use nvte_get_tensor_param_v2");
  return tensor(handle, "tensor").record(param_name);
}

void nvte_tensor_pack_create(NVTETensorPack *pack) {
  CHAGRES_CHECK(pack != nullptr, "Argument \"pack\" must point to an NVTETensorPack, got NULL");
  Pool::instance().create(NVTE_DELAYED_TENSOR_SCALING, pack->tensors, kPackSize, Caller::here());
}

void nvte_tensor_pack_destroy(NVTETensorPack *pack) {
  CHAGRES_CHECK(pack != nullptr, "Argument \"pack\" must point to an NVTETensorPack, got NULL");
  Pool::instance().destroy(pack->tensors, kPackSize, Caller::here());
}

void nvte_zero_tensor(const NVTETensor handle, cudaStream_t) {
  if (handle == nullptr) return;
  const Tensor &target = tensor(handle, "tensor");
  for (const NVTETensorParam parameter : {kNVTERowwiseData, kNVTEAmax}) {
    const NVTEBasicTensor &record = target.record(parameter);
    if (record.data_ptr != nullptr) std::memset(record.data_ptr, 0, record_bytes(record));
  }
}

void nvte_memset(void *ptr, int value, size_t size_in_bytes, cudaStream_t) {
  CHAGRES_CHECK(ptr != nullptr || size_in_bytes == 0, "Argument \"ptr\" must be memory of ", size_in_bytes,
                " bytes, got NULL");
  if (size_in_bytes > 0) std::memset(ptr, value, size_in_bytes);
}

void nvte_copy_host_to_device_via_kernel(const void *host_ptr, void *device_ptr, size_t num_bytes, cudaStream_t) {
  CHAGRES_CHECK((host_ptr != nullptr && device_ptr != nullptr) || num_bytes == 0,
                "Arguments \"host_ptr\" and \"device_ptr\" must be memory of ", num_bytes, " bytes, got NULL");
  if (num_bytes > 0) std::memcpy(device_ptr, host_ptr, num_bytes);
}

/* As on compute capability 9.0, which the reference reports: FP8 products are "TN" only. */
int nvte_is_non_tn_fp8_gemm_supported(void) { return 0; }

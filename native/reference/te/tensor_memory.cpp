/*
 * The memory that tensors and pointers name. On a GPU a wrong pointer ends the CUDA context; here it would end the process,
 * so it is looked up among the allocations first.
 */
#include <cstring>

#include "te/recorded.h"
#include "cuda/cuda.h"

namespace chagres::reference {

namespace {

constexpr const char *kRecordNames[kRecords] = {"rowwise data", "columnwise data", "scale", "amax",
                                                "rowwise scale_inv", "columnwise scale_inv", "columnwise amax"};

size_t record_bytes(const NVTEBasicTensor &record) {
  return (element_count(record.shape) * element_bits(record.dtype) + 7) / 8;
}

}  // namespace

void expect_memory(const void *pointer, size_t bytes, const char *argument, const char *part, Caller caller) {
  if (bytes == 0) return;
  const size_t accessible = pointer == nullptr ? 0 : accessible_bytes(pointer);
  if (bytes <= accessible) return;
  const std::string got = pointer == nullptr ? "NULL"
                          : accessible == 0  ? std::string("a pointer to none, or to memory that was freed")
                                             : text("a pointer to ", accessible, " bytes");
  fail(caller, text("Argument \"", argument, "\"", part[0] == '\0' ? "" : " (", part, part[0] == '\0' ? "" : ")",
                    " must be ", bytes, " bytes of device memory, got ", got));
}

Tensor &tensor(NVTETensor handle, const char *argument, Caller caller) {
  Tensor &found = living_tensor(handle, argument, caller);
  for (int i = 0; i < kRecords; ++i) {
    const NVTEBasicTensor &record = found.records[i];
    if (record.data_ptr != nullptr) expect_memory(record.data_ptr, record_bytes(record), argument, kRecordNames[i], caller);
  }
  return found;
}

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_zero_tensor(const NVTETensor handle, cudaStream_t stream) {
  if (recorded(nvte_zero_tensor, handle, stream)) return;
  if (handle == nullptr) return;
  const Tensor &target = tensor(handle, "tensor");
  for (const NVTETensorParam parameter : {kNVTERowwiseData, kNVTEAmax}) {
    const NVTEBasicTensor &record = target.record(parameter);
    if (record.data_ptr != nullptr) std::memset(record.data_ptr, 0, record_bytes(record));
  }
}

/* Transformer Engine fills so many bytes by a kernel, and more by cudaMemsetAsync. */
static constexpr size_t kMostOfKernel = 4096;

void nvte_memset(void *ptr, int value, size_t size_in_bytes, cudaStream_t stream) {
  if (is_capturing(stream)) {
    const auto call = [=](void *into) { nvte_memset(ptr, value, size_in_bytes, static_cast<cudaStream_t>(into)); };
    return record(stream, call, size_in_bytes > kMostOfKernel ? kMemsetNode : kKernelNode);
  }
  expect_memory(ptr, size_in_bytes, "ptr");
  if (size_in_bytes > 0) std::memset(ptr, value, size_in_bytes);
}

/* The size of the host's memory is not known here; the device's must suffice. */
void nvte_copy_host_to_device_via_kernel(const void *host_ptr, void *device_ptr, size_t num_bytes,
                                         cudaStream_t stream) {
  CHAGRES_CHECK(host_ptr != nullptr || num_bytes == 0, "Argument \"host_ptr\" must be memory of ", num_bytes,
                " bytes, got NULL");
  expect_memory(device_ptr, num_bytes, "device_ptr");
  if (is_capturing(stream)) {
    /* The bytes travel as the kernel's arguments. */
    const auto *bytes = static_cast<const char *>(host_ptr);
    record(stream, [device_ptr, copy = std::vector<char>(bytes, bytes + num_bytes)](void *into) {
      nvte_copy_host_to_device_via_kernel(copy.data(), device_ptr, copy.size(), static_cast<cudaStream_t>(into));
    });
    return;
  }
  if (num_bytes > 0) std::memcpy(device_ptr, host_ptr, num_bytes);
}

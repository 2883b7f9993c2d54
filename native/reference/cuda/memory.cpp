/* Memory of the CUDA runtime: the host's, with a record of every allocation, so that wrong pointers get a code. */
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <shared_mutex>
#include <vector>

#include "cuda/cuda.h"

namespace chagres::reference {

namespace {

constexpr size_t kAlignment = 256; /* as cudaMalloc promises */

enum class MemoryType { Unregistered = 0, Host = 1, Device = 2, Managed = 3 };
enum CopyKind { kHostToHost = 0, kHostToDevice = 1, kDeviceToHost = 2, kDeviceToDevice = 3, kDefault = 4 };

struct Allocation {
  size_t size;
  MemoryType type;
  int device;
  bool registered; /* by cudaHostRegister: not ours to free */
  unsigned int flags;
};

/* cudaPointerAttributes of CUDA 13.0. */
struct PointerAttributes {
  int type;
  int device;
  void *devicePointer;
  void *hostPointer;
  long reserved[8];
};
static_assert(sizeof(PointerAttributes) == 88, "size of cudaPointerAttributes in CUDA 13.0");

/* Whether the process has memory at all these addresses: msync looks, and with MS_ASYNC does nothing else. */
bool is_mapped(void *pointer, size_t size) {
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGE_SIZE));
  const auto first = reinterpret_cast<uintptr_t>(pointer) / page * page;
  uintptr_t end;
  if (__builtin_add_overflow(reinterpret_cast<uintptr_t>(pointer), size, &end) || end > UINTPTR_MAX - page) return false;
  return msync(reinterpret_cast<void *>(first), end - first, MS_ASYNC) == 0;
}

/* Every allocation by its first address. */
class Memory {
 public:
  static Memory &instance() {
    static Memory *memory = new Memory;
    return *memory;
  }

  int allocate(void **out, size_t size, MemoryType type, unsigned int flags) {
    if (out == nullptr) return kCudaInvalidValue;
    *out = nullptr;
    if (size == 0) return kCudaSuccess;
    const int device = current_device();
    std::unique_lock<std::shared_mutex> lock(mutex_);
    if (type != MemoryType::Host && size > device_memory() - std::min(used_[device], device_memory())) {
      return kCudaMemoryAllocation;
    }
    void *pointer = nullptr;
    if (size > device_memory() || posix_memalign(&pointer, kAlignment, size) != 0) return kCudaMemoryAllocation;
    std::unique_ptr<void, decltype(&std::free)> memory(pointer, &std::free);
    allocations_[reinterpret_cast<uintptr_t>(pointer)] = {size, type, device, false, flags};
    if (type != MemoryType::Host) used_[device] += size;
    *out = memory.release();
    return kCudaSuccess;
  }

  int release(void *pointer, bool host) {
    if (pointer == nullptr) return kCudaSuccess;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    auto found = allocations_.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == allocations_.end() || found->second.registered) return kCudaInvalidValue;
    if ((found->second.type == MemoryType::Host) != host) return kCudaInvalidValue;
    if (!host) used_[found->second.device] -= found->second.size;
    allocations_.erase(found);
    lock.unlock();
    std::free(pointer);
    return kCudaSuccess;
  }

  int register_host(void *pointer, size_t size, unsigned int flags) {
    if (pointer == nullptr || size == 0 || !is_mapped(pointer, size)) return kCudaInvalidValue;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    auto next = allocations_.lower_bound(address + size);
    if (next != allocations_.begin()) {
      --next;
      if (next->first + next->second.size > address) return kCudaHostMemoryAlreadyRegistered;
    }
    allocations_[address] = {size, MemoryType::Host, current_device(), true, flags};
    return kCudaSuccess;
  }

  int unregister_host(void *pointer) {
    if (pointer == nullptr) return kCudaInvalidValue;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    auto found = allocations_.find(reinterpret_cast<uintptr_t>(pointer));
    if (found == allocations_.end() || !found->second.registered) return kCudaHostMemoryNotRegistered;
    allocations_.erase(found);
    return kCudaSuccess;
  }

  /* The allocation that has the address, with the bytes from there to its end. */
  bool find(const void *pointer, Allocation *allocation, size_t *remaining) {
    const auto address = reinterpret_cast<uintptr_t>(pointer);
    std::shared_lock<std::shared_mutex> lock(mutex_);
    auto next = allocations_.upper_bound(address);
    if (next == allocations_.begin()) return false;
    --next;
    if (address >= next->first + next->second.size) return false;
    *allocation = next->second;
    *remaining = next->first + next->second.size - address;
    return true;
  }

  size_t used(int device) {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    return used_[device];
  }

  void release_device(int device) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    for (auto entry = allocations_.begin(); entry != allocations_.end();) {
      if (entry->second.device == device && entry->second.type != MemoryType::Host) {
        std::free(reinterpret_cast<void *>(entry->first));
        entry = allocations_.erase(entry);
      } else {
        ++entry;
      }
    }
    used_[device] = 0;
  }

 private:
  Memory() : used_(static_cast<size_t>(device_count())) {}

  std::shared_mutex mutex_;
  std::map<uintptr_t, Allocation> allocations_;
  std::vector<size_t> used_;
};

Memory &memory() { return Memory::instance(); }

/* A side that is said to be device memory must be in an allocation; inside one, the bytes must not run beyond it. */
int check_side(const void *pointer, size_t bytes, bool device_side) {
  if (pointer == nullptr) return kCudaInvalidValue;
  Allocation allocation;
  size_t remaining;
  if (!memory().find(pointer, &allocation, &remaining)) return device_side ? kCudaInvalidValue : kCudaSuccess;
  return bytes > remaining ? kCudaInvalidValue : kCudaSuccess;
}

int check_copy(const void *destination, size_t destination_bytes, const void *source, size_t source_bytes, int kind) {
  if (kind < kHostToHost || kind > kDefault) return kCudaInvalidMemcpyDirection;
  const int code = check_side(destination, destination_bytes, kind == kHostToDevice || kind == kDeviceToDevice);
  return code != kCudaSuccess ? code : check_side(source, source_bytes, kind == kDeviceToHost || kind == kDeviceToDevice);
}

/* Bytes from the first to behind the last byte of `height` rows; false when that overflows. */
bool span(size_t pitch, size_t width, size_t height, size_t *bytes) {
  size_t rows;
  if (__builtin_mul_overflow(pitch, height - 1, &rows)) return false;
  return !__builtin_add_overflow(rows, width, bytes);
}

int copy(void *destination, const void *source, size_t count, int kind) {
  if (count == 0) return kind < kHostToHost || kind > kDefault ? kCudaInvalidMemcpyDirection : kCudaSuccess;
  const int code = check_copy(destination, count, source, count, kind);
  if (code == kCudaSuccess) std::memmove(destination, source, count);
  return code;
}

int copy_2d(void *destination, size_t destination_pitch, const void *source, size_t source_pitch, size_t width,
            size_t height, int kind) {
  if (width > destination_pitch || width > source_pitch) return kCudaInvalidPitchValue;
  if (width == 0 || height == 0) return kCudaSuccess;
  size_t destination_bytes, source_bytes;
  if (!span(destination_pitch, width, height, &destination_bytes) || !span(source_pitch, width, height, &source_bytes)) {
    return kCudaInvalidValue;
  }
  const int code = check_copy(destination, destination_bytes, source, source_bytes, kind);
  if (code != kCudaSuccess) return code;
  for (size_t row = 0; row < height; ++row) {
    std::memmove(static_cast<char *>(destination) + row * destination_pitch,
                 static_cast<const char *>(source) + row * source_pitch, width);
  }
  return kCudaSuccess;
}

int set_2d(void *pointer, size_t pitch, int value, size_t width, size_t height) {
  if (width == 0 || height == 0) return kCudaSuccess;
  if (width > pitch) return kCudaInvalidPitchValue;
  size_t bytes;
  if (!span(pitch, width, height, &bytes)) return kCudaInvalidValue;
  const int code = check_side(pointer, bytes, true);
  if (code != kCudaSuccess) return code;
  for (size_t row = 0; row < height; ++row) std::memset(static_cast<char *>(pointer) + row * pitch, value, width);
  return kCudaSuccess;
}

int set(void *pointer, int value, size_t count) { return set_2d(pointer, count, value, count, 1); }

size_t read_device_memory() {
  const char *wanted = std::getenv("CHAGRES_REFERENCE_MEMORY");
  if (wanted != nullptr && *wanted != '\0') {
    char *end = nullptr;
    const unsigned long long bytes = std::strtoull(wanted, &end, 10);
    if (*end == '\0' && bytes > 0) return bytes;
  }
  return static_cast<size_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<size_t>(sysconf(_SC_PAGE_SIZE));
}

}  // namespace

size_t device_memory() {
  static const size_t bytes = read_device_memory();
  return bytes;
}

size_t device_memory_used(int device) { return memory().used(device); }

size_t accessible_bytes(const void *pointer) {
  Allocation allocation;
  size_t remaining;
  return memory().find(pointer, &allocation, &remaining) ? remaining : 0;
}

int allocate_device_memory(void **pointer, size_t size) {
  return memory().allocate(pointer, size, MemoryType::Device, 0);
}

int release_device_memory(void *pointer) { return memory().release(pointer, false); }

void free_device_memory(int device) { memory().release_device(device); }

}  // namespace chagres::reference

using namespace chagres::reference;

CHAGRES_EXPORT cudaError_t cudaMalloc(void **pointer, size_t size) try {
  return cuda_status(allocate_device_memory(pointer, size));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t size, const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return cudaMalloc(pointer, size);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMallocManaged(void **pointer, size_t size, unsigned int flags) try {
  if (size == 0 || (flags != 1 && flags != 2)) return cuda_status(kCudaInvalidValue);
  return cuda_status(memory().allocate(pointer, size, MemoryType::Managed, flags));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) try {
  if (pitch == nullptr || width > SIZE_MAX - kAlignment) return cuda_status(kCudaInvalidValue);
  *pitch = (width + kAlignment - 1) / kAlignment * kAlignment;
  size_t bytes;
  if (__builtin_mul_overflow(*pitch, height, &bytes)) return cuda_status(kCudaMemoryAllocation);
  return cudaMalloc(pointer, bytes);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaFree(void *pointer) try {
  return cuda_status(release_device_memory(pointer));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaFreeAsync(void *pointer, const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return cudaFree(pointer);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned int flags) try {
  if (flags > 7) return cuda_status(kCudaInvalidValue);
  return cuda_status(memory().allocate(pointer, size, MemoryType::Host, flags));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMallocHost(void **pointer, size_t size) try {
  return cudaHostAlloc(pointer, size, 0);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaFreeHost(void *pointer) try {
  return cuda_status(memory().release(pointer, true));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned int flags) try {
  if (flags > 15) return cuda_status(kCudaInvalidValue);
  return cuda_status(memory().register_host(pointer, size, flags));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaHostUnregister(void *pointer) try {
  return cuda_status(memory().unregister_host(pointer));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaHostGetDevicePointer(void **device_pointer, void *host_pointer, unsigned int flags) try {
  Allocation allocation;
  size_t remaining;
  if (device_pointer == nullptr || flags != 0 || !memory().find(host_pointer, &allocation, &remaining) ||
      allocation.type != MemoryType::Host) {
    return cuda_status(kCudaInvalidValue);
  }
  *device_pointer = host_pointer;
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaHostGetFlags(unsigned int *flags, void *pointer) try {
  Allocation allocation;
  size_t remaining;
  if (flags == nullptr || !memory().find(pointer, &allocation, &remaining) || allocation.type != MemoryType::Host) {
    return cuda_status(kCudaInvalidValue);
  }
  *flags = allocation.flags;
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes) try {
  if (free_bytes == nullptr || total_bytes == nullptr) return cuda_status(kCudaInvalidValue);
  *total_bytes = device_memory();
  *free_bytes = device_memory() - std::min(device_memory(), device_memory_used(current_device()));
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaPointerGetAttributes(PointerAttributes *attributes, const void *pointer) try {
  if (attributes == nullptr) return cuda_status(kCudaInvalidValue);
  *attributes = PointerAttributes{};
  Allocation allocation;
  size_t remaining;
  if (!memory().find(pointer, &allocation, &remaining)) {
    attributes->device = -2; /* cudaInvalidDeviceId */
    attributes->hostPointer = const_cast<void *>(pointer);
    return kCudaSuccess;
  }
  attributes->type = static_cast<int>(allocation.type);
  attributes->device = allocation.device;
  attributes->devicePointer = const_cast<void *>(pointer);
  if (allocation.type != MemoryType::Device) attributes->hostPointer = const_cast<void *>(pointer);
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemcpy(void *destination, const void *source, size_t count, int kind) try {
  return cuda_status(copy(destination, source, count, kind));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemcpyAsync(void *destination, const void *source, size_t count, int kind,
                                           const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return cudaMemcpy(destination, source, count, kind);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemcpyPeer(void *destination, int destination_device, const void *source,
                                          int source_device, size_t count) try {
  if (!is_device(destination_device) || !is_device(source_device)) return cuda_status(kCudaInvalidDevice);
  return cuda_status(copy(destination, source, count, kDeviceToDevice));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemcpyPeerAsync(void *destination, int destination_device, const void *source,
                                               int source_device, size_t count, const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return cudaMemcpyPeer(destination, destination_device, source, source_device, count);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemcpy2D(void *destination, size_t destination_pitch, const void *source,
                                        size_t source_pitch, size_t width, size_t height, int kind) try {
  return cuda_status(copy_2d(destination, destination_pitch, source, source_pitch, width, height, kind));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemcpy2DAsync(void *destination, size_t destination_pitch, const void *source,
                                             size_t source_pitch, size_t width, size_t height, int kind,
                                             const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return cudaMemcpy2D(destination, destination_pitch, source, source_pitch, width, height, kind);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemset(void *pointer, int value, size_t count) try {
  return cuda_status(set(pointer, value, count));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemsetAsync(void *pointer, int value, size_t count, const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return cudaMemset(pointer, value, count);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemset2D(void *pointer, size_t pitch, int value, size_t width, size_t height) try {
  return cuda_status(set_2d(pointer, pitch, value, width, height));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMemset2DAsync(void *pointer, size_t pitch, int value, size_t width, size_t height,
                                             const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  return cudaMemset2D(pointer, pitch, value, width, height);
} CHAGRES_CUDA_CATCH

/* Memory of the CUDA runtime: the host's, with a record of every allocation, so that wrong pointers get a code. */
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <shared_mutex>
#include <vector>

#include "cuda/capture.h"

namespace chagres::reference {

namespace {

constexpr size_t kAlignment = 256; /* as cudaMalloc promises */

enum class MemoryType { Unregistered = 0, Host = 1, Device = 2, Managed = 3 };

/* Large memory lies on the system's huge pages where it lets programs ask for them: kernels that go from row to row need
 * an entry of the page table for each row otherwise, and the processor keeps few of them. */
constexpr size_t kHugePage = size_t{2} << 20;

void *allocate_aligned(size_t size) {
  void *pointer = nullptr;
  const bool large = size >= 2 * kHugePage;
  if (posix_memalign(&pointer, large ? kHugePage : kAlignment, size) != 0) return nullptr;
  if (large) madvise(pointer, size / kHugePage * kHugePage, MADV_HUGEPAGE); /* a wish: refused, all works as before */
  return pointer;
}

struct Allocation {
  size_t size;
  MemoryType type;
  int device;
  bool registered; /* by cudaHostRegister: not ours to free */
  unsigned int flags;
  bool counted; /* addresses of which the system has promised no memory */
};

/* Addresses for more than the machine has: a page takes memory once something is written there. */
void *map_unpromised(size_t size) {
  void *pointer = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return pointer == MAP_FAILED ? nullptr : pointer;
}

void give_back(void *pointer, const Allocation &allocation) {
  if (allocation.counted) munmap(pointer, allocation.size);
  else std::free(pointer);
}

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
    if (thread_counts) {
      void *unpromised = map_unpromised(size);
      if (unpromised == nullptr) return kCudaMemoryAllocation;
      allocations_[reinterpret_cast<uintptr_t>(unpromised)] = {size, type, device, false, flags, true};
      *out = unpromised;
      return kCudaSuccess;
    }
    if (type != MemoryType::Host && size > device_memory() - std::min(used_[device], device_memory())) {
      return kCudaMemoryAllocation;
    }
    if (size > device_memory()) return kCudaMemoryAllocation;
    void *pointer = allocate_aligned(size);
    if (pointer == nullptr) return kCudaMemoryAllocation;
    std::unique_ptr<void, decltype(&std::free)> memory(pointer, &std::free);
    allocations_[reinterpret_cast<uintptr_t>(pointer)] = {size, type, device, false, flags, false};
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
    const Allocation released = found->second;
    if (!host && !released.counted) used_[released.device] -= released.size;
    allocations_.erase(found);
    lock.unlock();
    give_back(pointer, released);
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
    allocations_[address] = {size, MemoryType::Host, current_device(), true, flags, false};
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
        give_back(reinterpret_cast<void *>(entry->first), entry->second);
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
  if (const int code = refuse_while_capturing(); code != kCudaSuccess) return cuda_status(code);
  return cuda_status(allocate_device_memory(pointer, size));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMallocAsync(void **pointer, size_t size, const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  if (const int code = refuse_while_capturing(stream); code != kCudaSuccess) return cuda_status(code);
  return cuda_status(allocate_device_memory(pointer, size));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMallocManaged(void **pointer, size_t size, unsigned int flags) try {
  if (const int code = refuse_while_capturing(); code != kCudaSuccess) return cuda_status(code);
  if (size == 0 || (flags != 1 && flags != 2)) return cuda_status(kCudaInvalidValue);
  return cuda_status(memory().allocate(pointer, size, MemoryType::Managed, flags));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMallocPitch(void **pointer, size_t *pitch, size_t width, size_t height) try {
  if (pitch == nullptr || width > SIZE_MAX - kAlignment) return cuda_status(kCudaInvalidValue);
  const size_t row = (width + kAlignment - 1) / kAlignment * kAlignment;
  size_t bytes;
  if (__builtin_mul_overflow(row, height, &bytes)) return cuda_status(kCudaMemoryAllocation);
  const cudaError_t status = cudaMalloc(pointer, bytes);
  if (status == kCudaSuccess) *pitch = row;
  return status;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaFree(void *pointer) try {
  if (const int code = refuse_while_capturing(); code != kCudaSuccess) return cuda_status(code);
  return cuda_status(release_device_memory(pointer));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaFreeAsync(void *pointer, const void *stream) try {
  if (!is_stream(stream)) return cuda_status(kCudaInvalidResourceHandle);
  if (const int code = refuse_while_capturing(stream); code != kCudaSuccess) return cuda_status(code);
  return cuda_status(release_device_memory(pointer));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaHostAlloc(void **pointer, size_t size, unsigned int flags) try {
  if (const int code = refuse_while_capturing(); code != kCudaSuccess) return cuda_status(code);
  if (flags > 7) return cuda_status(kCudaInvalidValue);
  return cuda_status(memory().allocate(pointer, size, MemoryType::Host, flags));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaMallocHost(void **pointer, size_t size) try {
  return cudaHostAlloc(pointer, size, 0);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaFreeHost(void *pointer) try {
  if (const int code = refuse_while_capturing(); code != kCudaSuccess) return cuda_status(code);
  return cuda_status(memory().release(pointer, true));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaHostRegister(void *pointer, size_t size, unsigned int flags) try {
  if (const int code = refuse_while_capturing(); code != kCudaSuccess) return cuda_status(code);
  if (flags > 15) return cuda_status(kCudaInvalidValue);
  return cuda_status(memory().register_host(pointer, size, flags));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaHostUnregister(void *pointer) try {
  if (const int code = refuse_while_capturing(); code != kCudaSuccess) return cuda_status(code);
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

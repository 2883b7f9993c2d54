/* Tensor handles: slots of a process-wide pool. */
#include "te/tensor_pool.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <mutex>
#include <vector>

namespace chagres::reference {

namespace {

constexpr size_t kPackSize = 10;
constexpr size_t kChunk = 1024; /* slots allocated at a time; a slot never moves */
constexpr size_t kUpstreamRecordBytes = 1032; /* Transformer Engine's pool is measured in MiB of records this big */

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

}  // namespace

NVTEBasicTensor absent_record() { return {nullptr, kNVTEFloat32, make_shape({0})}; }

const Tensor &absent_tensor() {
  static const Tensor tensor = fresh_tensor(NVTE_DELAYED_TENSOR_SCALING);
  return tensor;
}

Tensor *find_tensor(NVTETensor handle) {
  Slot *slot = Pool::instance().find(reinterpret_cast<uintptr_t>(handle));
  return slot == nullptr ? nullptr : &slot->tensor;
}

Tensor &living_tensor(NVTETensor handle, const char *argument, Caller caller) {
  Tensor *found = find_tensor(handle);
  if (found == nullptr) {
    fail(caller, text("Invalid tensor. Argument \"", argument, "\" must be a living tensor handle, got ",
                      reinterpret_cast<uintptr_t>(handle),
                      handle == nullptr ? "" : ", which was destroyed or never created"));
  }
  return *found;
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

void nvte_tensor_pack_create(NVTETensorPack *pack) {
  CHAGRES_CHECK(pack != nullptr, "Argument \"pack\" must point to an NVTETensorPack, got NULL");
  Pool::instance().create(NVTE_DELAYED_TENSOR_SCALING, pack->tensors, kPackSize, Caller::here());
}

void nvte_tensor_pack_destroy(NVTETensorPack *pack) {
  CHAGRES_CHECK(pack != nullptr, "Argument \"pack\" must point to an NVTETensorPack, got NULL");
  Pool::instance().destroy(pack->tensors, kPackSize, Caller::here());
}

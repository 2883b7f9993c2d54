#include "handles.hpp"

#include <mutex>
#include <stdexcept>
#include <string>

namespace chagres::guard {

std::atomic<std::uint8_t> tensor_slots[2][slot_count];

namespace {

constexpr const char *names[] = {
    "NVTETensor",
    "NVTEGroupedTensor",
    "NVTEQuantizationConfig",
    "NVTEMatmulConfig",
    "NVTEGroupedMatmulConfig",
    "NVTEFusedAttnConfig",
    "NVTEFusedAttnFwdParams",
    "NVTEFusedAttnBwdParams",
    "NVTECommGemmCtx",
    "NVTECusolverMpCtx",
};
static_assert(sizeof(names) / sizeof(names[0]) == static_cast<std::size_t>(Kind::count));

/* Open addressing with linear probing. Readers take no lock: a cell goes from empty to a value, then between the value
 * and removed; it becomes empty again only where the next cell is empty, so that no probe sequence is cut. */
class AddressTable {
 public:
  bool contains(std::uintptr_t value) const {
    for (std::size_t i = 0, cell = home(value); i < capacity; ++i, cell = next(cell)) {
      const std::uintptr_t found = cells[cell].load(std::memory_order_acquire);
      if (found == value) return true;
      if (found == empty) return false;
    }
    return false;
  }

  bool add(std::uintptr_t value) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (std::size_t i = 0, cell = home(value); i < capacity; ++i, cell = next(cell)) {
      const std::uintptr_t found = cells[cell].load(std::memory_order_relaxed);
      if (found == empty || found == removed) {
        cells[cell].store(value, std::memory_order_release);
        return true;
      }
    }
    return false;
  }

  bool remove(std::uintptr_t value) {
    const std::lock_guard<std::mutex> lock(mutex);
    for (std::size_t i = 0, cell = home(value); i < capacity; ++i, cell = next(cell)) {
      const std::uintptr_t found = cells[cell].load(std::memory_order_relaxed);
      if (found == empty) return false;
      if (found == value) {
        cells[cell].store(removed, std::memory_order_release);
        trim(cell);
        return true;
      }
    }
    return false;
  }

 private:
  static constexpr std::size_t capacity = std::size_t{1} << 16;
  static constexpr std::uintptr_t empty = 0;
  static constexpr std::uintptr_t removed = 1;

  static std::size_t home(std::uintptr_t value) { return ((value >> 4) * 0x9E3779B97F4A7C15u) >> 48; }
  static std::size_t next(std::size_t cell) { return (cell + 1) % capacity; }
  static std::size_t previous(std::size_t cell) { return (cell + capacity - 1) % capacity; }

  void trim(std::size_t cell) {
    if (cells[next(cell)].load(std::memory_order_relaxed) != empty) return;
    while (cells[cell].load(std::memory_order_relaxed) == removed) {
      cells[cell].store(empty, std::memory_order_release);
      cell = previous(cell);
    }
  }

  std::mutex mutex;
  std::atomic<std::uintptr_t> cells[capacity] = {};
};

AddressTable tables[static_cast<std::size_t>(Kind::count)];

bool is_slot(Kind kind, std::uintptr_t value) { return kind <= Kind::grouped_tensor && value < slot_count; }

}  // namespace

const char *name_of(Kind kind) { return names[static_cast<std::size_t>(kind)]; }

bool is_live_address(Kind kind, std::uintptr_t value) {
  return value >= slot_count && tables[static_cast<std::size_t>(kind)].contains(value);
}

void add(Kind kind, void *handle) {
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  if (is_slot(kind, value)) {
    tensor_slots[static_cast<unsigned>(kind)][value].store(value != 0, std::memory_order_relaxed);
  } else if (value < slot_count || !tables[static_cast<std::size_t>(kind)].add(value)) {
    throw std::runtime_error(std::string("the guard cannot keep one more ") + name_of(kind) + "; destroy some");
  }
}

bool remove(Kind kind, void *handle) {
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  if (is_slot(kind, value)) {
    return tensor_slots[static_cast<unsigned>(kind)][value].exchange(0, std::memory_order_relaxed) != 0;
  }
  return value >= slot_count && tables[static_cast<std::size_t>(kind)].remove(value);
}

}  // namespace chagres::guard

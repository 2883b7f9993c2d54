/* Operations: matrix products, by cuBLASLt. */
#include <array>
#include <atomic>
#include <memory>
#include <mutex>

#include "kernel.h"
#include "matrix_product_plan.h"
#include "matrix_product_store.h"

using namespace chagres::ops;

namespace {

constexpr const char *kFunction = "ops_matrix_product";
constexpr size_t kSlots = 8192; /* a power of 2 */
constexpr size_t kMostPlans = kSlots / 2;

/* The plans of a device, found by hash: entries are never changed or removed. */
class PlanTable {
 public:
  Plan *find(const PlanKey &key) const {
    for (size_t slot = slot_of(key);; slot = (slot + 1) % kSlots) {
      Plan *plan = slots_[slot].load(std::memory_order_acquire);
      if (plan == nullptr || plan->key() == key) return plan;
    }
  }

  /* Stores the plan and returns it, or an equal one that another thread has just stored. Null when the table is full:
   * the caller still owns the plan. */
  Plan *add(std::unique_ptr<Plan> &plan) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (Plan *present = find(plan->key())) return present;
    if (count_ == kMostPlans) return nullptr;
    size_t slot = slot_of(plan->key());
    while (slots_[slot].load(std::memory_order_relaxed) != nullptr) slot = (slot + 1) % kSlots;
    ++count_;
    Plan *added = plan.release();
    slots_[slot].store(added, std::memory_order_release);
    return added;
  }

 private:
  static size_t slot_of(const PlanKey &key) {
    std::array<uint64_t, sizeof(PlanKey) / sizeof(uint64_t)> words;
    memcpy(words.data(), &key, sizeof key);
    uint64_t hash = 0;
    for (uint64_t word : words) hash = (hash ^ word ^ hash >> 29) * 0x9e3779b97f4a7c15;
    return static_cast<size_t>(hash >> 40) % kSlots;
  }

  std::array<std::atomic<Plan *>, kSlots> slots_ = {};
  size_t count_ = 0;
  std::mutex mutex_;
};

struct DevicePlans {
  DevicePlans(cublas::Handle made, const std::string &device, size_t version)
      : handle(made), store(libraries()->cache_directory, device, version) {}

  cublas::Handle handle;
  PlanStore store;
  PlanTable table;
};

std::atomic<DevicePlans *> devices[kDevices]; /* never freed: products run until the process ends */
std::mutex devices_mutex;

/* Name and multiprocessors, or what CUDA refused. */
int describe_device(const cublas::Library &library, int device, std::string &text) {
  alignas(16) char properties[8192] = {}; /* cudaDeviceProp, which begins with char name[256], and room for later ones */
  int multiprocessors = 0;
  int error = library.device_properties(properties, device);
  if (error == 0) error = libraries()->cuda.device_get_attribute(&multiprocessors, kMultiprocessorCount, device);
  properties[255] = '\0';
  text = properties + format(", %d multiprocessors", multiprocessors);
  return error;
}

/* The plans of the current device; null, with the text set and *status, when cuBLASLt cannot be had there. */
DevicePlans *current_plans(const cublas::Library &library, int &status) {
  int device = 0;
  status = current_device(kFunction, device);
  if (status != OPS_SUCCESS) return nullptr;
  if (DevicePlans *present = devices[device].load(std::memory_order_acquire)) return present;
  std::lock_guard<std::mutex> lock(devices_mutex);
  if (DevicePlans *present = devices[device].load(std::memory_order_acquire)) return present;
  std::string text;
  int error = describe_device(library, device, text);
  if (error != 0) {
    status = cuda_failure(kFunction, "cudaGetDeviceProperties", error);
    return nullptr;
  }
  cublas::Handle handle = nullptr;
  error = library.create(&handle);
  if (error != 0) {
    status = cublas::failure(kFunction, library, "cublasLtCreate", error);
    return nullptr;
  }
  auto *made = new DevicePlans(handle, text, library.version());
  devices[device].store(made, std::memory_order_release);
  return made;
}

}  // namespace

int ops_matrix_product(const OpsMatrixProduct *product, OpsStream stream) try {
  int status = check_matrix_product(product);
  if (status != OPS_SUCCESS || is_empty(*product)) return status;
  const cublas::Library *library = cublas::library(kFunction, status);
  if (library == nullptr) return status;
  DevicePlans *plans = current_plans(*library, status);
  if (plans == nullptr) return status;
  const PlanSite site = {kFunction, *library, plans->handle, plans->store};
  if (Plan *plan = plans->table.find(key_of(*product))) return plan->run(site, *product, stream);
  std::unique_ptr<Plan> made = Plan::make(site, *product, status);
  if (made == nullptr) return status;
  Plan *added = plans->table.add(made);
  return (added != nullptr ? added : made.get())->run(site, *product, stream);
} OPS_CATCH

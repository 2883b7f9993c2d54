/* Memory that NCCL hands out, registered buffers and windows, and what a communicator may be configured to. */
#include <algorithm>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <set>

#include "nccl/nccl.h"

namespace chagres::reference {

namespace {

constexpr unsigned int kConfigMagic = 0xcafebeef;
constexpr int kWindowSymmetric = 1;

/* ncclConfig_t of NCCL 2.28.9. */
struct Config {
  size_t size;
  unsigned int magic, version;
  int blocking, cga_cluster_size, min_ctas, max_ctas;
  const char *net_name;
  int split_share, traffic_class;
  const char *comm_name;
  int collnet_enable, cta_policy, shrink_share, nvls_ctas, channels_per_net_peer, nvlink_centric_sched;
};
static_assert(sizeof(Config) == 80, "size of ncclConfig_t in NCCL 2.28.9");

bool within(int value, int least, int most) { return value == INT_MIN || (value >= least && value <= most); }

/* Addresses that ncclMemAlloc has handed out. */
std::mutex memory_mutex;
std::set<const void *> &memory() {
  static auto *addresses = new std::set<const void *>;
  return *addresses;
}

/* Returns where the memory begins that ncclMemAlloc has handed out and that has these bytes; null where there is none. */
const void *from_nccl(const void *address, size_t size) {
  std::lock_guard<std::mutex> lock(memory_mutex);
  const auto next = memory().upper_bound(address);
  if (next == memory().begin()) return nullptr;
  const void *first = *std::prev(next);
  const auto before = static_cast<size_t>(static_cast<const char *>(address) - static_cast<const char *>(first));
  return accessible_bytes(first) >= before + size ? first : nullptr;
}

/* A registered range; `comm` is only compared. */
struct Registered {
  const void *comm;
};
Objects<Registered> &registered() {
  static auto *objects = new Objects<Registered>;
  return *objects;
}
/* As where ranks cannot reach each other's memory. */
bool has_windows() {
  const char *wanted = std::getenv("NCCL_WIN_ENABLE");
  return wanted == nullptr || std::strcmp(wanted, "0") != 0;
}

int deregister(const char *function, const void *comm, const void *handle) {
  Registered *found = registered().find(handle);
  if (comms().find(comm) == nullptr) {
    return refuse(kNcclInvalidArgument, function, ": argument \"comm\" is no living communicator");
  }
  if (found == nullptr || found->comm != comm) {
    return refuse(kNcclInvalidArgument, function, ": nothing is registered with this communicator under the handle");
  }
  registered().remove(handle);
  return kNcclSuccess;
}

int check_registration(const char *function, const void *comm, const void *buffer, size_t size, const void *out) {
  if (comms().find(comm) == nullptr) {
    return refuse(kNcclInvalidArgument, function, ": argument \"comm\" is no living communicator");
  }
  if (out == nullptr) return refuse(kNcclInvalidArgument, function, ": the pointer for the answer is NULL");
  if (size == 0 || accessible_bytes(buffer) < size) {
    return refuse(kNcclInvalidArgument, function, ": argument \"buff\" must be ", size, " bytes of device memory");
  }
  return kNcclSuccess;
}

void *register_buffer(const void *comm) {
  Registered *made = registered().add();
  made->comm = comm;
  return made;
}

/* As NCCL 2.28.9, answers success for a call that is in progress; the window is written when ncclCommGetAsyncError says that it is done. */
int hand_over(Comm *owner, void **window, void *made) {
  if (owner->blocking) {
    *window = made;
  } else {
    owner->results.emplace_back(window, made);
    in_progress(owner, Outcome{});
  }
  return kNcclSuccess;
}

constexpr size_t kWindowBytes = 256;
constexpr uintptr_t kWindowAlignment = 4096; /* NCCL_WIN_REQUIRED_ALIGNMENT, from the beginning of what ncclMemAlloc gave */

}  // namespace

WindowPlace window_place(const Comm &comm, const void *address) {
  const auto next = comm.windows.upper_bound(address);
  if (next == comm.windows.begin()) return {};
  const auto &[first, window] = *std::prev(next);
  const auto offset = static_cast<size_t>(static_cast<const char *>(address) - static_cast<const char *>(first));
  return offset < window.size ? WindowPlace{window.number, offset} : WindowPlace{};
}

Outcome check_config(const void *given) {
  if (given == nullptr) return {};
  const auto &config = *static_cast<const Config *>(given);
  if (config.magic != kConfigMagic || config.size < sizeof(Config)) {
    return {kNcclInvalidArgument, "argument \"config\" was not initialized with NCCL_CONFIG_INITIALIZER of NCCL 2.28"};
  }
  if (!within(config.blocking, 0, 1)) {
    return {kNcclInvalidArgument, text("argument \"config\": blocking must be 0 or 1, got ", config.blocking)};
  }
  const int least = config.min_ctas, most = config.max_ctas;
  if (!within(least, 1, INT_MAX) || !within(most, 1, INT_MAX) || (least != INT_MIN && most != INT_MIN && least > most)) {
    return {kNcclInvalidArgument,
            text("argument \"config\": minCTAs and maxCTAs must be at least 1 and in order, got ", least, " and ", most)};
  }
  if (!within(config.cta_policy, 0, 2)) {
    return {kNcclInvalidArgument, text("argument \"config\": CTAPolicy must be 0, 1 or 2, got ", config.cta_policy)};
  }
  return {};
}

bool is_blocking(const void *given, bool standard) {
  if (given == nullptr) return standard;
  const int blocking = static_cast<const Config *>(given)->blocking;
  return blocking == INT_MIN ? standard : blocking != 0;
}

}  // namespace chagres::reference

using namespace chagres::reference;

/* Memory for collectives is device memory. */
CHAGRES_EXPORT ncclResult_t ncclMemAlloc(void **pointer, size_t size) try {
  const int code = allocate_device_memory(pointer, size);
  if (code != kCudaSuccess) {
    return refuse(kNcclUnhandledCudaError, "ncclMemAlloc: the CUDA runtime answered ", code, " for ", size, " bytes");
  }
  try {
    std::lock_guard<std::mutex> lock(memory_mutex);
    if (*pointer != nullptr) memory().insert(*pointer);
  } catch (...) {
    release_device_memory(std::exchange(*pointer, nullptr));
    throw;
  }
  return kNcclSuccess;
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclMemFree(void *pointer) try {
  std::lock_guard<std::mutex> lock(memory_mutex);
  const int code = release_device_memory(pointer);
  if (code != kCudaSuccess) return refuse(kNcclUnhandledCudaError, "ncclMemFree: the CUDA runtime answered ", code);
  memory().erase(pointer);
  return kNcclSuccess;
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommRegister(const void *comm, void *buffer, size_t size, void **handle) try {
  const int code = check_registration("ncclCommRegister", comm, buffer, size, handle);
  if (code != kNcclSuccess) return code;
  *handle = register_buffer(comm);
  return kNcclSuccess;
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommDeregister(const void *comm, void *handle) try {
  return deregister("ncclCommDeregister", comm, handle);
} CHAGRES_NCCL_CATCH

/* As NCCL does, answers success without a window for memory that ncclMemAlloc has not handed out, and with a registered buffer in place of a
 * window where there are no windows (NCCL_WIN_ENABLE=0). */
CHAGRES_EXPORT ncclResult_t ncclCommWindowRegister(const void *comm, void *buffer, size_t size, void **window,
                                                   int flags) try {
  const int code = check_registration("ncclCommWindowRegister", comm, buffer, size, window);
  if (code != kNcclSuccess) return code;
  if (flags != 0 && flags != kWindowSymmetric) {
    return refuse(kNcclInvalidArgument, "ncclCommWindowRegister: argument \"winFlags\" must be 0 or 1, got ", flags);
  }
  Comm *owner = comms().find(comm);
  const Outcome ready = check_ready(*owner);
  if (ready.code != kNcclSuccess) return refuse(ready.code, "ncclCommWindowRegister: ", ready.text);
  *window = nullptr;
  if (!has_windows()) return hand_over(owner, window, register_buffer(comm));
  const void *allocated = from_nccl(buffer, size);
  if (allocated == nullptr) {
    /* With several ranks NCCL answers so; where it is not blocking, the communicator has failed for good. */
    if (!owner->blocking) in_progress(owner, {kNcclUnhandledCudaError, "ncclCommWindowRegister: memory that ncclMemAlloc has not handed out"});
    return kNcclSuccess;
  }
  if ((static_cast<const char *>(buffer) - static_cast<const char *>(allocated)) % kWindowAlignment != 0) {
    return refuse(kNcclInvalidArgument, "ncclCommWindowRegister: a window must begin at a multiple of ", kWindowAlignment,
                  " bytes of its memory");
  }
  void *handle;
  const int out = allocate_device_memory(&handle, kWindowBytes);
  if (out != kCudaSuccess) return refuse(kNcclUnhandledCudaError, "ncclCommWindowRegister: the CUDA runtime answered ", out);
  std::shared_ptr<void> owned(handle, [](void *memory) { release_device_memory(memory); });
  owner->windows.emplace(buffer, Window{size, owner->window_count + 1, std::move(owned)});
  ++owner->window_count;
  return hand_over(owner, window, handle);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommWindowDeregister(const void *comm, void *window) try {
  Comm *owner = comms().find(comm);
  if (owner != nullptr) {
    auto &windows = owner->windows;
    const auto found = std::find_if(windows.begin(), windows.end(), [&](const auto &one) { return one.second.handle.get() == window; });
    if (found != windows.end()) {
      windows.erase(found);
      return kNcclSuccess;
    }
  }
  return deregister("ncclCommWindowDeregister", comm, window);
} CHAGRES_NCCL_CATCH

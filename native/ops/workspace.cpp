#include "workspace.h"

#include <atomic>
#include <mutex>

#include "error.h"
#include "kernel.h"

namespace chagres::ops {
namespace {

constexpr int kStreams = 32; /* streams of a device that keep their workspace */

/* Entries below `count` are complete and never change. */
struct DeviceStreams {
  std::atomic<int> count{0};
  OpsStream stream[kStreams];
  void *memory[kStreams];
};

DeviceStreams tables[kDevices];
std::mutex table_mutex;

void *find(const DeviceStreams &table, OpsStream stream) {
  const int count = table.count.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i)
    if (table.stream[i] == stream) return table.memory[i];
  return nullptr;
}

/* Allocates memory that stays, unless another thread just did. Null when the table is full, or there is no memory and
 * *error says so. */
void *add(const CudaRuntime &cuda, DeviceStreams &table, OpsStream stream, int *error) {
  std::lock_guard<std::mutex> lock(table_mutex);
  void *memory = find(table, stream);
  const int count = table.count.load(std::memory_order_relaxed);
  if (memory != nullptr || count == kStreams) return memory;
  *error = cuda.malloc(&memory, kWorkspaceBytes);
  if (*error != 0) return nullptr;
  table.stream[count] = stream;
  table.memory[count] = memory;
  table.count.store(count + 1, std::memory_order_release);
  return memory;
}

}  // namespace

Workspace::Workspace(const char *function, OpsStream stream) : stream_(stream) {
  const OpsStream per_thread_default = reinterpret_cast<OpsStream>(2); /* cudaStreamPerThread */
  int device = 0;
  status_ = current_device(function, device);
  if (status_ != OPS_SUCCESS) return;
  const CudaRuntime &cuda = libraries()->cuda;
  DeviceStreams &table = tables[device];
  int error = 0;
  if (stream != per_thread_default) {
    memory_ = find(table, stream);
    if (memory_ == nullptr) memory_ = add(cuda, table, stream, &error);
    if (error != 0) status_ = cuda_failure(function, "cudaMalloc", error);
    if (memory_ != nullptr || error != 0) return;
  }
  error = cuda.malloc_async(&memory_, kWorkspaceBytes, stream);
  temporary_ = error == 0;
  if (error != 0) status_ = cuda_failure(function, "cudaMallocAsync", error);
}

Workspace::~Workspace() {
  if (temporary_) libraries()->cuda.free_async(memory_, stream_);
}

}  // namespace chagres::ops

#include "workspace.h"

#include <atomic>
#include <mutex>

#include "error.h"
#include "kernel.h"

namespace chagres::ops {
namespace {

/* Entries below `count` are complete and never change. */
struct DeviceStreams {
  std::atomic<int> count{0};
  OpsStream stream[kWorkspaceStreams];
  void *memory[kWorkspaceStreams];
};

DeviceStreams tables[kDevices];
std::mutex table_mutex;

/* The stream's place in the table, or -1. */
int find(const DeviceStreams &table, OpsStream stream) {
  const int count = table.count.load(std::memory_order_acquire);
  for (int i = 0; i < count; ++i)
    if (table.stream[i] == stream) return i;
  return -1;
}

/* Allocates memory that stays, unless another thread just did, and returns its place. -1 when the table is full, or
 * there is no memory and *error says so. */
int add(const CudaRuntime &cuda, DeviceStreams &table, OpsStream stream, int *error) {
  std::lock_guard<std::mutex> lock(table_mutex);
  const int place = find(table, stream);
  const int count = table.count.load(std::memory_order_relaxed);
  if (place >= 0 || count == kWorkspaceStreams) return place;
  void *memory = nullptr;
  *error = cuda.malloc(&memory, kWorkspaceBytes);
  if (*error != 0) return -1;
  table.stream[count] = stream;
  table.memory[count] = memory;
  table.count.store(count + 1, std::memory_order_release);
  return count;
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
    place_ = find(table, stream);
    if (place_ < 0) place_ = add(cuda, table, stream, &error);
    if (place_ >= 0) memory_ = table.memory[place_];
    if (error != 0) status_ = cuda_failure(function, "cudaMalloc", error);
    if (place_ >= 0 || error != 0) return;
  }
  error = cuda.malloc_async(&memory_, kWorkspaceBytes, stream);
  temporary_ = error == 0;
  if (error != 0) status_ = cuda_failure(function, "cudaMallocAsync", error);
}

Workspace::~Workspace() {
  if (temporary_) libraries()->cuda.free_async(memory_, stream_);
}

}  // namespace chagres::ops

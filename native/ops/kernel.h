/*
 * Kernels by name and their launch. A kernel is looked up once a device: after that a launch reads one atomic, takes no
 * lock and allocates nothing, and can be captured in a CUDA graph.
 */
#ifndef CHAGRES_OPS_KERNEL_H
#define CHAGRES_OPS_KERNEL_H

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "arguments.h"
#include "cuda.h"

namespace chagres::ops {

constexpr int kDevices = 64; /* the most devices of a process */
constexpr int kThreads = 256;

/* The calling thread's CUDA device, below kDevices. */
int current_device(const char *function, int &device);

/* The multiprocessors of that device, asked for once a device. */
int multiprocessors_of_device(const char *function, int &count);

/* Put one in static memory for each kernel. */
class Kernel {
 public:
  /* source: its file, "rows.cu". shared_bytes: the most dynamic shared memory that a launch asks for. */
  constexpr Kernel(const char *source, const char *name, int shared_bytes = 0)
      : source_(source), name_(name), shared_bytes_(shared_bytes) {}

  /* The handle on a device; null, with the text set and *status, when it cannot be had. */
  void *on(const char *function, const Libraries &libraries, int device, int &status) {
    void *handle = handles_[device].load(std::memory_order_acquire);
    return handle != nullptr ? handle : load(function, libraries, device, status);
  }

 private:
  void *load(const char *function, const Libraries &libraries, int device, int &status);

  const char *source_;
  const char *name_;
  int shared_bytes_;
  std::atomic<void *> handles_[kDevices] = {};
};

/* The kernels `name`_float32, `name`_float16 and `name`_bfloat16; index with float_index(dtype). */
#define FLOAT_KERNELS(source, name) \
  {{source, name "_float32"}, {source, name "_float16"}, {source, name "_bfloat16"}}

inline int float_index(int dtype) { return dtype - kFloat32; }

/* Whether the pointers suit 16-byte instructions. */
template <class... Pointers>
bool aligned(const Pointers *...pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) | ...) & 15) == 0;
}

struct Grid {
  unsigned x = 1, y = 1;
  unsigned threads = kThreads;
  size_t shared_bytes = 0;
};

/* Blocks for a grid-stride loop over `items`, one item a thread while that is at most kMostBlocks: more would only cost
 * scheduling. 32 blocks for each of the 132 multiprocessors of an H200 are four full waves. */
constexpr int64_t kMostBlocks = 32 * 132;
inline Grid grid_for(int64_t items, int threads_an_item = 1) {
  Grid grid;
  const int64_t wanted = items / (kThreads / threads_an_item) + 1;
  grid.x = static_cast<unsigned>(std::min(wanted, kMostBlocks));
  return grid;
}

int launch_kernel(const char *function, Kernel &kernel, const Grid &grid, void **arguments, OpsStream stream);

/* Enqueues a kernel; the types must be the kernel's own. */
template <class... Types>
int launch(const char *function, Kernel &kernel, const Grid &grid, OpsStream stream, const Types &...values) {
  void *arguments[] = {const_cast<void *>(static_cast<const void *>(&values))...};
  return launch_kernel(function, kernel, grid, arguments, stream);
}

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_KERNEL_H */

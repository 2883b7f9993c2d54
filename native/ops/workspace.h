/* Device memory for partial sums. */
#ifndef CHAGRES_OPS_WORKSPACE_H
#define CHAGRES_OPS_WORKSPACE_H

#include "cuda.h"

namespace chagres::ops {

/* How many streams of a device keep their workspace. */
constexpr int kWorkspaceStreams = 32;

/* The operations cut their sums so that they never need more. The cuts depend on the shape alone: the order of
 * a sum, and so its bits, are the same on every GPU. */
constexpr size_t kWorkspaceBytes = size_t{528} * 64 * 64 * sizeof(float);

/*
 * kWorkspaceBytes of memory that only work on `stream` uses until the object goes. A stream's first use allocates
 * them, later ones find them without a lock; they stay until the process ends: captured graphs point into them.
 * The per-thread default stream, one handle for many streams, and streams past the table's end get memory allocated and
 * freed in stream order instead.
 */
class Workspace {
 public:
  Workspace(const char *function, OpsStream stream);
  ~Workspace();
  Workspace(const Workspace &) = delete;
  Workspace &operator=(const Workspace &) = delete;

  int status() const { return status_; } /* OPS_SUCCESS, or why there is no memory */
  void *memory() const { return memory_; }
  /* The number of the stream among those that keep their workspace, or -1. */
  int place() const { return place_; }
  float *floats() const { return static_cast<float *>(memory_); }

 private:
  OpsStream stream_;
  void *memory_ = nullptr;
  int place_ = -1;
  bool temporary_ = false;
  int status_ = 0;
};

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_WORKSPACE_H */

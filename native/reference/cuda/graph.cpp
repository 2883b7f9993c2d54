/* Graphs of the CUDA runtime: what a stream has captured, and its replay. */
#include "cuda/capture.h"

namespace chagres::reference {

namespace {

using Nodes = std::shared_ptr<const std::vector<Node>>;

struct Graph {
  Nodes nodes;
};

struct Executable {
  Nodes nodes;
};

Objects<Graph> &graphs() {
  static auto *objects = new Objects<Graph>;
  return *objects;
}

Objects<Executable> &executables() {
  static auto *objects = new Objects<Executable>;
  return *objects;
}

/* On launch, device-side launch, use of node priority, upload: those that need nothing of a device's own. */
constexpr unsigned long long kInstantiateFlags = 1 | 2 | 8;

void run(const Nodes &nodes, void *stream) {
  for (const Node &node : *nodes) node.run(stream);
}

int launch(const void *handle, void *stream) {
  const Executable *found = executables().find(handle);
  if (found == nullptr) return kCudaInvalidValue;
  if (!is_stream(stream)) return kCudaInvalidResourceHandle;
  const Nodes nodes = found->nodes;
  if (is_capturing(stream)) {
    record(stream, [nodes](void *into) { run(nodes, into); }, kGraphNode);
    return kCudaSuccess;
  }
  try {
    run(nodes, stream);
  } catch (const std::bad_alloc &) {
    return kCudaMemoryAllocation;
  } catch (const std::exception &refused) {
    keep_launch_failure(refused.what());
    return kCudaLaunchFailure;
  }
  return kCudaSuccess;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

CHAGRES_EXPORT cudaError_t cudaStreamBeginCapture(void *stream, int mode) try {
  return cuda_status(begin_capture(stream, mode));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaStreamEndCapture(void *stream, void **graph) try {
  if (graph == nullptr) return cuda_status(kCudaInvalidValue);
  *graph = nullptr;
  auto nodes = std::make_shared<std::vector<Node>>();
  const int code = end_capture(stream, nodes.get());
  if (code != kCudaSuccess) return cuda_status(code);
  *graph = graphs().add(std::move(nodes));
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaStreamIsCapturing(const void *stream, int *status) try {
  if (status == nullptr) return cuda_status(kCudaInvalidValue);
  CaptureInfo info;
  const int code = capture_info(stream, &info);
  *status = info.status;
  return cuda_status(code);
} CHAGRES_CUDA_CATCH

/* The graph under way and its last nodes have no handles here: null and none. */
CHAGRES_EXPORT cudaError_t cudaStreamGetCaptureInfo(const void *stream, int *status, unsigned long long *id, void **graph,
                                                    const void **dependencies, const void **edges,
                                                    size_t *dependency_count) try {
  if (status == nullptr) return cuda_status(kCudaInvalidValue);
  CaptureInfo info;
  const int code = capture_info(stream, &info);
  *status = info.status;
  if (id != nullptr) *id = info.id;
  if (graph != nullptr) *graph = nullptr;
  if (dependencies != nullptr) *dependencies = nullptr;
  if (edges != nullptr) *edges = nullptr;
  if (dependency_count != nullptr) *dependency_count = 0;
  return cuda_status(code);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(int *mode) try {
  return cuda_status(exchange_capture_mode(mode));
} CHAGRES_CUDA_CATCH

/* Handles of nodes say which is which, and no more: the nodes' own addresses. */
CHAGRES_EXPORT cudaError_t cudaGraphGetNodes(const void *graph, const void **nodes, size_t *count) try {
  const Graph *found = graphs().find(graph);
  if (found == nullptr || count == nullptr) return cuda_status(kCudaInvalidValue);
  const std::vector<Node> &all = *found->nodes;
  if (nodes != nullptr) {
    for (size_t i = 0; i < *count; ++i) nodes[i] = i < all.size() ? &all[i] : nullptr;
    *count = std::min(*count, all.size());
  } else {
    *count = all.size();
  }
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaGraphNodeGetType(const void *node, int *type) try {
  if (type == nullptr) return cuda_status(kCudaInvalidValue);
  bool known = false;
  graphs().each([&](const Graph &graph) {
    for (const Node &one : *graph.nodes) {
      if (&one != node) continue;
      *type = one.type;
      known = true;
    }
  });
  return cuda_status(known ? kCudaSuccess : kCudaInvalidValue);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaGraphDestroy(void *graph) try {
  return cuda_status(graphs().remove(graph) ? kCudaSuccess : kCudaInvalidValue);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaGraphInstantiate(void **executable, const void *graph, unsigned long long flags) try {
  if (executable == nullptr) return cuda_status(kCudaInvalidValue);
  const Graph *found = graphs().find(graph);
  if (found == nullptr || (flags & ~kInstantiateFlags) != 0) return cuda_status(kCudaInvalidValue);
  *executable = executables().add(found->nodes);
  return kCudaSuccess;
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaGraphInstantiateWithFlags(void **executable, const void *graph,
                                                         unsigned long long flags) try {
  return cudaGraphInstantiate(executable, graph, flags);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaGraphUpload(const void *executable, void *stream) try {
  if (executables().find(executable) == nullptr) return cuda_status(kCudaInvalidValue);
  return cuda_status(is_stream(stream) ? kCudaSuccess : kCudaInvalidResourceHandle);
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaGraphLaunch(const void *executable, void *stream) try {
  return cuda_status(launch(executable, stream));
} CHAGRES_CUDA_CATCH

CHAGRES_EXPORT cudaError_t cudaGraphExecDestroy(void *executable) try {
  return cuda_status(executables().remove(executable) ? kCudaSuccess : kCudaInvalidValue);
} CHAGRES_CUDA_CATCH

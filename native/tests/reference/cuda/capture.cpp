/* Stream capture and graphs: what is recorded, in which order, what a replay reads, and what a capture forbids. */
#include <string>
#include <thread>

#include "check.h"
#include "cuda/cuda.h"

extern "C" {
const char *cudaGetErrorString(int);
int cudaMalloc(void **, size_t);
int cudaFree(void *);
int cudaMemcpy(void *, const void *, size_t, int);
int cudaMemcpyAsync(void *, const void *, size_t, int, void *);
int cudaMemsetAsync(void *, int, size_t, void *);
int cudaDeviceSynchronize(void);
int cudaStreamCreate(void **);
int cudaStreamCreateWithFlags(void **, unsigned);
int cudaStreamDestroy(void *);
int cudaStreamSynchronize(void *);
int cudaStreamQuery(void *);
int cudaStreamWaitEvent(void *, void *, unsigned);
int cudaStreamBeginCapture(void *, int);
int cudaStreamEndCapture(void *, void **);
int cudaStreamIsCapturing(void *, int *);
int cudaStreamGetCaptureInfo(void *, int *, unsigned long long *, void **, void **, void **, size_t *);
int cudaThreadExchangeStreamCaptureMode(int *);
int cudaLaunchHostFunc(void *, void (*)(void *), void *);
int cudaGraphGetNodes(void *, void **, size_t *);
int cudaGraphDestroy(void *);
int cudaGraphInstantiate(void **, void *, unsigned long long);
int cudaGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cudaGraphUpload(void *, void *);
int cudaGraphLaunch(void *, void *);
int cudaGraphExecDestroy(void *);
int cudaEventCreate(void **);
int cudaEventDestroy(void *);
int cudaEventRecord(void *, void *);
int cudaEventRecordWithFlags(void *, void *, unsigned);
int cudaEventQuery(void *);
int cudaEventSynchronize(void *);
}

namespace {

using check::Array;

constexpr int kThreadLocal = 1, kRelaxed = 2, kInside = 3;

/* A non-blocking stream. */
struct Stream {
  explicit Stream(unsigned flags = 1) { EXPECT_EQUAL(cudaStreamCreateWithFlags(&handle, flags), 0); }
  Stream(const Stream &) = delete;
  ~Stream() { cudaStreamDestroy(handle); }
  operator void *() const { return handle; }
  cudaStream_t te() const { return static_cast<cudaStream_t>(handle); }
  OpsStream ops() const { return static_cast<OpsStream>(handle); }
  int status() const {
    int status = -1;
    EXPECT_EQUAL(cudaStreamIsCapturing(handle, &status), 0);
    return status;
  }
  void *handle = nullptr;
};

struct Event {
  Event() { EXPECT_EQUAL(cudaEventCreate(&handle), 0); }
  Event(const Event &) = delete;
  ~Event() { cudaEventDestroy(handle); }
  operator void *() const { return handle; }
  void *handle = nullptr;
};

/* Captures what `body` enqueues, instantiates it and destroys the graph. */
struct Graph {
  template <class Body>
  Graph(const Stream &stream, Body &&body) {
    EXPECT_EQUAL(cudaStreamBeginCapture(stream, kThreadLocal), 0);
    body();
    void *graph = nullptr;
    EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 0);
    EXPECT_EQUAL(cudaGraphGetNodes(graph, nullptr, &nodes), 0);
    EXPECT_EQUAL(cudaGraphInstantiate(&executable, graph, 0), 0);
    EXPECT_EQUAL(cudaGraphDestroy(graph), 0);
  }
  Graph(const Graph &) = delete;
  ~Graph() { EXPECT_EQUAL(cudaGraphExecDestroy(executable), 0); }
  int launch(void *stream) const { return cudaGraphLaunch(executable, stream); }
  size_t nodes = 0;
  void *executable = nullptr;
};

/* The code with which a capture ends in which `body` did something wrong; `expected` is what `body` answered. */
template <class Body>
void expect_invalidated(int expected, Body &&body, const char *what) {
  Stream stream;
  EXPECT_EQUAL(cudaStreamBeginCapture(stream, 0), 0);
  const int code = body(stream);
  if (code != expected) check::report(__FILE__, __LINE__, what, ": expected ", expected, ", got ", code);
  EXPECT_EQUAL(stream.status(), 2);
  void *graph = &stream;
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 901);
  EXPECT(graph == nullptr);
  EXPECT_EQUAL(stream.status(), 0);
  EXPECT_EQUAL(cudaStreamSynchronize(stream), 0);
}

#define EXPECT_INVALIDATED(code, call) expect_invalidated(code, [&](const Stream &stream) { return (void)stream, call; }, #call)

}  // namespace

TEST(records_and_replays_in_order) {
  Stream stream, other;
  Array x({4}, kNVTEFloat32), y({4}, kNVTEFloat32);
  x.fill(1);
  y.fill(7);
  EXPECT_EQUAL(stream.status(), 0);
  Graph graph(stream, [&] {
    EXPECT_EQUAL(stream.status(), 1);
    EXPECT_EQUAL(ops_add(x.data(), x.data(), y.data(), 4, kNVTEFloat32, stream.ops()), 0);     /* y = 2 x */
    EXPECT_EQUAL(ops_add(y.data(), x.data(), y.data(), 4, kNVTEFloat32, stream.ops()), 0);     /* y = 3 x */
    EXPECT_EQUAL(cudaMemcpyAsync(x.data(), y.data(), 16, kInside, stream), 0);                /* x = 3 x */
    EXPECT_EQUAL(ops_add(x.data(), x.data(), y.data(), 4, kNVTEFloat32, other.ops()), 0);      /* at once */
    EXPECT_EQUAL(y.get(0), 2.0);
    EXPECT_EQUAL(x.get(0), 1.0);
  });
  EXPECT_EQUAL(graph.nodes, size_t{3});
  EXPECT_EQUAL(cudaGraphUpload(graph.executable, stream), 0);
  EXPECT_EQUAL(graph.launch(stream), 0);
  EXPECT_EQUAL(x.get(3), 3.0);
  EXPECT_EQUAL(graph.launch(other), 0);
  EXPECT_EQUAL(y.get(3), 9.0);
  x.fill(10); /* what lies in the buffers is read at each launch */
  EXPECT_EQUAL(graph.launch(stream), 0);
  EXPECT_EQUAL(x.get(0), 30.0);
}

TEST(copies_arguments_by_value) {
  Stream stream;
  Array y({2}, kNVTEFloat32), other({2}, kNVTEFloat32), product({2, 2}, kNVTEFloat32);
  y.fill(0);
  other.fill(0);
  float host[2] = {3, 4}, alpha = 2, beta = 0;
  Array a({2, 2}, kNVTEFloat32);
  for (size_t i = 0; i < 4; ++i) a.set(i, i == 0 || i == 3 ? 1 : 0);
  check::Unset workspace;
  Array masked({2}, kNVTEFloat32), gelu({2}, kNVTEFloat32);
  masked.fill(1);
  auto handle = std::make_unique<Array>(std::vector<size_t>{2}, kNVTEFloat32);
  Graph graph(stream, [&] {
    nvte_copy_host_to_device_via_kernel(host, y.data(), 8, stream.te());
    nvte_cublas_gemm_v2(0, 0, &alpha, a, a, &beta, product, product, workspace, nullptr, stream.te());
    /* The handle points elsewhere afterwards, as handles do that are used again and again. */
    handle->record(kNVTERowwiseData, masked.data(), kNVTEFloat32, {2});
    nvte_relu(*handle, gelu, stream.te());
    handle->record(kNVTERowwiseData, other.data(), kNVTEFloat32, {2});
  });
  handle.reset();
  host[0] = 100;
  alpha = 50;
  if (graph.launch(stream) != 0) check::report(__FILE__, __LINE__, cudaGetErrorString(719));
  EXPECT_CLOSE(y.values(), (std::vector<double>{3, 4}), 0, 0);
  EXPECT_CLOSE(product.values(), (std::vector<double>{2, 0, 0, 2}), 0, 0);
  EXPECT_CLOSE(gelu.values(), (std::vector<double>{1, 1}), 0, 0);
}

TEST(lists_of_tensors_are_kept) {
  Stream stream;
  Array noop({1}, kNVTEInt32), x({3}, kNVTEFloat32), y({3}, kNVTEFloat32), scale({1}, kNVTEFloat32);
  noop.fill(0);
  x.fill(2);
  scale.fill(5);
  {
    NVTETensor first[] = {x}, second[] = {y};
    NVTETensor *lists[] = {first, second};
    EXPECT_EQUAL(cudaStreamBeginCapture(stream, 0), 0);
    nvte_multi_tensor_scale_tensor_cuda(1024, noop, lists, 2, 1, scale, stream.te());
    first[0] = nullptr;
    lists[1] = nullptr;
  }
  void *graph = nullptr, *executable = nullptr;
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 0);
  EXPECT_EQUAL(cudaGraphInstantiateWithFlags(&executable, graph, 1), 0);
  EXPECT_EQUAL(cudaGraphDestroy(graph), 0);
  for (const double factor : {5.0, 7.0}) {
    scale.fill(factor);
    EXPECT_EQUAL(cudaGraphLaunch(executable, stream), 0);
    EXPECT_CLOSE(y.values(), std::vector<double>(3, 2 * factor), 0, 0);
  }
  EXPECT_EQUAL(cudaGraphExecDestroy(executable), 0);
}

TEST(asking_for_a_workspace_is_not_recorded) {
  Stream stream;
  Array x({2, 8}, kNVTEFloat32), gamma({8}, kNVTEFloat32), beta({8}, kNVTEFloat32), y({2, 8}, kNVTEFloat32);
  Array mean({2}, kNVTEFloat32), inverse({2}, kNVTEFloat32);
  x.normal();
  gamma.fill(1);
  beta.fill(0);
  check::Unset query;
  const auto call = [&](NVTETensor workspace) {
    nvte_layernorm_fwd(x, gamma, beta, 1e-5f, y, mean, inverse, workspace, 1, false, stream.te());
  };
  Graph asked(stream, [&] { call(query); });
  EXPECT_EQUAL(asked.nodes, size_t{0});
  const NVTEShape shape = nvte_tensor_shape(query);
  Array workspace(std::vector<size_t>(shape.data, shape.data + shape.ndim), nvte_tensor_type(query));
  Graph graph(stream, [&] { call(workspace); });
  EXPECT_EQUAL(graph.nodes, size_t{1});
  EXPECT_EQUAL(graph.launch(stream), 0);
  double sum = 0;
  for (const double value : y.values()) sum += value;
  EXPECT(check::close(sum, 0, 0, 1e-4));
}

TEST(what_waits_or_allocates_is_refused) {
  Event recorded;
  EXPECT_EQUAL(cudaEventRecord(recorded, nullptr), 0);
  void *memory = nullptr, *freed = nullptr;
  EXPECT_EQUAL(cudaMalloc(&freed, 64), 0);
  char bytes[8] = {};
  EXPECT_INVALIDATED(900, cudaStreamSynchronize(stream));
  EXPECT_INVALIDATED(900, cudaStreamQuery(stream));
  EXPECT_INVALIDATED(900, cudaDeviceSynchronize());
  EXPECT_INVALIDATED(900, cudaMalloc(&memory, 64));
  EXPECT_INVALIDATED(900, cudaFree(freed));
  EXPECT_INVALIDATED(900, cudaMemcpy(freed, bytes, 8, 1));
  EXPECT_INVALIDATED(900, cudaEventQuery(recorded));
  EXPECT_INVALIDATED(900, cudaEventSynchronize(recorded));
  EXPECT_INVALIDATED(905, cudaStreamWaitEvent(stream, recorded, 0));
  EXPECT_EQUAL(cudaFree(freed), 0);
  EXPECT_EQUAL(std::string(cudaGetErrorString(900)),
               std::string("the call waits, allocates or copies at once, which no stream that captures can record"));
}

TEST(work_after_the_mistake_is_refused) {
  Stream stream;
  Array x({2}, kNVTEFloat32);
  EXPECT_EQUAL(cudaStreamBeginCapture(stream, 0), 0);
  EXPECT_EQUAL(cudaStreamSynchronize(stream), 900);
  EXPECT_EQUAL(cudaMemsetAsync(x.data(), 0, 8, stream), 901);
  EXPECT_THROWS(nvte_relu(x, x, stream.te()), "CUDA error 901", "an earlier call has made the capture invalid");
  EXPECT(ops_add(x.data(), x.data(), x.data(), 2, kNVTEFloat32, stream.ops()) != 0);
  void *graph = nullptr;
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 901);
  EXPECT_EQUAL(cudaMemsetAsync(x.data(), 0, 8, stream), 0);
}

TEST(modes) {
  Stream stream;
  void *memory = nullptr, *graph = nullptr;
  EXPECT_EQUAL(cudaStreamBeginCapture(stream, 3), 1);
  EXPECT_EQUAL(cudaStreamBeginCapture(stream, kRelaxed), 0);
  EXPECT_EQUAL(cudaMalloc(&memory, 64), 0);
  EXPECT_EQUAL(cudaFree(memory), 0);
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 0);
  EXPECT_EQUAL(cudaGraphDestroy(graph), 0);
  EXPECT_EQUAL(cudaGraphDestroy(graph), 1);

  EXPECT_EQUAL(cudaStreamBeginCapture(stream, kThreadLocal), 0);
  std::thread([&] {
    EXPECT_EQUAL(cudaMalloc(&memory, 64), 0);
    EXPECT_EQUAL(cudaFree(memory), 0);
    EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 908);
  }).join();
  int mode = kRelaxed;
  EXPECT_EQUAL(cudaThreadExchangeStreamCaptureMode(&mode), 0);
  EXPECT_EQUAL(mode, 0);
  EXPECT_EQUAL(cudaMalloc(&memory, 64), 0);
  EXPECT_EQUAL(cudaFree(memory), 0);
  EXPECT_EQUAL(cudaThreadExchangeStreamCaptureMode(&mode), 0);
  EXPECT_EQUAL(mode, kRelaxed);
  mode = 9;
  EXPECT_EQUAL(cudaThreadExchangeStreamCaptureMode(&mode), 1);
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 0);
  EXPECT_EQUAL(cudaGraphDestroy(graph), 0);

  EXPECT_EQUAL(cudaStreamBeginCapture(stream, 0), 0);
  std::thread([&] { EXPECT_EQUAL(cudaMalloc(&memory, 64), 900); }).join();
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 901);
}

TEST(begins_and_ends_once) {
  Stream stream, other;
  void *graph = nullptr;
  EXPECT_EQUAL(cudaStreamBeginCapture(nullptr, 0), 900);
  EXPECT_EQUAL(cudaStreamBeginCapture(&graph, 0), 400);
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 401);
  EXPECT_EQUAL(cudaStreamBeginCapture(stream, 0), 0);
  EXPECT_EQUAL(cudaStreamBeginCapture(stream, 0), 401);
  EXPECT_EQUAL(cudaStreamBeginCapture(other, 0), 0); /* another stream's is its own */
  unsigned long long first = 0, second = 0;
  int status = 0;
  EXPECT_EQUAL(cudaStreamGetCaptureInfo(stream, &status, &first, nullptr, nullptr, nullptr, nullptr), 0);
  EXPECT_EQUAL(status, 1);
  EXPECT_EQUAL(cudaStreamGetCaptureInfo(other, &status, &second, nullptr, nullptr, nullptr, nullptr), 0);
  EXPECT(first != second);
  EXPECT_EQUAL(cudaStreamEndCapture(stream, nullptr), 1);
  for (const Stream *one : {&stream, &other}) {
    EXPECT_EQUAL(cudaStreamEndCapture(*one, &graph), 0);
    size_t nodes = 7;
    EXPECT_EQUAL(cudaGraphGetNodes(graph, nullptr, &nodes), 0);
    EXPECT_EQUAL(nodes, size_t{0});
    EXPECT_EQUAL(cudaGraphDestroy(graph), 0);
  }
}

TEST(streams_join_through_events) {
  Stream stream, side;
  Event fork, join;
  Array x({1}, kNVTEFloat32);
  x.fill(1);
  Graph graph(stream, [&] {
    EXPECT_EQUAL(cudaEventRecord(fork, stream), 0);
    EXPECT_EQUAL(cudaStreamWaitEvent(side, fork, 0), 0);
    EXPECT_EQUAL(side.status(), 1);
    EXPECT_EQUAL(ops_add(x.data(), x.data(), x.data(), 1, kNVTEFloat32, side.ops()), 0);
    EXPECT_EQUAL(cudaEventRecord(join, side), 0);
    EXPECT_EQUAL(cudaStreamWaitEvent(stream, join, 0), 0);
  });
  EXPECT_EQUAL(side.status(), 0);
  EXPECT_EQUAL(graph.launch(stream), 0);
  EXPECT_EQUAL(x.get(0), 2.0);

  void *result = nullptr;
  EXPECT_EQUAL(cudaStreamBeginCapture(stream, 0), 0);
  EXPECT_EQUAL(cudaEventRecord(fork, stream), 0);
  EXPECT_EQUAL(cudaStreamWaitEvent(side, fork, 0), 0);
  EXPECT_EQUAL(cudaStreamEndCapture(side, &result), 903);
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &result), 901);

  EXPECT_EQUAL(cudaStreamBeginCapture(stream, 0), 0);
  EXPECT_EQUAL(cudaEventRecord(fork, stream), 0);
  EXPECT_EQUAL(cudaStreamWaitEvent(side, fork, 0), 0);
  EXPECT_EQUAL(cudaEventRecord(join, side), 0);
  EXPECT_EQUAL(cudaStreamWaitEvent(stream, join, 0), 0);
  EXPECT_EQUAL(cudaMemsetAsync(x.data(), 0, 4, side), 0); /* after the join */
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &result), 904);
}

TEST(events_of_a_capture) {
  Event event;
  EXPECT_INVALIDATED(907, (cudaEventRecord(event, stream), cudaEventQuery(event)));
  Stream stream, other;
  void *graph = nullptr;
  EXPECT_EQUAL(cudaStreamBeginCapture(stream, 0), 0);
  EXPECT_EQUAL(cudaStreamBeginCapture(other, 0), 0);
  EXPECT_EQUAL(cudaEventRecord(event, stream), 0);
  EXPECT_EQUAL(cudaStreamWaitEvent(other, event, 0), 902);
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 901);
  EXPECT_EQUAL(cudaStreamEndCapture(other, &graph), 901);
  EXPECT_EQUAL(cudaEventQuery(event), 0);
  Graph external(stream, [&] { EXPECT_EQUAL(cudaEventRecordWithFlags(event, stream, 1), 0); });
  EXPECT_EQUAL(external.nodes, size_t{1});
  EXPECT_EQUAL(external.launch(stream), 0);
}

TEST(the_legacy_stream_waits_for_blocking_streams) {
  Stream blocking(0);
  Array x({2}, kNVTEFloat32);
  void *graph = nullptr;
  EXPECT_EQUAL(cudaStreamBeginCapture(blocking, 0), 0);
  EXPECT_EQUAL(cudaMemsetAsync(x.data(), 0, 8, nullptr), 906);
  EXPECT_EQUAL(cudaStreamEndCapture(blocking, &graph), 901);
  Stream stream;
  EXPECT_EQUAL(cudaStreamBeginCapture(stream, 0), 0);
  EXPECT_EQUAL(cudaMemsetAsync(x.data(), 0, 8, nullptr), 0);
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 0);
  EXPECT_EQUAL(cudaGraphDestroy(graph), 0);
}

TEST(a_stream_is_destroyed_while_it_captures) {
  void *stream = nullptr, *graph = nullptr;
  EXPECT_EQUAL(cudaStreamCreate(&stream), 0);
  EXPECT_EQUAL(cudaStreamBeginCapture(stream, 0), 0);
  EXPECT_EQUAL(cudaStreamDestroy(stream), 0);
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 400);
  EXPECT_EQUAL(cudaDeviceSynchronize(), 0); /* nothing captures any more */
}

TEST(a_graph_within_a_graph) {
  Stream stream;
  Array x({1}, kNVTEFloat32);
  x.fill(1);
  Graph inner(stream, [&] {
    EXPECT_EQUAL(ops_add(x.data(), x.data(), x.data(), 1, kNVTEFloat32, stream.ops()), 0);
  });
  Graph outer(stream, [&] {
    EXPECT_EQUAL(inner.launch(stream), 0);
    EXPECT_EQUAL(inner.launch(stream), 0);
    EXPECT_EQUAL(x.get(0), 1.0);
  });
  EXPECT_EQUAL(outer.nodes, size_t{2});
  EXPECT_EQUAL(outer.launch(stream), 0);
  EXPECT_EQUAL(x.get(0), 4.0);
}

TEST(memory_that_is_gone_is_refused_at_the_launch) {
  Stream stream;
  void *memory = nullptr;
  EXPECT_EQUAL(cudaMalloc(&memory, 64), 0);
  Graph graph(stream, [&] { nvte_memset(memory, 0, 64, stream.te()); });
  EXPECT_EQUAL(graph.launch(stream), 0);
  EXPECT_EQUAL(cudaFree(memory), 0);
  EXPECT_EQUAL(graph.launch(stream), 719);
  EXPECT(std::string(cudaGetErrorString(719)).find("a call of the graph was refused: ") == 0);
  EXPECT_EQUAL(graph.launch(&stream), 400);
  EXPECT_EQUAL(cudaGraphLaunch(nullptr, stream), 1);
}

TEST(host_functions_run_at_each_launch) {
  Stream stream;
  int count = 0;
  Graph graph(stream, [&] {
    EXPECT_EQUAL(cudaLaunchHostFunc(stream, [](void *data) { ++*static_cast<int *>(data); }, &count), 0);
  });
  EXPECT_EQUAL(count, 0);
  for (int i = 1; i <= 3; ++i) {
    EXPECT_EQUAL(graph.launch(stream), 0);
    EXPECT_EQUAL(count, i);
  }
}

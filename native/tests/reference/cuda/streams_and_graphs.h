/* Streams, events and graphs that the tests of captures make, and how a capture ends in which something was wrong. */
#pragma once

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
int cudaGraphNodeGetType(void *, int *);
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

namespace capture_test {

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

}  // namespace capture_test

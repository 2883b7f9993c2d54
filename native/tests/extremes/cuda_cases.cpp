/* The CUDA runtime's functions. */
#include "cases.h"

namespace extremes {

namespace {

constexpr int kToDevice = 1, kInsideDevice = 3;

/* cudaChannelFormatDesc, by value. */
struct ChannelFormat {
  int x, y, z, w, kind;
};

/* Memory to register, and memory that is registered. */
void *registered(Fixture &f) {
  void *memory = f.host(64);
  f.finally([=] { symbol<int(void *)>("cudaHostUnregister")(memory); });
  return memory;
}

void *host_memory(Fixture &f) {
  void *memory = registered(f);
  symbol<int(void *, size_t, unsigned)>("cudaHostRegister")(memory, 64, 0);
  return memory;
}

void *pinned(Fixture &f) {
  void *memory = nullptr;
  symbol<int(void **, size_t)>("cudaMallocHost")(&memory, 64);
  f.finally([=] { symbol<int(void *)>("cudaFreeHost")(memory); });
  return memory;
}

int peer(Fixture &f) {
  f.finally([] { symbol<int(int)>("cudaDeviceDisablePeerAccess")(1); });
  return 1;
}

int enabled_peer(Fixture &f) {
  symbol<int(int, unsigned)>("cudaDeviceEnablePeerAccess")(peer(f), 0);
  return 1;
}

std::vector<Case> devices() {
  return {
      CASE_AS(cudaGetDeviceCount, int(int *), f.out<int>()),
      CASE_AS(cudaSetDevice, int(int), 1),
      CASE_AS(cudaInitDevice, int(int, unsigned, unsigned), 1, 0, 0),
      CASE_AS(cudaGetDevice, int(int *), f.out<int>()),
      CASE_AS(cudaDeviceGetAttribute, int(int *, int, int), f.out<int>(), 16, 0),
      CASE_AS(cudaGetDeviceProperties, int(void *, int), f.host(1008), 0),
      CASE_AS(cudaDeviceGetPCIBusId, int(char *, int, int), f.out<char>(13), 13, 0),
      CASE_AS(cudaDeviceGetByPCIBusId, int(int *, const char *), f.out<int>(), "0000:01:00.0"),
      CASE_AS(cudaDeviceSynchronize, int()),
      CASE_AS(cudaDeviceReset, int()),
      CASE_AS(cudaDeviceGetStreamPriorityRange, int(int *, int *), f.out<int>(), f.out<int>()),
      CASE_AS(cudaDeviceCanAccessPeer, int(int *, int, int), f.out<int>(), 0, 1),
      CASE_AS(cudaDeviceEnablePeerAccess, int(int, unsigned), peer(f), 0),
      CASE_AS(cudaDeviceDisablePeerAccess, int(int), enabled_peer(f)),
      CASE_AS(cudaRuntimeGetVersion, int(int *), f.out<int>()),
      CASE_AS(cudaDriverGetVersion, int(int *), f.out<int>()),
      CASE_AS(cudaCreateChannelDesc, ChannelFormat(int, int, int, int, int), 8, 8, 8, 8, 1),
  };
}

/* They answer, and the first one forgets, the error of a call before. */
int last_error() {
  symbol<int()>("cudaGetLastError")();
  return symbol<int()>("cudaGetLastError")();
}
int peeked_error() { return last_error() + symbol<int()>("cudaPeekAtLastError")(); }

int counted(int counts) {
  auto *count = symbol<int(int)>("reference_count_only");
  const int before = count(counts);
  count(before); /* what follows works */
  return 0;
}

std::vector<Case> errors() {
  return {
      CASE_AS(cudaGetErrorName, const char *(int), 1),
      CASE_AS(cudaGetErrorString, const char *(int), 1),
      CASE_OF("cudaGetLastError", &last_error),
      CASE_OF("cudaPeekAtLastError", &peeked_error),
      CASE_AS(reference_last_unsupported, const char *()),
      CASE_OF("reference_count_only", &counted, 0),
  };
}

/* The pointer that the function writes is freed after the call. */
void **owned(Fixture &f, const char *free) {
  auto *pointer = f.out<void *>();
  f.finally([=] { symbol<int(void *)>(free)(*pointer); });
  return pointer;
}

std::vector<Case> allocations() {
  return {
      CASE_AS(cudaMalloc, int(void **, size_t), owned(f, "cudaFree"), 64),
      CASE_AS(cudaMallocAsync, int(void **, size_t, void *), owned(f, "cudaFree"), 64, f.stream()),
      CASE_AS(cudaMallocManaged, int(void **, size_t, unsigned), owned(f, "cudaFree"), 64, 1),
      CASE_AS(cudaMallocPitch, int(void **, size_t *, size_t, size_t), owned(f, "cudaFree"), f.out<size_t>(), 60, 4),
      CASE_AS(cudaFree, int(void *), f.to_free(f.device(64))),
      CASE_AS(cudaFreeAsync, int(void *, void *), f.to_free(f.device(64)), f.stream()),
      CASE_AS(cudaHostAlloc, int(void **, size_t, unsigned), owned(f, "cudaFreeHost"), 64, 0),
      CASE_AS(cudaMallocHost, int(void **, size_t), owned(f, "cudaFreeHost"), 64),
      CASE_AS(cudaFreeHost, int(void *), pinned(f)),
      CASE_AS(cudaHostRegister, int(void *, size_t, unsigned), registered(f), 64, 0),
      CASE_AS(cudaHostUnregister, int(void *), host_memory(f)),
      CASE_AS(cudaHostGetDevicePointer, int(void **, void *, unsigned), f.out<void *>(), host_memory(f), 0),
      CASE_AS(cudaHostGetFlags, int(unsigned *, void *), f.out<unsigned>(), host_memory(f)),
      CASE_AS(cudaMemGetInfo, int(size_t *, size_t *), f.out<size_t>(), f.out<size_t>()),
      CASE_AS(cudaPointerGetAttributes, int(void *, const void *), f.host(88), f.device(64)),
  };
}

std::vector<Case> copies() {
  return {
      CASE_AS(cudaMemcpy, int(void *, const void *, size_t, int), f.device(64), f.host(64), 64, kToDevice),
      CASE_AS(cudaMemcpyAsync, int(void *, const void *, size_t, int, void *), f.device(64), f.host(64), 64, kToDevice,
              f.stream()),
      CASE_AS(cudaMemcpyPeer, int(void *, int, const void *, int, size_t), f.device(64), 0, f.device(64), 0, 64),
      CASE_AS(cudaMemcpyPeerAsync, int(void *, int, const void *, int, size_t, void *), f.device(64), 0, f.device(64), 0, 64,
              f.stream()),
      CASE_AS(cudaMemcpy2D, int(void *, size_t, const void *, size_t, size_t, size_t, int), f.device(64), 16, f.device(64),
              16, 8, 4, kInsideDevice),
      CASE_AS(cudaMemcpy2DAsync, int(void *, size_t, const void *, size_t, size_t, size_t, int, void *), f.device(64), 16,
              f.device(64), 16, 8, 4, kInsideDevice, f.stream()),
      CASE_AS(cudaMemset, int(void *, int, size_t), f.device(64), 1, 64),
      CASE_AS(cudaMemsetAsync, int(void *, int, size_t, void *), f.device(64), 1, 64, f.stream()),
      CASE_AS(cudaMemset2D, int(void *, size_t, int, size_t, size_t), f.device(64), 16, 1, 8, 4),
      CASE_AS(cudaMemset2DAsync, int(void *, size_t, int, size_t, size_t, void *), f.device(64), 16, 1, 8, 4, f.stream()),
  };
}

std::vector<Case> streams() {
  return {
      CASE_AS(cudaStreamCreate, int(void **), owned(f, "cudaStreamDestroy")),
      CASE_AS(cudaStreamCreateWithFlags, int(void **, unsigned), owned(f, "cudaStreamDestroy"), 1),
      CASE_AS(cudaStreamCreateWithPriority, int(void **, unsigned, int), owned(f, "cudaStreamDestroy"), 1, -1),
      CASE_AS(cudaStreamDestroy, int(void *), f.stream()),
      CASE_AS(cudaStreamSynchronize, int(void *), f.stream()),
      CASE_AS(cudaStreamQuery, int(void *), f.stream()),
      CASE_AS(cudaStreamGetPriority, int(void *, int *), f.stream(), f.out<int>()),
      CASE_AS(cudaStreamGetFlags, int(void *, unsigned *), f.stream(), f.out<unsigned>()),
      CASE_AS(cudaStreamGetId, int(void *, unsigned long long *), f.stream(), f.out<unsigned long long>()),
      CASE_AS(cudaStreamGetDevice, int(void *, int *), f.stream(), f.out<int>()),
      CASE_AS(cudaStreamWaitEvent, int(void *, void *, unsigned), f.stream(), f.event(true), 0),
      CASE_AS(cudaStreamIsCapturing, int(void *, int *), f.stream(), f.out<int>()),
      CASE_AS(cudaLaunchHostFunc, int(void *, void (*)(void *), void *), f.stream(), [](void *) {}, f.host(8)),
      CASE_AS(cudaStreamAddCallback, int(void *, void (*)(void *, int, void *), void *, unsigned), f.stream(),
              [](void *, int, void *) {}, f.host(8), 0),
      CASE_AS(cudaEventCreate, int(void **), owned(f, "cudaEventDestroy")),
      CASE_AS(cudaEventCreateWithFlags, int(void **, unsigned), owned(f, "cudaEventDestroy"), 1),
      CASE_AS(cudaEventDestroy, int(void *), f.event()),
      CASE_AS(cudaEventRecord, int(void *, void *), f.event(), f.stream()),
      CASE_AS(cudaEventRecordWithFlags, int(void *, void *, unsigned), f.event(), f.stream(), 0),
      CASE_AS(cudaEventQuery, int(void *), f.event(true)),
      CASE_AS(cudaEventSynchronize, int(void *), f.event(true)),
      CASE_AS(cudaEventElapsedTime, int(float *, void *, void *), f.out<float>(), f.event(true), f.event(true)),
  };
}

void *capturing(Fixture &f) {
  void *stream = f.stream();
  symbol<int(void *, int)>("cudaStreamBeginCapture")(stream, 2);
  return stream;
}

void *graph(Fixture &f) {
  void *stream = capturing(f), *graph = nullptr;
  symbol<int(void *, int, size_t, void *)>("cudaMemsetAsync")(f.device(64), 0, 64, stream);
  symbol<int(void *, void **)>("cudaStreamEndCapture")(stream, &graph);
  f.finally([=] { symbol<int(void *)>("cudaGraphDestroy")(graph); });
  return graph;
}

void *node(Fixture &f) {
  void *node = nullptr;
  size_t count = 1;
  symbol<int(void *, void **, size_t *)>("cudaGraphGetNodes")(graph(f), &node, &count);
  return node;
}

void *executable(Fixture &f) {
  void *executable = nullptr;
  symbol<int(void **, void *, unsigned long long)>("cudaGraphInstantiate")(&executable, graph(f), 0);
  f.finally([=] { symbol<int(void *)>("cudaGraphExecDestroy")(executable); });
  return executable;
}

int *capture_mode(Fixture &f) {
  f.finally([] {
    int mode = 0;
    symbol<int(int *)>("cudaThreadExchangeStreamCaptureMode")(&mode);
  });
  return f.out<int>();
}

using CaptureInfo = int(void *, int *, unsigned long long *, void **, void **, void **, size_t *);

std::vector<Case> graphs() {
  return {
      CASE_AS(cudaStreamBeginCapture, int(void *, int), f.stream(), 2),
      CASE_AS(cudaStreamEndCapture, int(void *, void **), capturing(f), owned(f, "cudaGraphDestroy")),
      CASE_AS(cudaStreamGetCaptureInfo, CaptureInfo, capturing(f), f.out<int>(), f.out<unsigned long long>(),
              f.out<void *>(), f.out<void *>(), f.out<void *>(), f.out<size_t>()),
      CASE_AS(cudaThreadExchangeStreamCaptureMode, int(int *), capture_mode(f)),
      CASE_AS(cudaGraphGetNodes, int(void *, void **, size_t *), graph(f), nullptr, f.out<size_t>()),
      CASE_AS(cudaGraphNodeGetType, int(void *, int *), node(f), f.out<int>()),
      CASE_AS(cudaGraphDestroy, int(void *), graph(f)),
      CASE_AS(cudaGraphInstantiate, int(void **, void *, unsigned long long), owned(f, "cudaGraphExecDestroy"), graph(f), 0),
      CASE_AS(cudaGraphInstantiateWithFlags, int(void **, void *, unsigned long long), owned(f, "cudaGraphExecDestroy"),
              graph(f), 0),
      CASE_AS(cudaGraphUpload, int(void *, void *), executable(f), f.stream()),
      CASE_AS(cudaGraphLaunch, int(void *, void *), executable(f), f.stream()),
      CASE_AS(cudaGraphExecDestroy, int(void *), executable(f)),
  };
}

}  // namespace

std::vector<Case> cuda_cases() {
  std::vector<Case> all;
  for (const auto &some : {devices(), errors(), allocations(), copies(), streams(), graphs()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace extremes

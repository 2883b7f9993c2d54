/* What a capture forbids, and how it ends then. */
#include "cuda/streams_and_graphs.h"

using namespace capture_test;

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

TEST(operations_check_before_they_record) {
  Stream stream;
  Array x({2}, kNVTEFloat32), index({2}, kNVTEInt32);
  const auto *places = static_cast<const int32_t *>(index.data());
  const auto *factors = static_cast<const float *>(x.data());
  const OpsStream ops = stream.ops();
  Graph graph(stream, [&] {
    for (int64_t count : {-1, 0}) { /* refused, nothing to do */
      const int expected = count < 0 ? OPS_INVALID_ARGUMENT : OPS_SUCCESS;
      EXPECT_EQUAL(ops_add(x.data(), x.data(), x.data(), count, kNVTEFloat32, ops), expected);
      EXPECT_EQUAL(ops_reciprocal(x.data(), x.data(), count, kNVTEFloat32, ops), expected);
      EXPECT_EQUAL(ops_gather_rows(x.data(), places, x.data(), count, 1, 2, kNVTEFloat32, ops), expected);
      EXPECT_EQUAL(ops_scatter_rows(x.data(), places, x.data(), count, 1, 2, kNVTEFloat32, ops), expected);
      EXPECT_EQUAL(ops_scale_sequences_add(x.data(), nullptr, x.data(), factors, nullptr, OPS_BSHD, 0, 2, 2, 1, count,
                                           kNVTEFloat32, ops),
                   expected);
    }
  });
  EXPECT_EQUAL(graph.nodes, size_t{0});
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

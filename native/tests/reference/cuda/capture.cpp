/* Stream capture and graphs: what is recorded, in which order, and what a replay reads. */
#include <atomic>

#include "cuda/streams_and_graphs.h"

using namespace capture_test;

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

TEST(nodes_know_their_types) {
  Stream stream, within;
  Array x({2048}, kNVTEFloat32), y({2048}, kNVTEFloat32);
  Graph inner(within, [&] { EXPECT_EQUAL(cudaMemsetAsync(x.data(), 0, 4, within), 0); });
  Event event;
  EXPECT_EQUAL(cudaStreamBeginCapture(stream, kThreadLocal), 0);
  EXPECT_EQUAL(ops_add(x.data(), x.data(), y.data(), 4, kNVTEFloat32, stream.ops()), 0);
  EXPECT_EQUAL(cudaMemcpyAsync(x.data(), y.data(), 16, kInside, stream), 0);
  EXPECT_EQUAL(cudaMemsetAsync(x.data(), 0, 4, stream), 0);
  nvte_memset(x.data(), 0, 4096, stream.te()); /* a kernel */
  nvte_memset(x.data(), 0, 4097, stream.te());
  EXPECT_EQUAL(cudaLaunchHostFunc(stream, [](void *) {}, nullptr), 0);
  EXPECT_EQUAL(inner.launch(stream), 0);
  EXPECT_EQUAL(cudaEventRecordWithFlags(event, stream, 1), 0);
  void *graph = nullptr, *nodes[8] = {};
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 0);
  size_t count = 8;
  EXPECT_EQUAL(cudaGraphGetNodes(graph, nodes, &count), 0);
  EXPECT_EQUAL(count, size_t{8});
  const int expected[8] = {0, 1, 2, 0, 2, 3, 4, 7};
  for (size_t i = 0; i < 8; ++i) {
    int type = -1;
    EXPECT_EQUAL(cudaGraphNodeGetType(nodes[i], &type), 0);
    EXPECT_EQUAL(type, expected[i]);
  }
  int type = -1;
  EXPECT_EQUAL(cudaGraphNodeGetType(nodes[0], nullptr), 1);
  EXPECT_EQUAL(cudaGraphNodeGetType(nullptr, &type), 1);
  EXPECT_EQUAL(cudaGraphDestroy(graph), 0);
  EXPECT_EQUAL(cudaGraphNodeGetType(nodes[0], &type), 1); /* of a graph that is gone */
}

TEST(types_of_nodes_while_another_thread_captures) {
  Stream stream;
  Array x({4}, kNVTEFloat32);
  void *graph = nullptr, *node = nullptr;
  EXPECT_EQUAL(cudaStreamBeginCapture(stream, kThreadLocal), 0);
  EXPECT_EQUAL(cudaMemsetAsync(x.data(), 0, 16, stream), 0);
  EXPECT_EQUAL(cudaStreamEndCapture(stream, &graph), 0);
  size_t count = 1;
  EXPECT_EQUAL(cudaGraphGetNodes(graph, &node, &count), 0);
  std::atomic<bool> ended{false};
  std::thread other([&] {
    Stream second;
    for (int i = 0; i < 20000; ++i) {
      void *made = nullptr;
      EXPECT_EQUAL(cudaStreamBeginCapture(second, kThreadLocal), 0);
      EXPECT_EQUAL(cudaStreamEndCapture(second, &made), 0);
      EXPECT_EQUAL(cudaGraphDestroy(made), 0);
    }
    ended = true;
  });
  while (!ended) {
    int type = -1;
    EXPECT_EQUAL(cudaGraphNodeGetType(node, &type), 0);
    EXPECT_EQUAL(type, 2);
  }
  other.join();
  EXPECT_EQUAL(cudaGraphDestroy(graph), 0);
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

/* Communicators made from others, registered memory, pre-multiplied sums, sums of FP8. */
#include <climits>
#include <random>

#include "nccl/ranks.h"
#include "nccl/shared_world.h"

using namespace ranks_test;

namespace {

bool says(const char *part) { return std::string(ncclGetLastError(nullptr)).find(part) != std::string::npos; }

float sum_over(void *comm, float value) {
  Buffer<float> buffer(1);
  buffer[0] = value;
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, comm, nullptr), 0);
  return buffer[0];
}

}  // namespace

TEST(split_by_color_in_order_of_keys) {
  with_ranks(5, [](int rank, void *comm) {
    void *part = &part;
    /* Even ranks, odd ranks; the highest rank of each comes first. */
    EXPECT_EQUAL(ncclCommSplit(comm, rank % 2, -rank, &part, nullptr), 0);
    int count = 0, place = -1, device = -1;
    EXPECT_EQUAL(ncclCommCount(part, &count), 0);
    EXPECT_EQUAL(ncclCommUserRank(part, &place), 0);
    EXPECT_EQUAL(ncclCommCuDevice(part, &device), 0);
    EXPECT_EQUAL(count, rank % 2 == 0 ? 3 : 2);
    EXPECT_EQUAL(place, (rank % 2 == 0 ? 4 - rank : 3 - rank) / 2);
    EXPECT_EQUAL(device, rank);
    EXPECT_EQUAL(sum_over(part, static_cast<float>(rank)), rank % 2 == 0 ? 6.0f : 4.0f);
    EXPECT_EQUAL(sum_over(comm, 1), 5.0f); /* the first one goes on */
    EXPECT_EQUAL(ncclCommDestroy(part), 0);
    void *alone = &alone;
    EXPECT_EQUAL(ncclCommSplit(comm, rank == 3 ? 0 : -1, 0, &alone, nullptr), 0);
    EXPECT((alone != nullptr) == (rank == 3));
    if (rank == 3) EXPECT_EQUAL(sum_over(alone, 9), 9.0f);
    EXPECT_EQUAL(ncclCommDestroy(alone), 0);
  });
}

TEST(a_group_splits) {
  void *comms[2], *parts[2];
  EXPECT_EQUAL(ncclCommInitAll(comms, 2, nullptr), 0);
  ncclGroupStart();
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQUAL(ncclCommSplit(comms[rank], 7, rank, &parts[rank], nullptr), 0);
  EXPECT_EQUAL(ncclGroupEnd(), 0);
  for (int rank = 0; rank < 2; ++rank) {
    int place = -1;
    EXPECT_EQUAL(ncclCommUserRank(parts[rank], &place), 0);
    EXPECT_EQUAL(place, rank);
    EXPECT_EQUAL(ncclCommDestroy(parts[rank]), 0);
    EXPECT_EQUAL(ncclCommDestroy(comms[rank]), 0);
  }
}

TEST(a_failed_split_lets_the_next_collective_begin) {
  std::random_device device;
  const WorldId id{{device(), device()}};
  std::unique_ptr<Segment> segment;
  EXPECT_EQUAL(Segment::open(id, 2, &segment).code, 0);
  for (int rank = 0; rank < 2; ++rank) EXPECT_EQUAL(segment->join(rank, rank).code, 0);
  segment->member(1).device = 0; /* so the new communicator refuses the second rank */
  SharedQueue queues[2];
  std::vector<std::shared_ptr<SharedPending>> all;
  Buffer<float> values(2);
  for (int rank = 0; rank < 2; ++rank) {
    SharedQueue &queue = queues[rank];
    float &value = values[static_cast<size_t>(rank)];
    value = 3;
    Contribution given;
    queue.push_back(shared_split(*segment, rank, given, id, queue));
    given.send = given.receive = &value;
    queue.push_back(shared_collective(*segment, rank, {Collective::AllReduce, 1, kNcclFloat32, kNcclSum, 0}, given, queue));
    all.insert(all.end(), queue.begin(), queue.end());
  }
  for (int look = 0; look < 10; ++look) {
    for (const auto &one : all) {
      if (!one->done && one->failed.code == kNcclSuccess) one->progress();
    }
  }
  for (size_t rank = 0; rank < 2; ++rank) {
    EXPECT_EQUAL(all[2 * rank]->failed.code, static_cast<int>(kNcclInvalidUsage));
    EXPECT(all[2 * rank + 1]->done);
    EXPECT_EQUAL(values[rank], 6.0f);
  }
}

TEST(a_revoked_rank_waits_until_nobody_writes_to_its_buffer) {
  constexpr size_t kCount = size_t{1} << 22;
  std::atomic<bool> computed{false};
  std::atomic<int> waiting{0};
  with_ranks(2, [&](int rank, void *comm) {
    Buffer<double> buffer(kCount);
    std::memset(buffer, 0, kCount * sizeof(double));
    if (rank == 0) { /* waits while the other one computes and is revoked */
      waiting = gettid();
      ncclAllReduce(buffer, buffer, kCount, kNcclFloat64, kNcclSum, comm, nullptr);
      for (size_t i = 0; i < kCount; ++i) buffer[i] = 7;
      while (!computed) std::this_thread::yield();
      size_t overwritten = 0;
      for (size_t i = 0; i < kCount; ++i) overwritten += buffer[i] != 7;
      EXPECT_EQUAL(overwritten, size_t{0});
      return;
    }
    until_asleep(waiting);
    std::thread revoking([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_EQUAL(ncclCommRevoke(comm, 0), 0);
    });
    ncclAllReduce(buffer, buffer, kCount, kNcclFloat64, kNcclSum, comm, nullptr);
    computed = true;
    revoking.join();
  });
}

TEST(the_others_go_on_without_a_rank) {
  with_ranks(4, [](int rank, void *comm) {
    const int gone[] = {2, 0};
    if (rank == 1 || rank == 3) {
      void *rest;
      EXPECT_EQUAL(ncclCommShrink(comm, gone, 2, &rest, nullptr, 0), 0);
      EXPECT_EQUAL(sum_over(rest, static_cast<float>(rank)), 4.0f);
      EXPECT_EQUAL(ncclCommDestroy(rest), 0);
    }
  });
}

TEST(a_rank_that_revokes_frees_the_others_which_shrink) {
  std::atomic<int> waiting[2] = {};
  with_ranks(3, [&](int rank, void *comm) {
    Buffer<float> buffer(4);
    if (rank == 2) {
      for (const std::atomic<int> &other : waiting) until_asleep(other);
      EXPECT_EQUAL(ncclCommRevoke(comm, 0), 0);
      return;
    }
    waiting[rank] = gettid();
    EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 4, kNcclFloat32, kNcclSum, comm, nullptr), static_cast<int>(kNcclRemoteError));
    EXPECT(says("Rank 2 revoked the communicator"));
    int async = 0;
    EXPECT_EQUAL(ncclCommGetAsyncError(comm, &async), 0);
    EXPECT_EQUAL(async, static_cast<int>(kNcclRemoteError));
    EXPECT_EQUAL(ncclCommFinalize(comm), static_cast<int>(kNcclRemoteError));
    const int gone = 2;
    void *rest;
    EXPECT_EQUAL(ncclCommShrink(comm, &gone, 1, &rest, nullptr, 0), static_cast<int>(kNcclRemoteError));
    EXPECT_EQUAL(ncclCommShrink(comm, &gone, 1, &rest, nullptr, 1), 0);
    EXPECT_EQUAL(sum_over(rest, static_cast<float>(rank + 1)), 3.0f);
    EXPECT_EQUAL(ncclCommDestroy(rest), 0);
  });
}

TEST(pre_multiplied_sums) {
  with_ranks(3, [](int rank, void *comm) {
    const float factor = static_cast<float>(rank) + 0.5f;
    int other, op;
    EXPECT_EQUAL(ncclRedOpCreatePreMulSum(&op, &factor, kNcclFloat32, kNcclScalarHostImmediate, comm), 0);
    if (rank == 1) { /* ranks may number theirs differently */
      other = op;
      EXPECT_EQUAL(ncclRedOpCreatePreMulSum(&op, &factor, kNcclFloat32, kNcclScalarHostImmediate, comm), 0);
      EXPECT_EQUAL(ncclRedOpDestroy(other, comm), 0);
    }
    Buffer<float> buffer(20000);
    for (size_t i = 0; i < 20000; ++i) buffer[i] = static_cast<float>(i % 11);
    EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 20000, kNcclFloat32, op, comm, nullptr), 0);
    for (size_t i = 0; i < 20000; ++i) EXPECT_EQUAL(buffer[i], 4.5f * static_cast<float>(i % 11));
    EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 20000, kNcclFloat64, op, comm, nullptr), static_cast<int>(kNcclInvalidArgument));
    EXPECT_EQUAL(ncclRedOpDestroy(op, comm), 0);
    EXPECT_EQUAL(ncclRedOpDestroy(op, comm), static_cast<int>(kNcclInvalidArgument));
    EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 20000, kNcclFloat32, op, comm, nullptr), static_cast<int>(kNcclInvalidArgument));
    Buffer<uint16_t> on_device(1), halves(3);
    store(on_device, 0, kNVTEBFloat16, factor);
    EXPECT_EQUAL(ncclRedOpCreatePreMulSum(&op, on_device, kNcclBfloat16, kNcclScalarDevice, comm), 0);
    for (size_t i = 0; i < 3; ++i) store(halves, static_cast<int64_t>(i), kNVTEBFloat16, 2);
    EXPECT_EQUAL(ncclAllReduce(halves, halves, 3, kNcclBfloat16, op, comm, nullptr), 0);
    EXPECT_EQUAL(load(halves, 2, kNVTEBFloat16), 9.0f);
    EXPECT_EQUAL(ncclRedOpDestroy(op, comm), 0);
    const int32_t three = 3;
    Buffer<int32_t> whole(2);
    whole[0] = whole[1] = rank;
    EXPECT_EQUAL(ncclRedOpCreatePreMulSum(&op, &three, kNcclInt32, kNcclScalarHostImmediate, comm), 0);
    EXPECT_EQUAL(ncclAllReduce(whole, whole, 2, kNcclInt32, op, comm, nullptr), 0);
    EXPECT_EQUAL(whole[1], 9);
    EXPECT_EQUAL(ncclRedOpDestroy(op, comm), 0);
  });
}

TEST(fp8_is_summed_in_float_and_rounded_once) {
  with_ranks(3, [](int rank, void *comm) {
    for (const int dtype : {kNcclFloat8e4m3, kNcclFloat8e5m2}) {
      const NVTEDType format = dtype == kNcclFloat8e4m3 ? kNVTEFloat8E4M3 : kNVTEFloat8E5M2;
      Buffer<uint8_t> values(5), most(5);
      /* 16 + 1 + 1: the values next to 16 are 2 or 4 away, so that rounding twice would lose both. */
      for (int64_t i = 0; i < 5; ++i) store(values, i, format, rank == 0 ? 16.0f : 1.0f);
      EXPECT_EQUAL(ncclAllReduce(values, most, 5, dtype, kNcclMax, comm, nullptr), 0);
      EXPECT_EQUAL(ncclAllReduce(values, values, 5, dtype, kNcclSum, comm, nullptr), 0);
      for (int64_t i = 0; i < 5; ++i) {
        EXPECT_EQUAL(load(values, i, format), dtype == kNcclFloat8e4m3 ? 18.0f : 16.0f);
        EXPECT_EQUAL(load(most, i, format), 16.0f);
      }
    }
  });
}

TEST(registered_memory) {
  void *comm, *memory, *handle, *window;
  EXPECT_EQUAL(ncclCommInitAll(&comm, 1, nullptr), 0);
  EXPECT_EQUAL(ncclMemAlloc(&memory, 8192), 0);
  EXPECT_EQUAL(ncclCommRegister(comm, memory, 8192, &handle), 0);
  EXPECT_EQUAL(ncclCommDeregister(comm, handle), 0);
  EXPECT_EQUAL(ncclCommDeregister(comm, handle), static_cast<int>(kNcclInvalidArgument));
  EXPECT_EQUAL(ncclCommWindowRegister(comm, static_cast<char *>(memory) + 4096, 4096, &window, 1), 0);
  EXPECT(window != nullptr);
  EXPECT_EQUAL(ncclCommWindowDeregister(comm, window), 0);
  EXPECT_EQUAL(ncclCommWindowDeregister(comm, window), static_cast<int>(kNcclInvalidArgument));
  EXPECT_EQUAL(ncclCommWindowRegister(comm, memory, 8193, &window, 1), static_cast<int>(kNcclInvalidArgument));
  EXPECT(says("must be 8193 bytes of device memory"));
  EXPECT_EQUAL(ncclCommWindowRegister(comm, memory, 8192, &window, 2), static_cast<int>(kNcclInvalidArgument));
  Buffer<char> other(4096);
  window = &window;
  EXPECT_EQUAL(ncclCommWindowRegister(comm, other, 4096, &window, 1), 0); /* other memory has none */
  EXPECT(window == nullptr);
  EXPECT_EQUAL(ncclMemFree(memory), 0);
  EXPECT_EQUAL(ncclMemFree(memory), static_cast<int>(kNcclUnhandledCudaError));
  EXPECT_EQUAL(ncclCommDestroy(comm), 0);
}

TEST(configurations) {
  TestUniqueId id;
  ncclGetUniqueId(&id);
  constexpr int kUndefined = INT_MIN;
  int config[20] = {80, 0, static_cast<int>(0xcafebeefu), 22809, kUndefined, kUndefined, kUndefined, kUndefined, 0, 0,
                    kUndefined, kUndefined, 0, 0, kUndefined, kUndefined, kUndefined, kUndefined, kUndefined, kUndefined};
  void *comm;
  const auto refused = [&](int at, int value, const char *part) {
    const int before = config[at];
    config[at] = value;
    EXPECT_EQUAL(ncclCommInitRankConfig(&comm, 1, id, 0, config), static_cast<int>(kNcclInvalidArgument));
    EXPECT(says(part));
    config[at] = before;
  };
  refused(2, 0, "NCCL_CONFIG_INITIALIZER");
  refused(4, 2, "blocking must be 0 or 1, got 2");
  refused(6, 0, "minCTAs and maxCTAs");
  config[7] = 4;
  refused(6, 5, "got 5 and 4");
  refused(15, 3, "CTAPolicy must be 0, 1 or 2, got 3");
  EXPECT_EQUAL(ncclCommInitRankConfig(&comm, 1, id, 0, config), 0);
  EXPECT_EQUAL(ncclCommDestroy(comm), 0);
  EXPECT_EQUAL(ncclCommInitRankScalable(&comm, 1, 0, 1, &id, config), 0);
  EXPECT_EQUAL(ncclCommDestroy(comm), 0);
  EXPECT_EQUAL(ncclCommInitRankScalable(&comm, 1, 0, 2, &id, config), static_cast<int>(kNcclInvalidArgument));
}

TEST(wrong_arguments_of_subgroups) {
  void *comms[2], *made;
  EXPECT_EQUAL(ncclCommInitAll(comms, 2, nullptr), 0);
  const int wrong = kNcclInvalidArgument;
  EXPECT_EQUAL(ncclCommSplit(comms[0], -2, 0, &made, nullptr), wrong);
  EXPECT(says("\"color\""));
  EXPECT_EQUAL(ncclCommSplit(&made, 0, 0, &made, nullptr), wrong);
  EXPECT_EQUAL(ncclCommSplit(comms[0], 0, 0, nullptr, nullptr), wrong);
  const int self = 0, far = 2, both[] = {1, 1};
  EXPECT_EQUAL(ncclCommShrink(comms[0], &self, 1, &made, nullptr, 0), wrong);
  EXPECT(says("the caller's own rank, 0"));
  EXPECT_EQUAL(ncclCommShrink(comms[0], &far, 1, &made, nullptr, 0), wrong);
  EXPECT_EQUAL(ncclCommShrink(comms[0], both, 2, &made, nullptr, 0), wrong);
  EXPECT_EQUAL(ncclCommShrink(comms[0], both, 0, &made, nullptr, 0), wrong);
  EXPECT_EQUAL(ncclCommShrink(comms[0], both, 1, &made, nullptr, 2), wrong);
  EXPECT_EQUAL(ncclCommRevoke(comms[0], 1), wrong);
  int op;
  const float factor = 2;
  EXPECT_EQUAL(ncclRedOpCreatePreMulSum(&op, nullptr, kNcclFloat32, 1, comms[0]), wrong);
  EXPECT_EQUAL(ncclRedOpCreatePreMulSum(&op, &factor, 12, 1, comms[0]), wrong);
  EXPECT_EQUAL(ncclRedOpCreatePreMulSum(&op, &factor, kNcclFloat32, 2, comms[0]), wrong);
  EXPECT_EQUAL(ncclRedOpCreatePreMulSum(&op, &factor, kNcclFloat32, kNcclScalarDevice, comms[0]), wrong);
  for (void *comm : comms) EXPECT_EQUAL(ncclCommDestroy(comm), 0);
}

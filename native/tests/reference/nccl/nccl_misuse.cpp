/* Communicators among threads: mismatches, ranks that leave, wrong arguments. */
#include "nccl/ranks.h"

using namespace ranks_test;

TEST(disagreement_is_an_error_on_every_rank) {
  struct Wrong {
    size_t count;
    int dtype, op;
    const char *part;
  };
  for (const Wrong &wrong : {Wrong{9, kNcclFloat32, kNcclSum, "9 float32"}, Wrong{10, kNcclInt32, kNcclSum, "10 int32"},
                             Wrong{10, kNcclFloat32, kNcclMax, "max"}}) {
    std::atomic<int> errors{0};
    with_ranks(3, [&](int rank, void *comm) {
      Buffer<float> buffer(10);
      const int code = rank == 2 ? ncclAllReduce(buffer, buffer, wrong.count, wrong.dtype, wrong.op, comm, nullptr)
                                 : ncclAllReduce(buffer, buffer, 10, kNcclFloat32, kNcclSum, comm, nullptr);
      errors += code == kNcclInvalidUsage;
      const std::string text = ncclGetLastError(nullptr);
      EXPECT(text.find("disagree") != std::string::npos && text.find(wrong.part) != std::string::npos);
      int async = 0;
      EXPECT_EQUAL(ncclCommGetAsyncError(comm, &async), 0);
      EXPECT_EQUAL(async, static_cast<int>(kNcclInvalidUsage));
      EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 10, kNcclFloat32, kNcclSum, comm, nullptr), static_cast<int>(kNcclInvalidUsage)); /* it stays */
    });
    EXPECT_EQUAL(errors.load(), 3);
  }
  with_ranks(2, [](int rank, void *comm) {
    Buffer<float> buffer(10);
    const int code = rank == 0 ? ncclSend(buffer, 10, kNcclFloat32, 1, comm, nullptr) : ncclRecv(buffer, 8, kNcclFloat32, 0, comm, nullptr);
    EXPECT_EQUAL(code, static_cast<int>(kNcclInvalidUsage));
    EXPECT(std::string(ncclGetLastError(nullptr)).find("10 float32 to rank 1, which receives 8 float32") != std::string::npos);
  });
}

TEST(an_abort_frees_the_others) {
  TestUniqueId id;
  ncclGetUniqueId(&id);
  std::vector<std::thread> threads;
  std::atomic<int> waiting[3] = {};
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      cudaSetDevice(rank);
      void *comm;
      EXPECT_EQUAL(ncclCommInitRank(&comm, 3, id, rank), 0);
      Buffer<float> buffer(4);
      if (rank == 1) {
        for (const int other : {0, 2}) until_asleep(waiting[other]);
        EXPECT_EQUAL(ncclCommAbort(comm), 0);
        return;
      }
      waiting[rank] = gettid();
      EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 4, kNcclFloat32, kNcclSum, comm, nullptr), static_cast<int>(kNcclRemoteError));
      EXPECT(std::string(ncclGetLastError(nullptr)).find("Rank 1 aborted") != std::string::npos);
      EXPECT_EQUAL(ncclCommAbort(comm), 0);
    });
  }
  for (std::thread &thread : threads) thread.join();
}

TEST(a_rank_that_left_is_named) {
  TestUniqueId id;
  ncclGetUniqueId(&id);
  std::thread leaving([&] {
    cudaSetDevice(1);
    void *comm;
    EXPECT_EQUAL(ncclCommInitRank(&comm, 2, id, 1), 0);
    EXPECT_EQUAL(ncclCommDestroy(comm), 0);
  });
  void *comm;
  EXPECT_EQUAL(ncclCommInitRank(&comm, 2, id, 0), 0);
  leaving.join();
  Buffer<float> buffer(4);
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 4, kNcclFloat32, kNcclSum, comm, nullptr), static_cast<int>(kNcclRemoteError));
  EXPECT(std::string(ncclGetLastError(nullptr)).find("Rank 1 has destroyed") != std::string::npos);
  EXPECT_EQUAL(ncclSend(buffer, 4, kNcclFloat32, 1, comm, nullptr), static_cast<int>(kNcclRemoteError));
  EXPECT_EQUAL(ncclCommDestroy(comm), 0);
}

TEST(a_communicator_is_gone_before_its_group_ends) {
  for (const auto release : {ncclCommDestroy, ncclCommAbort}) {
    void *comm = nullptr, *other = nullptr;
    EXPECT_EQUAL(ncclCommInitAll(&comm, 1, nullptr), 0);
    EXPECT_EQUAL(ncclCommInitAll(&other, 1, nullptr), 0);
    Buffer<float> buffer(4), untouched(4);
    untouched[0] = 5;
    buffer[0] = 3;
    ncclGroupStart();
    EXPECT_EQUAL(ncclAllReduce(buffer, untouched, 4, kNcclFloat32, kNcclSum, other, nullptr), 0);
    EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 4, kNcclFloat32, kNcclSum, comm, nullptr), 0);
    EXPECT_EQUAL(release(comm), 0);
    EXPECT_EQUAL(ncclGroupEnd(), static_cast<int>(kNcclInvalidUsage));
    EXPECT_EQUAL(std::string(ncclGetLastError(nullptr)),
                 std::string("ncclGroupEnd: a communicator of the group was destroyed in it"));
    EXPECT_EQUAL(untouched[0], 5.0f); /* a group with a wrong call does nothing */
    EXPECT_EQUAL(ncclAllReduce(buffer, untouched, 4, kNcclFloat32, kNcclSum, other, nullptr), 0);
    EXPECT_EQUAL(untouched[0], 3.0f);
    EXPECT_EQUAL(ncclCommDestroy(other), 0);
  }
}

TEST(joining_misuse) {
  TestUniqueId id, foreign{};
  ncclGetUniqueId(&id);
  void *comm = &id, *other = nullptr;
  EXPECT_EQUAL(ncclCommInitRank(&comm, 2, foreign, 0), static_cast<int>(kNcclInvalidArgument));
  EXPECT(comm == nullptr);
  EXPECT_EQUAL(ncclCommInitRank(&comm, 2, id, 2), static_cast<int>(kNcclInvalidArgument));
  EXPECT_EQUAL(ncclCommInitRank(&comm, INT32_MAX, id, 0), static_cast<int>(kNcclInvalidArgument));
  EXPECT_EQUAL(std::string(ncclGetLastError(nullptr)),
               std::string("ncclCommInitRank: argument \"nranks\" is 2147483647; each rank needs a device of its own, and "
                           "there are 8 (CHAGRES_REFERENCE_DEVICES says how many)"));
  EXPECT_EQUAL(ncclCommInitRank(nullptr, 2, id, 0), static_cast<int>(kNcclInvalidArgument));
  ncclGroupStart(); /* both ranks on device 0 */
  EXPECT_EQUAL(ncclCommInitRank(&comm, 2, id, 0), 0);
  EXPECT_EQUAL(ncclCommInitRank(&other, 2, id, 1), static_cast<int>(kNcclInvalidUsage));
  EXPECT_EQUAL(ncclGroupEnd(), static_cast<int>(kNcclInvalidUsage));
  EXPECT(std::string(ncclGetLastError(nullptr)).find("both use device 0") != std::string::npos);
  EXPECT_EQUAL(ncclCommDestroy(comm), 0);
  void *all[9];
  EXPECT_EQUAL(ncclCommInitAll(all, 9, nullptr), static_cast<int>(kNcclInvalidArgument));
  EXPECT_EQUAL(ncclCommInitAll(nullptr, 1, nullptr), static_cast<int>(kNcclInvalidArgument));
  EXPECT_EQUAL(ncclGroupEnd(), static_cast<int>(kNcclInvalidUsage));
}

TEST(wrong_arguments) {
  void *comm;
  EXPECT_EQUAL(ncclCommInitAll(&comm, 1, nullptr), 0);
  Buffer<float> buffer(8);
  float host[8];
  const auto says = [](const char *part) { EXPECT(std::string(ncclGetLastError(nullptr)).find(part) != std::string::npos); };
  const int wrong = kNcclInvalidArgument;
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 8, kNcclFloat32, 5, comm, nullptr), wrong);
  says("\"op\"");
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 8, 12, 0, comm, nullptr), wrong);
  says("\"datatype\"");
  EXPECT_EQUAL(ncclAllReduce(nullptr, buffer, 8, kNcclFloat32, 0, comm, nullptr), wrong);
  says("\"sendbuff\"");
  EXPECT_EQUAL(ncclAllReduce(buffer, host, 8, kNcclFloat32, 0, comm, nullptr), wrong);
  says("\"recvbuff\" must be 32 bytes of device memory");
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 9, kNcclFloat32, 0, comm, nullptr), wrong);
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, SIZE_MAX, kNcclFloat32, 0, comm, nullptr), wrong);
  says("\"count\"");
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 8, kNcclFloat32, 0, host, nullptr), wrong);
  says("\"comm\"");
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 8, kNcclFloat32, 0, comm, host), wrong);
  says("\"stream\"");
  EXPECT_EQUAL(ncclBroadcast(buffer, buffer, 8, kNcclFloat32, 1, comm, nullptr), wrong);
  says("\"root\"");
  EXPECT_EQUAL(ncclSend(buffer, 8, kNcclFloat32, 1, comm, nullptr), wrong);
  says("\"peer\"");
  int value;
  EXPECT_EQUAL(ncclCommCount(host, &value), wrong);
  EXPECT_EQUAL(ncclCommCount(comm, nullptr), wrong);
  ncclGroupStart(); /* one wrong call: the group does nothing */
  buffer[0] = 3;
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 8, kNcclFloat32, 0, comm, nullptr), 0);
  EXPECT_EQUAL(ncclSend(buffer, 8, kNcclFloat32, 7, comm, nullptr), wrong);
  EXPECT_EQUAL(ncclGroupEnd(), wrong);
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 8, kNcclFloat32, kNcclAvg, comm, nullptr), 0);
  EXPECT_EQUAL(ncclCommFinalize(comm), 0);
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 8, kNcclFloat32, 0, comm, nullptr), static_cast<int>(kNcclInvalidUsage));
  EXPECT_EQUAL(ncclCommDestroy(comm), 0);
  EXPECT_EQUAL(ncclGetVersion(&value), 0);
  EXPECT_EQUAL(value, 22809);
  EXPECT_EQUAL(std::string(ncclGetErrorString(4)), std::string("invalid argument"));
  EXPECT_EQUAL(std::string(ncclGetErrorString(99)), std::string("unknown result code"));
}

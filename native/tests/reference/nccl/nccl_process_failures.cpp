/* Processes that end, stay silent, call something else, or do not come. In a process of their own, since the timeout is read once. */
#include <sys/stat.h>

#include "nccl/processes.h"

using namespace ranks_test;

SET_VARIABLE(CHAGRES_REFERENCE_NCCL_TIMEOUT, "3");

namespace {

const int kRemote = kNcclRemoteError;

bool exists(const TestUniqueId &id) { return access(file_of(id).c_str(), F_OK) == 0; }

/* Ends this process once the calling thread waits. */
void die_asleep() {
  std::thread([thread = gettid()] {
    until_asleep(thread);
    kill(getpid(), SIGKILL);
  }).detach();
}

}  // namespace

/* A rank ends at a random moment; the others' call fails and names it. */
TEST(a_process_that_is_killed) {
  for (int turn = 0; turn < 12; ++turn) {
    TestUniqueId id;
    EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
    const auto patience = std::chrono::microseconds(check::random()() % 30000);
    const int victim = static_cast<int>(check::random()() % 3);
    in_processes(3, [&](int rank) {
      cudaSetDevice(rank);
      void *comm = nullptr;
      EXPECT_EQUAL(ncclCommInitRank(&comm, 3, id, rank), 0);
      Buffer<float> values(300000);
      std::thread killer;
      if (rank == victim) {
        killer = std::thread([&] {
          std::this_thread::sleep_for(patience);
          kill(getpid(), SIGKILL);
        });
      }
      int code = 0;
      while (code == 0) code = ncclAllReduce(values, values, 300000, kNcclFloat32, kNcclSum, comm, nullptr);
      if (rank == victim) killer.join();
      EXPECT_EQUAL(code, kRemote);
      EXPECT(says(text("The process of rank ", victim, " (").c_str()) && says("has ended")); /* no timeout: that has its own text */
      int reported = 0;
      EXPECT_EQUAL(ncclCommGetAsyncError(comm, &reported), 0);
      EXPECT_EQUAL(reported, kRemote);
      EXPECT_EQUAL(ncclCommAbort(comm), 0);
    }, {victim});
  }
}

/* Nobody waits in a call: who asks for errors is told. */
TEST(the_asynchronous_error_tells_of_a_dead_process_and_the_rest_go_on) {
  TestUniqueId id;
  EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
  in_processes(3, [&](int rank) {
    cudaSetDevice(rank);
    void *comm = nullptr, *rest = nullptr;
    EXPECT_EQUAL(ncclCommInitRank(&comm, 3, id, rank), 0);
    if (rank == 1) kill(getpid(), SIGKILL);
    int error = 0;
    while (error == 0) { /* for ever, if nobody tells: then the test's timeout ends it */
      EXPECT_EQUAL(ncclCommGetAsyncError(comm, &error), 0);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQUAL(error, kRemote);
    const int excluded[] = {1};
    EXPECT_EQUAL(ncclCommShrink(comm, excluded, 1, &rest, nullptr, 1), 0);
    Buffer<int32_t> value(1);
    value[0] = rank + 1;
    EXPECT_EQUAL(ncclAllReduce(value, value, 1, kNcclInt32, kNcclSum, rest, nullptr), 0);
    EXPECT_EQUAL(value[0], 4);
    EXPECT_EQUAL(ncclCommDestroy(rest), 0);
    EXPECT_EQUAL(ncclCommAbort(comm), 0);
  }, {1});
  EXPECT(!exists(id));
}

TEST(a_silent_process) {
  SharedFlag ended;
  with_processes(2, [&](int rank, void *comm) {
    Buffer<float> value(4);
    if (rank == 0) {
      while (ended.value() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return;
    }
    EXPECT_EQUAL(ncclAllReduce(value, value, 4, kNcclFloat32, kNcclSum, comm, nullptr), kRemote);
    ended.value() = 1;
    EXPECT(says("Rank 1 waited 3 s for rank 0 to call AllReduce of 4 float32, sum"));
  });
}

TEST(calls_that_differ) {
  with_processes(2, [](int rank, void *comm) {
    Buffer<float> value(4);
    EXPECT_EQUAL(ncclAllReduce(value, value, rank == 0 ? 4 : 3, kNcclFloat32, kNcclSum, comm, nullptr),
                 static_cast<int>(kNcclInvalidUsage));
    EXPECT(says("rank 0 called AllReduce of 4 float32, sum, rank 1 called AllReduce of 3 float32, sum"));
  });
  with_processes(2, [](int rank, void *comm) {
    Buffer<float> value(4);
    const int code = rank == 0 ? ncclSend(value, 4, kNcclFloat32, 1, comm, nullptr)
                               : ncclRecv(value, 3, kNcclFloat32, 0, comm, nullptr);
    EXPECT_EQUAL(code, static_cast<int>(kNcclInvalidUsage));
    EXPECT(says("Rank 0 sends 4 float32 to rank 1, which receives 3 float32"));
  });
}

TEST(who_leaves_revokes_or_aborts_is_named) {
  for (const int way : {0, 1, 2}) {
    TestUniqueId id;
    EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
    SharedFlag waiting;
    in_processes(2, [&](int rank) {
      cudaSetDevice(rank);
      void *comm = nullptr;
      Buffer<float> value(4);
      EXPECT_EQUAL(ncclCommInitRank(&comm, 2, id, rank), 0);
      if (rank == 0) {
        until_asleep(waiting.value());
        if (way == 2) EXPECT_EQUAL(ncclCommRevoke(comm, 0), 0);
        EXPECT_EQUAL(way == 1 ? ncclCommAbort(comm) : ncclCommDestroy(comm), 0);
        return;
      }
      waiting.value() = getpid();
      EXPECT_EQUAL(ncclAllReduce(value, value, 4, kNcclFloat32, kNcclSum, comm, nullptr), kRemote);
      EXPECT(says(way == 0 ? "Rank 0 destroyed its communicator while others wait for it"
                  : way == 1 ? "Rank 0 aborted the communicator" : "Rank 0 revoked the communicator"));
      EXPECT_EQUAL(ncclCommDestroy(comm), 0);
    });
  }
}

TEST(who_does_not_join_is_named_and_nothing_is_left) {
  TestUniqueId id;
  EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
  in_processes(2, [&](int rank) { /* of three */
    cudaSetDevice(rank);
    void *comm = nullptr;
    EXPECT_EQUAL(ncclCommInitRank(&comm, 3, id, rank), kRemote);
    EXPECT(says("Waited 3 s for rank 2 to join"));
  });
  EXPECT(!exists(id));
  /* A rank that ends while others still join. */
  EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
  SharedFlag waiting;
  in_processes(2, [&](int rank) {
    cudaSetDevice(rank);
    void *comm = nullptr;
    if (rank == 0) waiting.value() = getpid();
    else until_asleep(waiting.value());
    if (rank == 1) die_asleep();
    EXPECT_EQUAL(ncclCommInitRank(&comm, 3, id, rank), kRemote);
    EXPECT(says("The process of rank 1 ("));
  }, {1});
  EXPECT(!exists(id));
}

TEST(a_device_and_a_rank_are_one_processs_alone) {
  TestUniqueId id;
  EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
  in_processes(2, [&](int rank) {
    cudaSetDevice(0);
    void *comm = nullptr;
    const int code = ncclCommInitRank(&comm, 2, id, rank);
    EXPECT_EQUAL(code, static_cast<int>(kNcclInvalidUsage));
    EXPECT(says("both use device 0: each rank needs a device of its own"));
  });
  EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
  SharedFlag refused;
  in_processes(2, [&](int process) {
    cudaSetDevice(process);
    void *comm = nullptr;
    const int code = ncclCommInitRank(&comm, 2, id, 0);
    if (code == static_cast<int>(kNcclInvalidArgument)) {
      EXPECT(says("Rank 0 has joined this communicator already"));
      ++refused.value();
    } else {
      EXPECT_EQUAL(code, kRemote);
    }
  });
  EXPECT_EQUAL(refused.value().load(), 1);
}

/* All processes die before the last rank joins: their file stays, until another process starts. */
TEST(the_next_start_removes_what_a_crash_left) {
  TestUniqueId id;
  EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
  in_processes(1, [&](int) {
    die_asleep();
    void *comm = nullptr;
    ncclCommInitRank(&comm, 2, id, 0);
  }, {0});
  struct stat status {};
  EXPECT_EQUAL(stat(file_of(id).c_str(), &status), 0);
  EXPECT_EQUAL(status.st_mode & 0777, 0600u);
  with_processes(2, [](int, void *) {});
  EXPECT(!exists(id));
}

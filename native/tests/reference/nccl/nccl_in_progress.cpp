/* Communicators that are not blocking: what answers that a call is in progress, and what is refused until it is not. */
#include <climits>

#include "nccl/ranks.h"

using namespace ranks_test;

namespace {

/* ncclConfig_t of NCCL 2.28.9. */
struct Config {
  size_t size = 80;
  unsigned int magic = 0xcafebeef, version = 22809;
  int blocking = 0, cga_cluster_size = INT_MIN, min_ctas = INT_MIN, max_ctas = INT_MIN;
  const char *net_name = nullptr;
  int split_share = INT_MIN, traffic_class = INT_MIN;
  const char *comm_name = nullptr;
  int collnet_enable = INT_MIN, cta_policy = INT_MIN, shrink_share = INT_MIN, nvls_ctas = INT_MIN,
      channels_per_net_peer = INT_MIN, nvlink_centric_sched = INT_MIN;
};

int polled(void *comm) {
  int state = kNcclInProgress;
  while (state == kNcclInProgress) {
    EXPECT_EQUAL(ncclCommGetAsyncError(comm, &state), 0);
    std::this_thread::yield();
  }
  return state;
}

/* Runs the body on ranks that are threads, whose communicators have been made. */
void with_polled(int ranks, const std::function<void(int, void *)> &body) {
  TestUniqueId id;
  EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
  std::vector<std::thread> threads;
  std::atomic<int> finished{0};
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      cudaSetDevice(rank);
      const Config config;
      void *comm = nullptr;
      EXPECT_EQUAL(ncclCommInitRankConfig(&comm, ranks, id, rank, &config), kNcclInProgress);
      EXPECT_EQUAL(polled(comm), 0);
      body(rank, comm);
      ++finished;
      while (finished < ranks) std::this_thread::yield(); /* a rank that leaves early would be an error to others */
      EXPECT_EQUAL(ncclCommFinalize(comm), kNcclInProgress);
      EXPECT_EQUAL(polled(comm), 0);
      EXPECT_EQUAL(ncclCommDestroy(comm), 0);
    });
  }
  for (std::thread &thread : threads) thread.join();
}

}  // namespace

TEST(calls_are_in_progress_until_asked) {
  with_polled(2, [](int, void *comm) {
    Buffer<float> buffer(1);
    buffer[0] = 1;
    for (int call = 0; call < 4; ++call) {
      EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, comm, nullptr), kNcclInProgress);
      EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, comm, nullptr), kNcclInvalidArgument);
      EXPECT_EQUAL(polled(comm), 0);
    }
    EXPECT_EQUAL(buffer[0], 16.0f);
    ncclGroupStart();
    EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, comm, nullptr), 0);
    EXPECT_EQUAL(ncclGroupEnd(), kNcclInProgress);
    EXPECT_EQUAL(polled(comm), 0);
    EXPECT_EQUAL(buffer[0], 32.0f);
  });
}

TEST(parts_are_written_when_the_parent_is_done) {
  with_polled(2, [](int, void *comm) {
    void *part = comm;
    EXPECT_EQUAL(ncclCommSplit(comm, 0, 0, &part, nullptr), 0);
    EXPECT_EQUAL(part, nullptr);
    int count = 0;
    EXPECT_EQUAL(ncclCommCount(comm, &count), kNcclInvalidArgument);
    EXPECT_EQUAL(polled(comm), 0);
    EXPECT_EQUAL(ncclCommCount(part, &count), 0); /* ready without being polled */
    EXPECT_EQUAL(count, 2);
    Buffer<float> buffer(1);
    buffer[0] = 1;
    EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, part, nullptr), kNcclInProgress);
    EXPECT_EQUAL(polled(part), 0);
    EXPECT_EQUAL(buffer[0], 2.0f);
    EXPECT_EQUAL(ncclCommAbort(part), 0);
  });
}

TEST(windows_are_written_when_the_call_is_done) {
  with_polled(2, [](int, void *comm) {
    void *memory = nullptr, *window = comm;
    EXPECT_EQUAL(ncclMemAlloc(&memory, 4096), 0);
    EXPECT_EQUAL(ncclCommWindowRegister(comm, memory, 4096, &window, 1), 0);
    EXPECT_EQUAL(window, nullptr);
    EXPECT_EQUAL(polled(comm), 0);
    EXPECT_EQUAL(window != nullptr, true);
    EXPECT_EQUAL(ncclCommWindowDeregister(comm, window), 0);
    EXPECT_EQUAL(ncclMemFree(memory), 0);
  });
}

namespace {

/* A failed communicator answers all but its revocation with the failure, and can be shrunk afterwards. */
void expect_failed_until_revoked(void *comm, int failure) {
  Buffer<float> buffer(1);
  int count = 0;
  EXPECT_EQUAL(polled(comm), failure);
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, comm, nullptr), failure);
  EXPECT_EQUAL(ncclCommCount(comm, &count), failure);
  EXPECT_EQUAL(ncclCommFinalize(comm), failure);
  EXPECT_EQUAL(ncclCommDestroy(comm), failure);
  EXPECT_EQUAL(ncclCommRevoke(comm, 0), kNcclInProgress);
  int state = kNcclInProgress;
  while (state == kNcclInProgress) EXPECT_EQUAL(ncclCommGetAsyncError(comm, &state), 0);
}

}  // namespace

TEST(a_refused_call_leaves_a_failed_communicator) {
  with_polled(1, [](int, void *world) {
    void *comm = nullptr;
    Buffer<float> buffer(1);
    EXPECT_EQUAL(ncclCommSplit(world, 0, 0, &comm, nullptr), 0);
    EXPECT_EQUAL(polled(world), 0);
    EXPECT_EQUAL(ncclBroadcast(buffer, buffer, 1, kNcclFloat32, -1, comm, nullptr), kNcclInvalidArgument);
    expect_failed_until_revoked(comm, kNcclInvalidArgument);
    EXPECT_EQUAL(ncclCommAbort(comm), 0);
  });
}

TEST(a_refused_group_leaves_all_its_communicators_failed) {
  with_polled(1, [](int, void *world) {
    void *comm = nullptr, *other = nullptr;
    Buffer<float> buffer(1);
    EXPECT_EQUAL(ncclCommSplit(world, 0, 0, &comm, nullptr), 0);
    EXPECT_EQUAL(polled(world), 0);
    EXPECT_EQUAL(ncclCommSplit(world, 0, 0, &other, nullptr), 0);
    EXPECT_EQUAL(polled(world), 0);
    ncclGroupStart();
    EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, other, nullptr), 0);
    EXPECT_EQUAL(ncclBroadcast(buffer, buffer, 1, kNcclFloat32, -1, comm, nullptr), kNcclInvalidArgument);
    EXPECT_EQUAL(ncclGroupEnd(), kNcclInvalidArgument);
    expect_failed_until_revoked(comm, kNcclInvalidArgument);
    expect_failed_until_revoked(other, kNcclInvalidArgument);
    EXPECT_EQUAL(ncclCommAbort(comm), 0);
    EXPECT_EQUAL(ncclCommAbort(other), 0);
    ncclGroupStart(); /* without a call: nothing happens to anyone */
    EXPECT_EQUAL(ncclGroupEnd(), 0);
  });
}

TEST(memory_that_is_not_of_nccl_leaves_a_failed_communicator) {
  with_polled(1, [](int, void *world) {
    void *comm = nullptr, *window = nullptr;
    Buffer<float> buffer(1024);
    EXPECT_EQUAL(ncclCommSplit(world, 0, 0, &comm, nullptr), 0);
    EXPECT_EQUAL(polled(world), 0);
    EXPECT_EQUAL(ncclCommWindowRegister(comm, buffer, 4096, &window, 1), 0);
    expect_failed_until_revoked(comm, kNcclUnhandledCudaError);
    EXPECT_EQUAL(window, nullptr);
    EXPECT_EQUAL(ncclCommAbort(comm), 0);
  });
}

TEST(a_call_in_progress_waits_outside_and_ends_when_revoked_or_aborted) {
  for (const bool revoked : {true, false}) {
    std::atomic<bool> ended{false};
    with_polled(2, [&](int rank, void *world) {
      void *comm = nullptr;
      Buffer<float> buffer(1);
      EXPECT_EQUAL(ncclCommSplit(world, 0, 0, &comm, nullptr), 0);
      EXPECT_EQUAL(polled(world), 0);
      if (rank == 0) { /* the other does not come */
        EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, comm, nullptr), kNcclInProgress);
        for (int look = 0; look < 100; ++look) {
          int state = 0;
          EXPECT_EQUAL(ncclCommGetAsyncError(comm, &state), 0);
          EXPECT_EQUAL(state, kNcclInProgress);
        }
        if (revoked) {
          EXPECT_EQUAL(ncclCommRevoke(comm, 0), kNcclInProgress);
          for (int state = kNcclInProgress; state == kNcclInProgress;) EXPECT_EQUAL(ncclCommGetAsyncError(comm, &state), 0);
        }
      } else {
        while (!ended) std::this_thread::yield(); /* its own abort would end the call that is watched */
      }
      EXPECT_EQUAL(ncclCommAbort(comm), 0);
      ended = true;
    });
  }
}

TEST(a_shrink_without_the_others_ends_when_aborted) {
  std::atomic<bool> ended{false};
  with_polled(3, [&](int rank, void *world) {
    void *comm = nullptr, *rest = nullptr;
    EXPECT_EQUAL(ncclCommSplit(world, 0, 0, &comm, nullptr), 0);
    EXPECT_EQUAL(polled(world), 0);
    if (rank == 0) {
      const int excluded = 2;
      EXPECT_EQUAL(ncclCommShrink(comm, &excluded, 1, &rest, nullptr, 0), 0);
      for (int look = 0; look < 100; ++look) {
        int state = 0;
        EXPECT_EQUAL(ncclCommGetAsyncError(comm, &state), 0);
        EXPECT_EQUAL(state, kNcclInProgress);
      }
    } else {
      while (!ended) std::this_thread::yield(); /* their abort would end the call that is watched */
    }
    EXPECT_EQUAL(ncclCommAbort(comm), 0);
    ended = true;
    EXPECT_EQUAL(rest, nullptr);
  });
}

TEST(a_rank_that_has_not_seen_all_join_ends_what_the_others_wait_for) {
  for (const bool revoked : {true, false}) {
    TestUniqueId id;
    EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
    const Config config;
    void *comm = nullptr;
    EXPECT_EQUAL(ncclCommInitRankConfig(&comm, 2, id, 0, &config), kNcclInProgress);
    std::atomic<bool> joined{false};
    std::thread other([&] {
      cudaSetDevice(1);
      void *waiting = nullptr;
      EXPECT_EQUAL(ncclCommInitRank(&waiting, 2, id, 1), 0);
      joined = true;
      Buffer<float> buffer(1);
      EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 1, kNcclFloat32, kNcclSum, waiting, nullptr), kNcclRemoteError);
      EXPECT_EQUAL(std::string(ncclGetLastError(nullptr)),
                   std::string(revoked ? "Rank 0 revoked the communicator" : "Rank 0 aborted the communicator"));
      EXPECT_EQUAL(ncclCommAbort(waiting), 0);
    });
    while (!joined) std::this_thread::yield();
    if (revoked) EXPECT_EQUAL(ncclCommRevoke(comm, 0), kNcclInProgress);
    else EXPECT_EQUAL(ncclCommAbort(comm), 0);
    other.join();
    if (revoked) EXPECT_EQUAL(ncclCommAbort(comm), 0);
  }
}

TEST(a_rank_that_never_joins_is_not_waited_for_in_the_call) {
  TestUniqueId id;
  EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
  const Config config;
  void *comm = nullptr;
  EXPECT_EQUAL(ncclCommInitRankConfig(&comm, 2, id, 0, &config), kNcclInProgress);
  for (int look = 0; look < 10; ++look) {
    int state = 0;
    EXPECT_EQUAL(ncclCommGetAsyncError(comm, &state), 0);
    EXPECT_EQUAL(state, kNcclInProgress);
  }
  EXPECT_EQUAL(ncclCommAbort(comm), 0);
}

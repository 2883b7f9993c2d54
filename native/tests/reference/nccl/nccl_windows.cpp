/* Symmetric windows: what the ranks of a collective must have alike where their buffers lie in windows. */
#include <cstdlib>

#include "nccl/processes.h"

using namespace ranks_test;

namespace {

constexpr size_t kCount = 300;
constexpr size_t kBytes = 65536;

/* Memory of a rank, in a window of its communicator. */
class Windowed {
 public:
  explicit Windowed(void *comm) : comm_(comm) {
    EXPECT_EQUAL(ncclMemAlloc(&memory_, kBytes), 0);
    EXPECT_EQUAL(ncclCommWindowRegister(comm, memory_, kBytes, &window_, 1), 0);
    EXPECT(window_ != nullptr);
  }
  Windowed(const Windowed &) = delete;
  ~Windowed() {
    EXPECT_EQUAL(ncclCommWindowDeregister(comm_, window_), 0);
    EXPECT_EQUAL(ncclMemFree(memory_), 0);
  }
  float *at(size_t byte) const { return reinterpret_cast<float *>(static_cast<char *>(memory_) + byte); }

 private:
  void *comm_, *memory_ = nullptr, *window_ = nullptr;
};

void fill(float *values, size_t count, int rank) {
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(1000 * rank) + static_cast<float>(i);
}

void expect_gathered(const float *values, int ranks) {
  for (int rank = 0; rank < ranks; ++rank) {
    for (size_t i = 0; i < kCount; ++i) {
      EXPECT_EQUAL(values[static_cast<size_t>(rank) * kCount + i], static_cast<float>(1000 * rank) + static_cast<float>(i));
    }
  }
}

/* Runs the body on ranks that are threads, then on ranks that are processes. */
void with_both(int ranks, const std::function<void(int, void *)> &body) {
  with_processes(ranks, body);
  with_ranks(ranks, body);
}

}  // namespace

TEST(gathers_between_windows) {
  for (const int ranks : {2, 4}) {
    with_both(ranks, [&](int rank, void *comm) {
      const Windowed memory(comm);
      /* Nobody else looks at what a rank sends: it may lie anywhere. */
      float *send = memory.at(32768 + 256 * static_cast<size_t>(rank)), *receive = memory.at(256);
      fill(send, kCount, rank);
      EXPECT_EQUAL(ncclAllGather(send, receive, kCount, kNcclFloat32, comm, nullptr), 0);
      expect_gathered(receive, ranks);
      float *own = receive + static_cast<size_t>(rank) * kCount;
      EXPECT_EQUAL(ncclAllGather(own, receive, kCount, kNcclFloat32, comm, nullptr), 0);
      expect_gathered(receive, ranks);
    });
  }
}

TEST(other_places_are_refused) {
  with_both(2, [](int rank, void *comm) {
    const Windowed memory(comm);
    float *receive = memory.at(rank == 0 ? 256 : 512);
    EXPECT_EQUAL(ncclAllGather(memory.at(32768), receive, kCount, kNcclFloat32, comm, nullptr),
                 static_cast<int>(kNcclInvalidUsage));
    EXPECT(says("AllGather of 300 float32: symmetric memory must lie at the same place of the same window on all ranks: "
                "rank 0 has window 1 at byte 256, rank 1 has window 1 at byte 512"));
  });
}

TEST(other_windows_are_refused) {
  with_both(2, [](int rank, void *comm) {
    const Windowed first(comm), second(comm);
    const Windowed &used = rank == 0 ? first : second;
    EXPECT_EQUAL(ncclReduceScatter(used.at(0), first.at(32768), kCount, kNcclFloat32, kNcclSum, comm, nullptr),
                 static_cast<int>(kNcclInvalidUsage));
    EXPECT(says("rank 0 has window 1 at byte 0, rank 1 has window 2 at byte 0"));
  });
}

TEST(a_rank_without_a_window_is_refused) {
  with_both(2, [](int rank, void *comm) {
    const Windowed memory(comm);
    Buffer<float> plain(2 * kCount);
    void *receive = rank == 0 ? static_cast<void *>(memory.at(0)) : static_cast<void *>(plain);
    EXPECT_EQUAL(ncclAllGather(memory.at(32768), receive, kCount, kNcclFloat32, comm, nullptr),
                 static_cast<int>(kNcclInvalidUsage));
    EXPECT(says("rank 0 has window 1 at byte 0, rank 1 has no window"));
  });
}

/* Of these NCCL 2.28.9 has no symmetric kernels. */
TEST(collectives_without_symmetric_kernels_lie_anywhere) {
  with_both(2, [](int rank, void *comm) {
    const Windowed memory(comm);
    float *values = memory.at(rank == 0 ? 256 : 512);
    fill(values, kCount, rank);
    EXPECT_EQUAL(ncclAllReduce(values, values, kCount, kNcclFloat32, kNcclMax, comm, nullptr), 0);
    EXPECT_EQUAL(values[1], 1001.0F);
    EXPECT_EQUAL(ncclBroadcast(values, values, kCount, kNcclFloat32, 0, comm, nullptr), 0);
    Buffer<float> plain(2 * kCount);
    EXPECT_EQUAL(ncclAllGather(values, plain, kCount, kNcclFloat32, comm, nullptr), 0);
  });
}

TEST(windows_begin_at_pages) {
  with_ranks(1, [](int, void *comm) {
    void *memory = nullptr, *window = nullptr;
    EXPECT_EQUAL(ncclMemAlloc(&memory, kBytes), 0);
    EXPECT_EQUAL(ncclCommWindowRegister(comm, static_cast<char *>(memory) + 256, 4096, &window, 1),
                 static_cast<int>(kNcclInvalidArgument));
    EXPECT(says("a window must begin at a multiple of 4096 bytes of its memory"));
    EXPECT_EQUAL(ncclMemFree(memory), 0);
  });
}

/* As on GPUs that do not reach each other: NCCL answers with a buffer's handle. */
TEST(without_windows_everything_is_a_buffer) {
  setenv("NCCL_WIN_ENABLE", "0", 1);
  with_both(2, [](int rank, void *comm) {
    const Windowed memory(comm);
    float *receive = memory.at(rank == 0 ? 256 : 512);
    fill(memory.at(32768), kCount, rank);
    EXPECT_EQUAL(ncclAllGather(memory.at(32768), receive, kCount, kNcclFloat32, comm, nullptr), 0);
    expect_gathered(receive, 2);
  });
  unsetenv("NCCL_WIN_ENABLE");
}

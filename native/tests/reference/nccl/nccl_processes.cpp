/* Communicators among processes: every operation has the bits that threads get. */
#include <sys/mman.h>

#include <cstring>

#include "nccl/processes.h"

using namespace ranks_test;

namespace {

/* What a rank gives: bytes that follow from rank, place and seed. Floats are small and never NaN. */
void fill(void *data, int dtype, size_t count, int rank) {
  std::mt19937_64 random(check::seed() * 1000 + static_cast<uint64_t>(rank));
  auto *bytes = static_cast<unsigned char *>(data);
  for (size_t i = 0; i < count; ++i) {
    const uint64_t drawn = random();
    const float value = static_cast<float>(static_cast<int>(drawn % 4001) - 2000) / 64;
    const double wide = value;
    switch (dtype) {
      case kNcclFloat32: std::memcpy(bytes + 4 * i, &value, 4); break;
      case kNcclFloat64: std::memcpy(bytes + 8 * i, &wide, 8); break;
      case kNcclFloat16: store(data, static_cast<int64_t>(i), kNVTEFloat16, value); break;
      case kNcclBfloat16: store(data, static_cast<int64_t>(i), kNVTEBFloat16, value); break;
      case kNcclFloat8e4m3: store(data, static_cast<int64_t>(i), kNVTEFloat8E4M3, value); break;
      case kNcclFloat8e5m2: store(data, static_cast<int64_t>(i), kNVTEFloat8E5M2, value); break;
      default: std::memcpy(bytes + i * nccl_dtype_size(dtype), &drawn, nccl_dtype_size(dtype));
    }
  }
}

/* A checksum of the results of every operation, type and reduction, with `count` elements. */
uint64_t all_operations(int rank, int ranks, void *comm, size_t count) {
  uint64_t sum = 0xcbf29ce484222325;
  const auto n = static_cast<size_t>(ranks);
  for (int dtype = 0; dtype < kNcclDtypes; ++dtype) {
    const size_t size = nccl_dtype_size(dtype);
    Buffer<char> one(count * size + 1), all(n * count * size + 1), out(count * size + 1), all_out(n * count * size + 1);
    const auto restart = [&] {
      std::memset(one, 0, one.count());
      std::memset(all, 0, all.count());
      fill(one, dtype, count, rank);
      fill(all, dtype, n * count, rank);
      std::memset(out, 0, out.count());
      std::memset(all_out, 0, all_out.count());
    };
    const auto add = [&](Buffer<char> &result) {
      for (size_t i = 0; i < result.count(); ++i) sum = (sum ^ static_cast<unsigned char>(result[i])) * 0x100000001b3;
    };
    int premultiplied = 0;
    alignas(8) unsigned char factor[8];
    fill(factor, dtype, 1, rank + 77);
    EXPECT_EQUAL(ncclRedOpCreatePreMulSum(&premultiplied, factor, dtype, kNcclScalarHostImmediate, comm), 0);
    for (int op = 0; op <= kNcclOps; ++op) {
      const int called = op == kNcclOps ? premultiplied : op;
      restart();
      EXPECT_EQUAL(ncclAllReduce(one, out, count, dtype, called, comm, nullptr), 0);
      add(out);
      EXPECT_EQUAL(ncclAllReduce(one, one, count, dtype, called, comm, nullptr), 0);
      add(one);
      restart();
      EXPECT_EQUAL(ncclReduce(one, out, count, dtype, called, ranks - 1, comm, nullptr), 0);
      add(out);
      EXPECT_EQUAL(ncclReduceScatter(all, out, count, dtype, called, comm, nullptr), 0);
      add(out);
      EXPECT_EQUAL(ncclReduceScatter(all, &all[static_cast<size_t>(rank) * count * size], count, dtype, called, comm, nullptr), 0);
      add(all);
    }
    EXPECT_EQUAL(ncclRedOpDestroy(premultiplied, comm), 0);
    restart();
    EXPECT_EQUAL(ncclAllGather(one, all_out, count, dtype, comm, nullptr), 0);
    add(all_out);
    char *own = &all[static_cast<size_t>(rank) * count * size];
    EXPECT_EQUAL(ncclAllGather(own, all, count, dtype, comm, nullptr), 0);
    add(all);
    restart();
    EXPECT_EQUAL(ncclAlltoAll(all, all_out, count, dtype, comm, nullptr), 0);
    add(all_out);
    EXPECT_EQUAL(ncclBroadcast(rank == 0 ? static_cast<void *>(one) : nullptr, out, count, dtype, 0, comm, nullptr), 0);
    add(out);
    EXPECT_EQUAL(ncclGather(one, all_out, count, dtype, ranks - 1, comm, nullptr), 0);
    add(all_out);
    EXPECT_EQUAL(ncclScatter(all, out, count, dtype, 0, comm, nullptr), 0);
    add(out);
    /* To the next, from the one before, and to itself. */
    EXPECT_EQUAL(ncclGroupStart(), 0);
    EXPECT_EQUAL(ncclSend(one, count, dtype, (rank + 1) % ranks, comm, nullptr), 0);
    EXPECT_EQUAL(ncclRecv(out, count, dtype, (rank + ranks - 1) % ranks, comm, nullptr), 0);
    EXPECT_EQUAL(ncclSend(all, count, dtype, rank, comm, nullptr), 0);
    EXPECT_EQUAL(ncclRecv(all_out, count, dtype, rank, comm, nullptr), 0);
    EXPECT_EQUAL(ncclGroupEnd(), 0);
    add(out);
    add(all_out);
  }
  return sum;
}

/* Memory that the test's processes see. */
class SharedSums {
 public:
  explicit SharedSums(size_t count) : count_(count) {
    sums_ = static_cast<uint64_t *>(mmap(nullptr, count * 8, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
  }
  SharedSums(const SharedSums &) = delete;
  ~SharedSums() { munmap(sums_, count_ * 8); }
  uint64_t &operator[](int i) { return sums_[i]; }

 private:
  uint64_t *sums_;
  size_t count_;
};

}  // namespace

/* Processes first: a process that has threads is not to be forked. */
TEST(every_operation_has_the_bits_of_threads) {
  for (const int ranks : {2, 3}) {
    for (const size_t count : {size_t{0}, size_t{1}, size_t{77}, size_t{70001}}) {
      SharedSums of_processes(static_cast<size_t>(ranks));
      with_processes(ranks, [&](int rank, void *comm) { of_processes[rank] = all_operations(rank, ranks, comm, count); });
      /* Threads, in a process of their own. */
      SharedSums of_threads(static_cast<size_t>(ranks));
      in_processes(1, [&](int) {
        with_ranks(ranks, [&](int rank, void *comm) { of_threads[rank] = all_operations(rank, ranks, comm, count); });
      });
      for (int rank = 0; rank < ranks; ++rank) {
        EXPECT(of_threads[rank] != 0);
        EXPECT_EQUAL(of_processes[rank], of_threads[rank]);
      }
    }
  }
}

TEST(threads_and_processes_mix) {
  TestUniqueId id;
  EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
  SharedSums sums(4), expected(4);
  in_processes(2, [&](int process) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < 2; ++thread) {
      threads.emplace_back([&, rank = 2 * process + thread] {
        cudaSetDevice(rank);
        void *comm = nullptr;
        EXPECT_EQUAL(ncclCommInitRank(&comm, 4, id, rank), 0);
        sums[rank] = all_operations(rank, 4, comm, 999);
        EXPECT_EQUAL(ncclCommDestroy(comm), 0);
      });
    }
    for (std::thread &thread : threads) thread.join();
  });
  in_processes(1, [&](int) {
    with_ranks(4, [&](int rank, void *comm) { expected[rank] = all_operations(rank, 4, comm, 999); });
  });
  for (int rank = 0; rank < 4; ++rank) EXPECT_EQUAL(sums[rank], expected[rank]);
}

TEST(hundreds_of_mebibytes_pass_through) {
  with_processes(2, [](int rank, void *comm) {
    constexpr size_t kCount = size_t{160} << 20;
    Buffer<uint8_t> own(kCount), other(kCount);
    std::memset(own, rank + 1, kCount);
    EXPECT_EQUAL(ncclAllReduce(own, other, kCount, kNcclUint8, kNcclSum, comm, nullptr), 0);
    for (const size_t i : {size_t{0}, kCount / 2, kCount - 1}) EXPECT_EQUAL(static_cast<int>(other[i]), 3);
    EXPECT_EQUAL(ncclGroupStart(), 0);
    EXPECT_EQUAL(ncclSend(own, kCount, kNcclUint8, 1 - rank, comm, nullptr), 0);
    EXPECT_EQUAL(ncclRecv(other, kCount, kNcclUint8, 1 - rank, comm, nullptr), 0);
    EXPECT_EQUAL(ncclGroupEnd(), 0);
    EXPECT_EQUAL(static_cast<int>(other[kCount - 1]), 2 - rank);
  });
}

TEST(a_thousand_small_ones_in_groups) {
  with_processes(4, [](int rank, void *comm) {
    Buffer<int32_t> a(3), b(3), c(5), d(5);
    for (int turn = 0; turn < 1000; ++turn) {
      a[0] = rank + turn;
      c[4] = 10 * rank + turn;
      EXPECT_EQUAL(ncclGroupStart(), 0);
      EXPECT_EQUAL(ncclAllReduce(a, b, 3, kNcclInt32, kNcclSum, comm, nullptr), 0);
      EXPECT_EQUAL(ncclRecv(d, 5, kNcclInt32, rank ^ 1, comm, nullptr), 0);
      EXPECT_EQUAL(ncclSend(c, 5, kNcclInt32, rank ^ 1, comm, nullptr), 0);
      EXPECT_EQUAL(ncclAllReduce(b, b, 3, kNcclInt32, kNcclMax, comm, nullptr), 0);
      EXPECT_EQUAL(ncclGroupEnd(), 0);
      EXPECT_EQUAL(b[0], 6 + 4 * turn);
      EXPECT_EQUAL(d[4], 10 * (rank ^ 1) + turn);
    }
  });
}

TEST(split_and_shrink) {
  with_processes(4, [](int rank, void *comm) {
    void *pair = nullptr, *none = nullptr, *rest = nullptr;
    Buffer<int32_t> value(1);
    value[0] = 1 << rank;
    EXPECT_EQUAL(ncclCommSplit(comm, rank % 2, -rank, &pair, nullptr), 0);
    int count = 0, place = -1;
    EXPECT_EQUAL(ncclCommCount(pair, &count), 0);
    EXPECT_EQUAL(ncclCommUserRank(pair, &place), 0);
    EXPECT_EQUAL(count, 2);
    EXPECT_EQUAL(place, rank < 2 ? 1 : 0);
    EXPECT_EQUAL(ncclAllReduce(value, value, 1, kNcclInt32, kNcclSum, pair, nullptr), 0);
    EXPECT_EQUAL(value[0], rank % 2 == 0 ? 5 : 10);
    EXPECT_EQUAL(ncclCommSplit(comm, rank == 3 ? -1 : 7, 0, &none, nullptr), 0);
    EXPECT_EQUAL(none == nullptr, rank == 3);
    if (rank != 1) {
      const int excluded[] = {1};
      EXPECT_EQUAL(ncclCommShrink(comm, excluded, 1, &rest, nullptr, 0), 0);
      value[0] = rank;
      EXPECT_EQUAL(ncclAllReduce(value, value, 1, kNcclInt32, kNcclSum, rest, nullptr), 0);
      EXPECT_EQUAL(value[0], 5);
      EXPECT_EQUAL(ncclCommDestroy(rest), 0);
    }
    EXPECT_EQUAL(ncclCommDestroy(pair), 0);
    if (none != nullptr) EXPECT_EQUAL(ncclCommDestroy(none), 0);
    Buffer<int32_t> last(1);
    EXPECT_EQUAL(ncclAllReduce(last, last, 1, kNcclInt32, kNcclSum, comm, nullptr), 0);
  });
}

/* All threads of a process join at the same moment, again and again. */
TEST(threads_join_at_once) {
  in_processes(1, [](int) {
    for (int turn = 0; turn < 300; ++turn) with_ranks(4, [](int, void *) {});
  });
}

/* Ranks as threads, with buffers of their own, for the tests of communicators. */
#pragma once

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <functional>
#include <iterator>
#include <thread>

#include "check.h"
#include "nccl/world.h"

using namespace chagres::reference;

extern "C" {
struct TestUniqueId {
  char internal[128];
};
int ncclGetVersion(int *);
const char *ncclGetErrorString(int);
const char *ncclGetLastError(void *);
int ncclGetUniqueId(TestUniqueId *);
int ncclCommInitRank(void **, int, TestUniqueId, int);
int ncclCommInitAll(void **, int, const int *);
int ncclCommFinalize(void *);
int ncclCommDestroy(void *);
int ncclCommAbort(void *);
int ncclCommCount(void *, int *);
int ncclCommCuDevice(void *, int *);
int ncclCommUserRank(void *, int *);
int ncclCommGetAsyncError(void *, int *);
int ncclCommInitRankConfig(void **, int, TestUniqueId, int, const void *);
int ncclCommInitRankScalable(void **, int, int, int, const TestUniqueId *, const void *);
int ncclCommSplit(void *, int, int, void **, const void *);
int ncclCommShrink(void *, const int *, int, void **, const void *, int);
int ncclCommRevoke(void *, int);
int ncclCommRegister(void *, void *, size_t, void **);
int ncclCommDeregister(void *, void *);
int ncclCommWindowRegister(void *, void *, size_t, void **, int);
int ncclCommWindowDeregister(void *, void *);
int ncclMemAlloc(void **, size_t);
int ncclMemFree(void *);
int ncclRedOpCreatePreMulSum(int *, const void *, int, int, void *);
int ncclRedOpDestroy(int, void *);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int ncclReduce(const void *, void *, size_t, int, int, int, void *, void *);
int ncclBroadcast(const void *, void *, size_t, int, int, void *, void *);
int ncclBcast(void *, size_t, int, int, void *, void *);
int ncclAllGather(const void *, void *, size_t, int, void *, void *);
int ncclReduceScatter(const void *, void *, size_t, int, int, void *, void *);
int ncclAlltoAll(const void *, void *, size_t, int, void *, void *);
int ncclGather(const void *, void *, size_t, int, int, void *, void *);
int ncclScatter(const void *, void *, size_t, int, int, void *, void *);
int ncclSend(const void *, size_t, int, int, void *, void *);
int ncclRecv(void *, size_t, int, int, void *, void *);
int cudaSetDevice(int);
int cudaMalloc(void **, size_t);
int cudaFree(void *);
}

namespace ranks_test {

/* Device memory of T. */
template <class T>
class Buffer {
 public:
  explicit Buffer(size_t count) : count_(count) { EXPECT_EQUAL(cudaMalloc(&data_, count * sizeof(T)), 0); }
  Buffer(const Buffer &) = delete;
  ~Buffer() { cudaFree(data_); }
  T &operator[](size_t i) { return static_cast<T *>(data_)[i]; }
  operator void *() { return data_; }
  size_t count() const { return count_; }

 private:
  void *data_ = nullptr;
  size_t count_;
};

/* Runs `body(rank, comm)` on one thread a rank, each on its own device, and destroys the communicators. */
inline void with_ranks(int ranks, const std::function<void(int, void *)> &body) {
  TestUniqueId id;
  EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
  std::vector<std::thread> threads;
  std::atomic<int> finished{0};
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      cudaSetDevice(rank);
      void *comm = nullptr;
      EXPECT_EQUAL(ncclCommInitRank(&comm, ranks, id, rank), 0);
      body(rank, comm);
      ++finished;
      while (finished < ranks) std::this_thread::yield(); /* a rank that leaves early would be an error to others */
      ncclCommDestroy(comm);
    });
  }
  for (std::thread &thread : threads) thread.join();
}

/* Returns once the thread of this number, which is 0 until it is about to call, sleeps: it waits in its call. */
inline void until_asleep(const std::atomic<int> &thread) {
  while (true) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (thread == 0) continue;
    std::ifstream file(text("/proc/", thread.load(), "/stat"));
    const std::string stat(std::istreambuf_iterator<char>(file), {});
    const size_t name_end = stat.rfind(')');
    if (name_end == std::string::npos || stat.compare(name_end, 3, ") S") == 0) return; /* it has ended, or sleeps */
  }
}

}  // namespace ranks_test

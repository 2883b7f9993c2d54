/* Ranks as processes, for the tests of communicators: each is a child of the test. */
#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "nccl/ranks.h"

namespace ranks_test {

/* Runs `body(rank)` in a process for each rank; the test fails with those that do. Those of `killed` are to end by SIGKILL. */
inline void in_processes(int ranks, const std::function<void(int)> &body, const std::vector<int> &killed = {}) {
  std::fflush(stdout);
  std::vector<pid_t> children;
  for (int rank = 0; rank < ranks; ++rank) {
    const pid_t child = fork();
    if (child == 0) {
      const int before = check::failures();
      body(rank);
      std::fflush(stdout);
      _exit(check::failures() == before ? 0 : 1);
    }
    children.push_back(child);
  }
  for (int rank = 0; rank < ranks; ++rank) {
    int status = 0;
    EXPECT_EQUAL(waitpid(children[static_cast<size_t>(rank)], &status, 0), children[static_cast<size_t>(rank)]);
    const bool to_be_killed = std::find(killed.begin(), killed.end(), rank) != killed.end();
    if (to_be_killed) EXPECT(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    else EXPECT_EQUAL(status, 0);
  }
}

/* Where the processes that join by this id meet, until all have. */
inline std::string file_of(const TestUniqueId &id) {
  uint64_t words[2];
  std::memcpy(words, id.internal + 24, sizeof(words));
  char name[80];
  std::snprintf(name, sizeof(name), "/dev/shm/chagres-nccl-%u-%016llx%016llx", geteuid(),
                static_cast<unsigned long long>(words[0]), static_cast<unsigned long long>(words[1]));
  return name;
}

/* The same where each has its end of a communicator. */
inline void with_processes(int ranks, const std::function<void(int, void *)> &body) {
  TestUniqueId id;
  EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
  in_processes(ranks, [&](int rank) {
    cudaSetDevice(rank);
    void *comm = nullptr;
    EXPECT_EQUAL(ncclCommInitRank(&comm, ranks, id, rank), 0);
    EXPECT(access(file_of(id).c_str(), F_OK) != 0); /* nothing can be left of it */
    body(rank, comm);
    EXPECT_EQUAL(ncclCommDestroy(comm), 0);
  });
}

/* A number that the test's processes share. */
class SharedFlag {
 public:
  SharedFlag() {
    memory_ = mmap(nullptr, sizeof(std::atomic<int>), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  }
  SharedFlag(const SharedFlag &) = delete;
  ~SharedFlag() { munmap(memory_, sizeof(std::atomic<int>)); }
  std::atomic<int> &value() { return *static_cast<std::atomic<int> *>(memory_); }

 private:
  void *memory_;
};

inline bool says(const char *part) { return std::string(ncclGetLastError(nullptr)).find(part) != std::string::npos; }

}  // namespace ranks_test

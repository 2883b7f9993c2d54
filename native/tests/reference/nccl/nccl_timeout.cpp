/* Ranks that come too late. In a process of their own, since the timeout is read once. */
#include "check.h"
#include "nccl/world.h"

using namespace chagres::reference;

extern "C" {
struct TestUniqueId {
  char internal[128];
};
const char *ncclGetLastError(void *);
int ncclGetUniqueId(TestUniqueId *);
int ncclCommInitRank(void **, int, TestUniqueId, int);
int ncclCommInitAll(void **, int, const int *);
int ncclCommDestroy(void *);
int ncclAllReduce(const void *, void *, size_t, int, int, void *, void *);
int ncclRecv(void *, size_t, int, int, void *, void *);
int ncclGroupStart(void);
int ncclGroupEnd(void);
int cudaStreamCreateWithFlags(void **, unsigned);
int cudaStreamDestroy(void *);
int cudaStreamBeginCapture(void *, int);
int cudaStreamEndCapture(void *, void **);
int cudaGraphInstantiate(void **, const void *, unsigned long long);
int cudaGraphLaunch(const void *, void *);
int cudaGraphDestroy(void *);
int cudaGraphExecDestroy(void *);
const char *cudaGetErrorString(int);
int cudaMalloc(void **, size_t);
int cudaFree(void *);
}

SET_VARIABLE(CHAGRES_REFERENCE_NCCL_TIMEOUT, "1");

namespace {

bool says(const char *part) { return std::string(ncclGetLastError(nullptr)).find(part) != std::string::npos; }

}  // namespace

TEST(a_rank_that_never_joins) {
  TestUniqueId id;
  void *comm;
  EXPECT_EQUAL(ncclGetUniqueId(&id), 0);
  EXPECT_EQUAL(ncclCommInitRank(&comm, 2, id, 0), static_cast<int>(kNcclRemoteError));
  EXPECT(comm == nullptr);
  EXPECT(says("Waited 1 s for rank 1 to join"));
}

TEST(a_rank_that_never_calls) {
  void *comms[2], *buffer;
  EXPECT_EQUAL(cudaMalloc(&buffer, 16), 0);
  EXPECT_EQUAL(ncclCommInitAll(comms, 2, nullptr), 0);
  EXPECT_EQUAL(ncclAllReduce(buffer, buffer, 4, kNcclFloat32, kNcclSum, comms[1], nullptr), static_cast<int>(kNcclRemoteError));
  EXPECT(says("Rank 1 waited 1 s for rank 0 to call AllReduce of 4 float32, sum"));
  for (void *comm : comms) EXPECT_EQUAL(ncclCommDestroy(comm), 0);
  EXPECT_EQUAL(ncclCommInitAll(comms, 2, nullptr), 0);
  EXPECT_EQUAL(ncclRecv(buffer, 4, kNcclFloat32, 0, comms[1], nullptr), static_cast<int>(kNcclRemoteError));
  EXPECT(says("Rank 1 waited 1 s for rank 0 to send to rank 1"));
  for (void *comm : comms) EXPECT_EQUAL(ncclCommDestroy(comm), 0);
  EXPECT_EQUAL(cudaFree(buffer), 0);
}

constexpr const char *kOwnRank = "Rank 0 waited 1 s for rank 1 to call AllReduce of 4 float32, sum; this thread, which waits, makes the calls "
                                 "of rank 1: on the reference a call and the launch of a graph return when all ranks have made theirs, so give "
                                 "each rank a thread, or put the calls into one group";

TEST(a_thread_that_waits_for_itself) {
  void *comms[2], *buffers[2];
  for (void *&buffer : buffers) EXPECT_EQUAL(cudaMalloc(&buffer, 16), 0);
  const auto all_reduce = [&](int rank, void *stream) {
    return ncclAllReduce(buffers[rank], buffers[rank], 4, kNcclFloat32, kNcclSum, comms[rank], stream);
  };
  EXPECT_EQUAL(ncclCommInitAll(comms, 2, nullptr), 0);
  EXPECT_EQUAL(ncclGroupStart(), 0);
  for (const int rank : {0, 1}) EXPECT_EQUAL(all_reduce(rank, nullptr), 0);
  EXPECT_EQUAL(ncclGroupEnd(), 0);
  EXPECT_EQUAL(all_reduce(0, nullptr), static_cast<int>(kNcclRemoteError));
  EXPECT_EQUAL(std::string(ncclGetLastError(nullptr)), std::string(kOwnRank));
  for (void *comm : comms) EXPECT_EQUAL(ncclCommDestroy(comm), 0);

  EXPECT_EQUAL(ncclCommInitAll(comms, 2, nullptr), 0);
  void *streams[2], *graphs[2], *executables[2];
  for (const int rank : {0, 1}) {
    EXPECT_EQUAL(cudaStreamCreateWithFlags(&streams[rank], 1), 0);
    EXPECT_EQUAL(cudaStreamBeginCapture(streams[rank], 1), 0);
    EXPECT_EQUAL(all_reduce(rank, streams[rank]), 0);
    EXPECT_EQUAL(cudaStreamEndCapture(streams[rank], &graphs[rank]), 0);
    EXPECT_EQUAL(cudaGraphInstantiate(&executables[rank], graphs[rank], 0), 0);
  }
  EXPECT_EQUAL(cudaGraphLaunch(executables[0], streams[0]), 719);
  EXPECT_EQUAL(std::string(cudaGetErrorString(719)), std::string("a call of the graph was refused: ") + kOwnRank);
  for (const int rank : {0, 1}) {
    EXPECT_EQUAL(cudaGraphExecDestroy(executables[rank]), 0);
    EXPECT_EQUAL(cudaGraphDestroy(graphs[rank]), 0);
    EXPECT_EQUAL(cudaStreamDestroy(streams[rank]), 0);
    EXPECT_EQUAL(ncclCommDestroy(comms[rank]), 0);
    EXPECT_EQUAL(cudaFree(buffers[rank]), 0);
  }
}

/* Ranks that come too late. A program of its own, since the timeout is read once. */
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
int cudaMalloc(void **, size_t);
int cudaFree(void *);
}

namespace {

const int kTimeoutIsSet = setenv("CHAGRES_REFERENCE_NCCL_TIMEOUT", "1", 1);

bool says(const char *part) { return std::string(ncclGetLastError(nullptr)).find(part) != std::string::npos; }

}  // namespace

TEST(a_rank_that_never_joins) {
  EXPECT_EQUAL(kTimeoutIsSet, 0);
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

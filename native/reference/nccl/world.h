/*
 * Communicators among threads of one process. Ranks share a World; each posts its operations there, the one that makes an
 * operation complete computes it for all, the others wait.
 */
#ifndef CHAGRES_WORLD_H
#define CHAGRES_WORLD_H

#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda/cuda.h"

namespace chagres::reference {

/* ncclResult_t and ncclDataType_t of NCCL 2.28. */
enum NcclResult {
  kNcclSuccess = 0,
  kNcclUnhandledCudaError = 1,
  kNcclSystemError = 2,
  kNcclInternalError = 3,
  kNcclInvalidArgument = 4,
  kNcclInvalidUsage = 5,
  kNcclRemoteError = 6,
};

enum NcclDtype {
  kNcclInt8 = 0,
  kNcclUint8,
  kNcclInt32,
  kNcclUint32,
  kNcclInt64,
  kNcclUint64,
  kNcclFloat16,
  kNcclFloat32,
  kNcclFloat64,
  kNcclBfloat16,
  kNcclFloat8e4m3,
  kNcclFloat8e5m2,
  kNcclDtypes,
};

enum NcclOp { kNcclSum = 0, kNcclProd, kNcclMax, kNcclMin, kNcclAvg, kNcclOps };

size_t nccl_dtype_size(int dtype);
bool is_reducible(int dtype); /* all but FP8 */

/* out[0..count) = op over ranks of sources[rank][first .. first + count), in rank order; 16-bit floats are summed in FP32 and
 * rounded once. */
void reduce_elements(int dtype, int op, const std::vector<const void *> &sources, int64_t first, int64_t count, void *out);

struct Outcome {
  int code = kNcclSuccess;
  std::string text;
};

enum class Collective { AllReduce, Broadcast, Reduce, AllGather, ReduceScatter, AllToAll, Gather, Scatter };
const char *collective_name(Collective kind);

/* What every rank must say alike. */
struct Signature {
  Collective kind;
  size_t count;
  int dtype, op, root;
};

/* Something a rank waits for. */
struct Pending {
  bool done = false;
};

class World {
 public:
  World(int ranks) : members_(static_cast<size_t>(ranks)) {}

  int ranks() const { return static_cast<int>(members_.size()); }

  Outcome join(int rank, int device);
  Outcome wait_for_all_to_join();

  /* Posts without waiting. */
  Outcome post(int rank, const Signature &signature, const void *send, void *receive, std::shared_ptr<Pending> *pending);
  Outcome post_send(int rank, int peer, const void *send, size_t count, int dtype, std::shared_ptr<Pending> *pending);
  Outcome post_receive(int rank, int peer, void *receive, size_t count, int dtype, std::shared_ptr<Pending> *pending);
  Outcome wait(int rank, const std::shared_ptr<Pending> &pending);

  /* The rank's communicator is gone: who waits for it, or will, gets an error. */
  void leave(int rank, bool aborted);

  Outcome failure(); /* the first one; it stays */

 private:
  struct Member {
    bool joined = false, left = false;
    int device = -1;
    uint64_t next_round = 0;
  };
  struct Round : Pending {
    Signature signature;
    std::vector<const void *> sources;
    std::vector<void *> targets;
    std::vector<bool> posted;
    int arrived = 0;
  };
  struct Transfer : Pending {
    const void *source = nullptr;
    void *target = nullptr;
    size_t count = 0;
    int dtype = 0;
    bool has_source = false, has_target = false;
  };

  Outcome post_transfer(int from, int to, bool sending, const void *source, void *target, size_t count, int dtype,
                        std::shared_ptr<Pending> *pending);
  Outcome fail_all(int code, const std::string &text); /* mutex_ held */
  std::string missing_ranks(const std::shared_ptr<Pending> &pending) const;
  static void compute(const Round &round);

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;
  int joined_ = 0;
  Outcome failure_;
  std::deque<std::shared_ptr<Round>> rounds_; /* from the oldest that is not complete */
  uint64_t first_round_ = 0;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Transfer>>> transfers_; /* by sender and receiver */
};

/* How long a rank waits for others before it calls that an error: CHAGRES_REFERENCE_NCCL_TIMEOUT seconds, default 300. */
std::chrono::seconds collective_timeout();

}  // namespace chagres::reference

#endif /* CHAGRES_WORLD_H */

/*
 * Communicators. Ranks share a World, in which each posts its operations. Among threads of one process the one that makes an
 * operation complete computes it for all, the others wait; shared_world.h has what happens among processes.
 */
#ifndef CHAGRES_WORLD_H
#define CHAGRES_WORLD_H

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
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
  kNcclInProgress = 7,
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

enum NcclScalarResidence { kNcclScalarDevice = 0, kNcclScalarHostImmediate = 1 };

/* kNcclPreMulSum stands for whichever operation ncclRedOpCreatePreMulSum made. */
enum NcclOp { kNcclSum = 0, kNcclProd, kNcclMax, kNcclMin, kNcclAvg, kNcclOps, kNcclPreMulSum = kNcclOps };

size_t nccl_dtype_size(int dtype);

/* One number of a collective's type: what a pre-multiplied sum multiplies a rank's values by. */
struct Factor {
  alignas(8) unsigned char bytes[8];
};

/* What one rank gives to a reduction. */
struct Source {
  const void *values;
  Factor factor; /* of a pre-multiplied sum */
};

/* out[0..count) = op over ranks of sources[rank].values[first .. first + count), in rank order; floats of 16 and 8 bits are
 * reduced in FP32 and rounded once. */
void reduce_elements(int dtype, int op, const std::vector<Source> &sources, int64_t first, int64_t count, void *out);

struct Outcome {
  int code = kNcclSuccess;
  std::string text;
};

enum class Collective { AllReduce, Broadcast, Reduce, AllGather, ReduceScatter, AllToAll, Gather, Scatter, Split };
const char *collective_name(Collective kind);

/* What every rank must say alike. */
struct Signature {
  Collective kind;
  size_t count;
  int dtype, op, root;
};

bool same(const Signature &a, const Signature &b);
std::string signature_text(const Signature &signature);
const char *nccl_dtype_name(int dtype);

/* Which window of a communicator, from 1; 0: none. */
struct WindowPlace {
  uint64_t window = 0, offset = 0;
  bool operator==(const WindowPlace &other) const { return window == other.window && offset == other.offset; }
};

/*
 * What NCCL's symmetric kernels reach on other ranks, at the place that it has on their own: all ranks must have it at the same place. All 0
 * where a rank takes part without windows.
 */
struct SymmetricPlaces {
  WindowPlace send, receive;
};

/* Says how two ranks' places differ; empty where they are the same. */
std::string symmetric_difference(int rank, const SymmetricPlaces &places, int other, const SymmetricPlaces &others);

/* Copies one rank's data to another's target, unless both are the same memory. */
inline void copy_bytes(void *target, const void *source, size_t bytes) {
  if (target != source && bytes > 0) std::memmove(target, source, bytes);
}

/* Says on a thread whose waits another one may end that it has done so; null on a thread that waits for itself. */
extern thread_local const std::atomic<bool> *abandoned;
inline bool is_abandoned() { return abandoned != nullptr && *abandoned; }
Outcome abandoned_outcome();
constexpr std::chrono::milliseconds kAbandonedLook{5};

class World;

/* A rank's place in a communicator that is made from another; no world: the rank is not in it. */
struct Place {
  std::shared_ptr<World> world;
  int rank = 0;
};

/* What one rank gives to a collective. */
struct Contribution {
  const void *send = nullptr;
  void *receive = nullptr;
  Factor factor{};        /* of a pre-multiplied sum */
  int color = 0, key = 0; /* of a split */
  SymmetricPlaces places{};
};

/* Something a rank waits for. */
struct Pending {
  Pending() = default;
  Pending(const Pending &) = delete;
  Pending &operator=(const Pending &) = delete;
  virtual ~Pending() = default;
  bool done = false;
  bool computing = false; /* another rank works with what was given to it, which must stay until that is over */
  bool driven = false; /* by the thread that waits for it: it moves only meanwhile */
  bool outlives_failure = false; /* a failed communicator completes it all the same */
  std::vector<Place> places;     /* by rank, of a split or shrink */
};

class World {
 public:
  World() = default;
  World(const World &) = delete;
  World &operator=(const World &) = delete;
  virtual ~World() = default;

  virtual int ranks() const = 0;

  virtual Outcome join(int rank, int device) = 0;
  virtual Outcome wait_for_all_to_join(int rank) = 0;
  virtual bool all_joined() = 0;

  /* The calling thread makes the rank's calls, or captures them. */
  virtual void used_by_this_thread(int) {}

  /* Posts without waiting. */
  virtual Outcome post(int rank, const Signature &signature, const Contribution &given, std::shared_ptr<Pending> *pending) = 0;
  virtual Outcome post_send(int rank, int peer, const void *send, size_t count, int dtype,
                            std::shared_ptr<Pending> *pending) = 0;
  virtual Outcome post_receive(int rank, int peer, void *receive, size_t count, int dtype,
                               std::shared_ptr<Pending> *pending) = 0;
  virtual Outcome wait(int rank, const std::shared_ptr<Pending> &pending) = 0;

  /* Posts that the rank goes on without the excluded ranks, which do not call this. `abort`: whatever failed before. */
  virtual Outcome post_shrink(int rank, const std::vector<int> &excluded, bool abort, std::shared_ptr<Pending> *pending) = 0;

  /* Ends what is under way with an error, for good. */
  virtual void revoke(int rank) = 0;

  /* The rank's communicator is destroyed: ranks that wait for it, now or later, get an error. */
  virtual void leave(int rank, bool aborted) = 0;

  virtual Outcome failure() = 0; /* the first one; it stays */

  /* What the ranks go on with when all have joined; null: this one. */
  virtual std::shared_ptr<World> settled() { return nullptr; }
};

/* Ranks that are threads of this process. */
class ThreadWorld final : public World {
 public:
  explicit ThreadWorld(int ranks) : members_(static_cast<size_t>(ranks)) {}
  explicit ThreadWorld(const std::vector<int> &devices); /* whose ranks have joined */

  int ranks() const override { return static_cast<int>(members_.size()); }
  Outcome join(int rank, int device) override;
  Outcome wait_for_all_to_join(int rank) override;
  bool all_joined() override;
  void used_by_this_thread(int rank) override;
  Outcome post(int rank, const Signature &signature, const Contribution &given, std::shared_ptr<Pending> *pending) override;
  Outcome post_send(int rank, int peer, const void *send, size_t count, int dtype,
                    std::shared_ptr<Pending> *pending) override;
  Outcome post_receive(int rank, int peer, void *receive, size_t count, int dtype,
                       std::shared_ptr<Pending> *pending) override;
  Outcome wait(int rank, const std::shared_ptr<Pending> &pending) override;
  Outcome post_shrink(int rank, const std::vector<int> &excluded, bool abort, std::shared_ptr<Pending> *pending) override;
  void revoke(int rank) override;
  void leave(int rank, bool aborted) override;
  Outcome failure() override;

 private:
  struct Member {
    bool joined = false, left = false;
    int device = -1;
    uint64_t user = 0; /* number of the last thread that made or captured a call; 0: none has */
    uint64_t next_round = 0;
  };
  struct Round : Pending {
    Signature signature;
    std::vector<Contribution> given;
    std::vector<bool> posted;
    int arrived = 0;
  };
  struct Shrink : Pending {
    std::vector<int> excluded;
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
  int awaited_of_this_thread(const std::shared_ptr<Pending> &pending) const;
  void compute(Round &round) const;
  void split(Round &round) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Member> members_;
  int joined_ = 0;
  Outcome failure_;
  std::deque<std::shared_ptr<Round>> rounds_; /* from the oldest that is not complete */
  uint64_t first_round_ = 0;
  std::map<std::pair<int, int>, std::deque<std::shared_ptr<Transfer>>> transfers_; /* by sender and receiver */
  std::vector<std::shared_ptr<Shrink>> shrinks_;                                   /* that are not complete */
};

/* Where the ranks that name a color stand in a world of their own, by color: their numbers, ordered by key. */
std::map<int, std::vector<int>> ranks_by_color(const std::vector<std::pair<int, int>> &colors_and_keys);

/* How long a rank waits for others before it calls that an error: CHAGRES_REFERENCE_NCCL_TIMEOUT seconds, default 330:
 * behind the five minutes of the api, which names who did not come. */
std::chrono::seconds collective_timeout();

}  // namespace chagres::reference

#endif /* CHAGRES_WORLD_H */

/*
 * What the files of NCCL's functions share: communicators.cpp joins ranks, groups.cpp posts and waits,
 * collectives.cpp has the operations. world.h is what happens behind them.
 */
#ifndef CHAGRES_NCCL_H
#define CHAGRES_NCCL_H

#include <atomic>
#include <functional>
#include <thread>
#include <utility>

#include "nccl/world.h"

typedef int ncclResult_t;

namespace chagres::reference {

/* A pre-multiplied sum: the factor, or where on the device it lies. */
struct PreMulSum {
  int dtype;
  Factor factor;
  const void *on_device;
};

/* A symmetric window. As NCCL's its handle is memory of the device. */
struct Window {
  size_t size;
  uint64_t number; /* of those that the communicator was given, from 1 */
  std::shared_ptr<void> handle;
};

/* What a call of a communicator that is not blocking has begun. */
struct Job {
  Job() = default;
  Job(const Job &) = delete;
  Job &operator=(const Job &) = delete;
  ~Job() { join(); }
  void join() { /* communicators of one group may do so at once */
    std::lock_guard<std::mutex> lock(mutex);
    if (thread.joinable()) thread.join();
  }
  std::atomic<bool> done{false}, abandoned{false};
  Outcome outcome; /* when it is done */
  std::thread thread;
  std::mutex mutex;
};

struct Comm {
  std::shared_ptr<World> world;
  int rank = 0;
  int device = 0;
  bool finalized = false;
  int next_op = kNcclOps;
  std::map<int, PreMulSum> ops; /* by ncclRedOp_t */
  std::multimap<const void *, Window> windows{}; /* by their first byte */
  uint64_t window_count = 0;                     /* that there ever were */
  bool blocking = true;
  /* What follows is of communicators that are not blocking. */
  bool joining = false;     /* made, and not all ranks have joined as far as this one has seen */
  int looks = 0;            /* calls of ncclCommGetAsyncError that answer ncclInProgress in any case */
  uint64_t submitted = 0;   /* calls that were begun so */
  std::shared_ptr<Job> job{}; /* of the call that is in progress */
  std::vector<std::pair<void **, void *>> results{}; /* what the job writes, and where, when it has succeeded */
  Outcome failed{};         /* of a call; only ncclCommRevoke ends it */
};

/*
 * As in NCCL 2.28.9 a communicator that is not blocking does its work on another thread. The next one to three calls of ncclCommGetAsyncError, and
 * all until it is done, answer ncclInProgress; meanwhile other calls are refused. A call that fails, or is refused, also inside a group, leaves the
 * communicator failed: all but ncclCommRevoke and ncclCommAbort then answer with that failure. What a call makes is written when it is done.
 */
int in_progress(Comm *comm, const std::shared_ptr<Job> &job);

/* The same for work that is done already, with that outcome. */
int in_progress(Comm *comm, const Outcome &outcome);

/* Refuses a communicator in progress, or one that has failed. */
Outcome check_ready(const Comm &comm);

/* Ends what is in progress with an error, if it is not done, and waits for its end. */
void stop(Comm *comm);

/* A call that is refused: inside a group it fails the group; a communicator that is not blocking has failed. */
int refuse_call(Comm *comm, const Outcome &outcome);

template <class... Parts>
int refuse_call(Comm *comm, int code, const Parts &...parts) {
  return refuse_call(comm, Outcome{code, text(parts...)});
}

Objects<Comm> &comms();

/* A communicator that is gone with its scope unless it is released. */
class NewComm {
 public:
  explicit NewComm(Comm comm) : comm_(comms().add()) { *comm_ = std::move(comm); }
  NewComm(const NewComm &) = delete;
  NewComm &operator=(const NewComm &) = delete;
  ~NewComm() {
    if (comm_ != nullptr) comms().remove(comm_);
  }
  Comm *get() const { return comm_; }
  Comm *release() { return std::exchange(comm_, nullptr); }

 private:
  Comm *comm_;
};

/* Whether a communicator may have this configuration (ncclConfig_t of 2.28.9); NULL is the default. */
Outcome check_config(const void *config);

/* What a checked configuration says, or the default. */
bool is_blocking(const void *config, bool standard);

/* Where an address lies in a window of the communicator; nowhere: all 0. */
WindowPlace window_place(const Comm &comm, const void *address);

/* Keeps the text for ncclGetLastError of this thread and returns the code. */
int nccl_status(const Outcome &outcome);

template <class... Parts>
int refuse(int code, const Parts &...parts) {
  return nccl_status({code, text(parts...)});
}

/* To be called inside a catch: the code of what was thrown, with its text; inside a group, of the group too. */
int nccl_caught(const char *function) noexcept;

/* Ends every exported function, so that none throws into C: `ncclResult_t ncclSend(…) try { … } CHAGRES_NCCL_CATCH`. */
#define CHAGRES_NCCL_CATCH                              \
  catch (...) {                                         \
    return ::chagres::reference::nccl_caught(__func__); \
  }

/* An operation that ncclGroupEnd posts, and what it then waits for. */
struct Deferred {
  Comm *comm;
  std::function<Outcome(std::shared_ptr<Pending> *)> post; /* empty: waits for all ranks to join */
  const void *stream = nullptr;
  std::function<void(const Pending &)> then{}; /* when it is complete */
};

/* The calling thread's open group. */
struct Group {
  int depth = 0;
  std::vector<Deferred> operations;
  Outcome failure; /* of the first wrong call */
};
Group &group();

/* Finishes what streams that capture do not record, and records the rest of each stream as one. */
Outcome enqueue(std::vector<Deferred> operations);

/* Posts all, then waits for all; the first failure. */
Outcome finish(const std::vector<Deferred> &operations);

/* Finishes the operation or, where its stream captures, records it; or leaves it to the open group. */
int submit(Deferred operation);

/* A wrong argument inside a group also fails the group. */
int refuse_in_group(const Outcome &outcome);

template <class... Parts>
int refuse_in_group(int code, const Parts &...parts) {
  return refuse_in_group({code, text(parts...)});
}

}  // namespace chagres::reference

#endif /* CHAGRES_NCCL_H */

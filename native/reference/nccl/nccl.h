/*
 * What the files of NCCL's functions share: communicators.cpp joins ranks, groups.cpp posts and waits,
 * collectives.cpp has the operations. world.h is what happens behind them.
 */
#ifndef CHAGRES_NCCL_H
#define CHAGRES_NCCL_H

#include <functional>
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

struct Comm {
  std::shared_ptr<World> world;
  int rank = 0;
  int device = 0;
  bool finalized = false;
  int next_op = kNcclOps;
  std::map<int, PreMulSum> ops; /* by ncclRedOp_t */
  std::multimap<const void *, Window> windows{}; /* by their first byte */
  uint64_t window_count = 0;                     /* that there ever were */
};

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

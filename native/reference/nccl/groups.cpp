/* NCCL's groups, and the errors of this thread. */
#include "nccl/nccl.h"
#include "nccl/shared_world.h"

#include <map>
#include <new>

#include "cuda/capture.h"

namespace chagres::reference {

namespace {

thread_local std::string last_error;

}  // namespace

void keep_nccl_error(const std::string &error) { last_error = error; }

int nccl_status(const Outcome &outcome) {
  if (outcome.code != kNcclSuccess) last_error = outcome.text;
  return outcome.code;
}

int nccl_caught(const char *function) noexcept {
  int code = kNcclInternalError;
  try {
    try {
      throw;
    } catch (const std::bad_alloc &) {
      code = kNcclSystemError;
      return refuse_in_group(code, function, ": out of memory");
    } catch (const std::exception &exception) {
      return refuse_in_group(code, function, ": ", exception.what());
    } catch (...) {
      return refuse_in_group(code, function, ": an object was thrown that is no std::exception");
    }
  } catch (const std::exception &) { /* no memory for the text */
    last_error.clear();
    if (group().depth > 0 && group().failure.code == kNcclSuccess) group().failure.code = code;
    return code;
  }
}

Group &group() {
  thread_local Group open;
  return open;
}

Outcome finish(const std::vector<Deferred> &operations) {
  Outcome first;
  const auto keep = [&](const Outcome &outcome) {
    if (first.code == kNcclSuccess) first = outcome;
  };
  std::vector<std::shared_ptr<Pending>> pending(operations.size());
  const SharedWorld::UnderWay none_later; /* if an exception is thrown here, nothing is written afterwards */
  for (size_t i = 0; i < operations.size(); ++i) {
    if (operations[i].post) keep(operations[i].post(&pending[i]));
  }
  const auto settle = [&](size_t i) {
    Comm &comm = *operations[i].comm;
    if (!operations[i].post) {
      keep(comm.world->wait_for_all_to_join(comm.rank));
      if (std::shared_ptr<World> settled = comm.world->settled()) comm.world = std::move(settled);
    } else if (pending[i] != nullptr) {
      const Outcome outcome = comm.world->wait(comm.rank, pending[i]);
      if (outcome.code == kNcclSuccess && operations[i].then) operations[i].then(*pending[i]);
      keep(outcome);
    }
  };
  /* Peers in other processes need this thread to make progress; peers in this process need only the posted operation.
   * */
  for (const bool driven : {true, false}) {
    for (size_t i = 0; i < operations.size(); ++i) {
      if (driven == (pending[i] != nullptr && pending[i]->driven)) settle(i);
    }
  }
  return first;
}

Outcome enqueue(std::vector<Deferred> operations) {
  std::vector<Deferred> now;
  std::map<const void *, std::vector<Deferred>> recorded;
  for (Deferred &operation : operations) {
    (is_capturing(operation.stream) ? recorded[operation.stream] : now).push_back(std::move(operation));
  }
  for (auto &[stream, all] : recorded) {
    record(stream, [all = std::move(all)](void *) {
      for (const Deferred &one : all) {
        if (comms().find(one.comm) == nullptr) throw std::runtime_error("a communicator of the graph was destroyed");
      }
      const Outcome outcome = finish(all);
      if (outcome.code != kNcclSuccess) throw std::runtime_error(outcome.text);
    });
  }
  return finish(now);
}

int submit(Deferred operation) {
  if (group().depth == 0) return nccl_status(enqueue({std::move(operation)}));
  group().operations.push_back(std::move(operation));
  return kNcclSuccess;
}

int refuse_in_group(const Outcome &outcome) {
  Group &open = group();
  if (open.depth > 0 && open.failure.code == kNcclSuccess) open.failure = outcome;
  return nccl_status(outcome);
}

}  // namespace chagres::reference

using namespace chagres::reference;

CHAGRES_EXPORT const char *ncclGetErrorString(ncclResult_t result) {
  static const char *const texts[] = {
      "no error",          "the CUDA runtime failed", "a system call failed or ranks are on different hosts",
      "internal error",    "invalid argument",        "invalid usage",
      "another rank failed, left or was too late", "in progress"};
  return result >= 0 && result < 8 ? texts[result] : "unknown result code";
}

/* This thread's last error. */
CHAGRES_EXPORT const char *ncclGetLastError(const void *) { return last_error.c_str(); }

CHAGRES_EXPORT ncclResult_t ncclGroupStart(void) try {
  ++group().depth;
  return kNcclSuccess;
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclGroupEnd(void) try {
  Group &open = group();
  if (open.depth == 0) return refuse(kNcclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--open.depth > 0) return kNcclSuccess;
  const Group ended = std::move(open);
  open = {};
  /* Nothing was posted yet: a group with a wrong call does nothing. */
  return nccl_status(ended.failure.code != kNcclSuccess ? ended.failure : enqueue(ended.operations));
} CHAGRES_NCCL_CATCH

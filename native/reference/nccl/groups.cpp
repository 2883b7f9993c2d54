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

thread_local const std::atomic<bool> *abandoned = nullptr;

Outcome abandoned_outcome() { return {kNcclRemoteError, "the call was ended by ncclCommRevoke or ncclCommAbort"}; }

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
    if (operation.post) operation.comm->world->used_by_this_thread(operation.comm->rank);
    (is_capturing(operation.stream) && !is_counting_stream(operation.stream) ? recorded[operation.stream] : now).push_back(std::move(operation));
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

int in_progress(Comm *comm, const std::shared_ptr<Job> &job) {
  comm->job = job;
  comm->looks = 1 + static_cast<int>(comm->submitted++ % 3);
  return kNcclInProgress;
}

int in_progress(Comm *comm, const Outcome &outcome) {
  auto job = std::make_shared<Job>();
  job->outcome = outcome;
  job->done = true;
  return in_progress(comm, job);
}

Outcome check_ready(const Comm &comm) {
  if (comm.joining || comm.job != nullptr) return {kNcclInvalidArgument, "an earlier call of the communicator is in progress"};
  return comm.failed;
}

void stop(Comm *comm) {
  if (comm->job != nullptr) {
    comm->job->abandoned = true;
    comm->job->join();
  }
  comm->job = nullptr;
  comm->results.clear();
  comm->looks = 0;
}

int refuse_call(Comm *comm, const Outcome &outcome) {
  if (!comm->blocking && comm->failed.code == kNcclSuccess) comm->failed = outcome;
  return refuse_in_group(outcome);
}

namespace {

/* Runs the operations of communicators that are not blocking on a thread of their own. */
int begin(std::vector<Deferred> operations) {
  std::vector<Comm *> all;
  for (const Deferred &operation : operations) {
    if (is_capturing(operation.stream) && !is_counting_stream(operation.stream)) {
      return refuse_call(operation.comm, {kNcclInvalidUsage, "a stream that captures needs a blocking communicator"});
    }
    all.push_back(operation.comm);
  }
  auto job = std::make_shared<Job>();
  /* The thread ends before the job, which the communicators hold. */
  job->thread = std::thread([of = job.get(), operations = std::move(operations)] {
    abandoned = &of->abandoned;
    try {
      of->outcome = finish(operations);
    } catch (const std::exception &exception) {
      of->outcome = {kNcclInternalError, exception.what()};
    }
    of->done = true;
  });
  for (Comm *comm : all) in_progress(comm, job);
  return kNcclInProgress;
}

}  // namespace

int submit(Deferred operation) {
  if (group().depth == 0) {
    std::vector<Deferred> alone;
    alone.push_back(std::move(operation));
    return alone.front().comm->blocking ? nccl_status(enqueue(std::move(alone))) : begin(std::move(alone));
  }
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
  Outcome failure = ended.failure;
  for (const Deferred &operation : ended.operations) {
    if (failure.code != kNcclSuccess) break;
    if (comms().find(operation.comm) == nullptr) {
      failure = {kNcclInvalidUsage, "ncclGroupEnd: a communicator of the group was destroyed in it"};
    } else if (operation.comm->blocking != ended.operations.front().comm->blocking) {
      /* NCCL runs a group of both in the mode of the last, which nobody can want. */
      failure = {kNcclInvalidArgument, "ncclGroupEnd: blocking and non-blocking communicators cannot be in one group"};
    }
  }
  if (failure.code != kNcclSuccess) {
    for (const Deferred &operation : ended.operations) {
      if (comms().find(operation.comm) != nullptr) refuse_call(operation.comm, failure);
    }
    return nccl_status(failure);
  }
  if (ended.operations.empty() || ended.operations.front().comm->blocking) return nccl_status(enqueue(ended.operations));
  return begin(ended.operations);
} CHAGRES_NCCL_CATCH

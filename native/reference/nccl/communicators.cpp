/* NCCL's communicators: the rendezvous of their ranks. */

#include <algorithm>
#include <fstream>
#include <random>
#include <utility>

#include "nccl/nccl.h"
#include "nccl/shared_world.h"

namespace chagres::reference {

namespace {

constexpr int kVersion = 22809;
constexpr size_t kIdBytes = 128;

/* ncclUniqueId: by value across the interface. The first bytes are ours. */
struct UniqueId {
  char magic[16];
  uint64_t host;
  WorldId id;
  char rest[kIdBytes - 40];
};
static_assert(sizeof(UniqueId) == kIdBytes, "size of ncclUniqueId");
constexpr char kMagic[16] = "chagres-ref";

/* The same for all processes until the host starts anew. */
uint64_t host_number() {
  static const uint64_t number = [] {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string words;
    std::getline(file, words);
    uint64_t hash = 0xcbf29ce484222325;
    for (const char letter : words) hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3;
    return hash;
  }();
  return number;
}

Outcome check_id(const UniqueId &id) {
  if (std::memcmp(id.magic, kMagic, sizeof(kMagic)) != 0) {
    return {kNcclInvalidArgument, "argument \"commId\" was not made by this library's ncclGetUniqueId"};
  }
  if (id.host != host_number()) {
    return {kNcclSystemError, "argument \"commId\" is another host's: the reference joins threads and processes of one host"};
  }
  return {};
}

/* Waits for the other ranks, unless a group does. */
int init_rank(void **handle, int ranks, const UniqueId &id, int rank, int device, bool blocking = true) {
  if (handle == nullptr) return refuse_in_group(kNcclInvalidArgument, "ncclCommInitRank: argument \"comm\" is NULL");
  *handle = nullptr;
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return refuse_in_group(kNcclInvalidArgument, "ncclCommInitRank: rank must be from 0 to nranks - 1, got rank ", rank,
                           " of ", ranks);
  }
  if (ranks > device_count()) {
    return refuse_in_group(kNcclInvalidArgument, "ncclCommInitRank: argument \"nranks\" is ", ranks,
                           "; each rank needs a device of its own, and there are ", device_count(),
                           " (CHAGRES_REFERENCE_DEVICES says how many)");
  }
  std::shared_ptr<World> world;
  Outcome outcome = check_id(id);
  if (outcome.code == kNcclSuccess) outcome = world_to_join(id.id, ranks, &world);
  if (outcome.code != kNcclSuccess) return refuse_in_group(outcome.code, "ncclCommInitRank: ", outcome.text);
  NewComm comm({world, rank, device, false, kNcclOps, {}});
  outcome = world->join(rank, device);
  if (outcome.code != kNcclSuccess) return refuse_in_group(outcome.code, "ncclCommInitRank: ", outcome.text);
  comm.get()->blocking = blocking;
  if (!blocking && group().depth == 0) {
    comm.get()->joining = true;
    comm.get()->looks = 1;
    *handle = comm.release();
    return kNcclInProgress;
  }
  const int code = submit({comm.get(), nullptr, nullptr});
  if (code == kNcclSuccess || code == kNcclInProgress || group().depth > 0) *handle = comm.release();
  return code;
}

/* A group that is open as long as its scope. */
struct OpenGroup {
  OpenGroup() { ++group().depth; }
  OpenGroup(const OpenGroup &) = delete;
  OpenGroup &operator=(const OpenGroup &) = delete;
  ~OpenGroup() { --group().depth; }
};

int release(const void *handle, const char *function, bool aborted) {
  if (handle == nullptr) return kNcclSuccess;
  Comm *comm = comms().find(handle);
  if (comm == nullptr) {
    return refuse(kNcclInvalidArgument, function, ": argument \"comm\" was destroyed already or never created");
  }
  if (!aborted) { /* NCCL, too, refuses this, and leaves a group of the thread open besides. */
    const Outcome ready = check_ready(*comm);
    if (ready.code != kNcclSuccess) return refuse(ready.code, function, ": ", ready.text);
  }
  comm->world->leave(comm->rank, aborted);
  stop(comm);
  comms().remove(handle);
  return kNcclSuccess;
}

template <class Value>
int read(const void *handle, const char *function, Value *out, Value (*get)(const Comm &)) {
  Comm *comm = comms().find(handle);
  if (comm == nullptr) return refuse(kNcclInvalidArgument, function, ": argument \"comm\" is no living communicator");
  if (out == nullptr) return refuse(kNcclInvalidArgument, function, ": the pointer for the answer is NULL");
  const Outcome ready = check_ready(*comm);
  if (ready.code != kNcclSuccess) return refuse(ready.code, function, ": ", ready.text);
  *out = get(*comm);
  return kNcclSuccess;
}

}  // namespace

Objects<Comm> &comms() {
  static auto *objects = new Objects<Comm>;
  return *objects;
}

}  // namespace chagres::reference

using namespace chagres::reference;

CHAGRES_EXPORT ncclResult_t ncclGetVersion(int *version) try {
  if (version == nullptr) return refuse(kNcclInvalidArgument, "ncclGetVersion: argument \"version\" is NULL");
  *version = kVersion;
  return kNcclSuccess;
} CHAGRES_NCCL_CATCH

/* There is no debug output to start anew. */
CHAGRES_EXPORT void ncclResetDebugInit(void) {}

CHAGRES_EXPORT ncclResult_t ncclGetUniqueId(UniqueId *id) try {
  if (id == nullptr) return refuse(kNcclInvalidArgument, "ncclGetUniqueId: argument \"uniqueId\" is NULL");
  std::random_device device;
  *id = UniqueId{};
  std::memcpy(id->magic, kMagic, sizeof(kMagic));
  id->host = host_number();
  for (uint64_t &word : id->id.words) word = static_cast<uint64_t>(device()) << 32 | device();
  return kNcclSuccess;
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommInitRank(void **comm, int ranks, UniqueId id, int rank) try {
  return init_rank(comm, ranks, id, rank, current_device());
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommInitRankConfig(void **comm, int ranks, UniqueId id, int rank, const void *config) try {
  const Outcome outcome = check_config(config);
  if (outcome.code != kNcclSuccess) return refuse_in_group(outcome.code, "ncclCommInitRankConfig: ", outcome.text);
  return init_rank(comm, ranks, id, rank, current_device(), is_blocking(config, true));
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommInitRankScalable(void **comm, int ranks, int rank, int ids, const UniqueId *all,
                                                     const void *config) try {
  if (all == nullptr || ids < 1 || ids > ranks) {
    return refuse_in_group(kNcclInvalidArgument, "ncclCommInitRankScalable: needs 1 to nranks (", ranks, ") ids, got ",
                           all == nullptr ? 0 : ids);
  }
  return ncclCommInitRankConfig(comm, ranks, all[0], rank, config);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommInitAll(void **comms_out, int count, const int *devices) try {
  if (comms_out == nullptr || count < 1 || count > device_count()) {
    return refuse(kNcclInvalidArgument, "ncclCommInitAll: needs an array for 1 to ", device_count(), " communicators, got ",
                  count);
  }
  UniqueId id;
  const int named = ncclGetUniqueId(&id);
  if (named != kNcclSuccess) return named;
  std::fill(comms_out, comms_out + count, nullptr);
  const int depth_before = group().depth;
  int code = kNcclSuccess;
  {
    const OpenGroup open;
    try {
      for (int rank = 0; rank < count && code == kNcclSuccess; ++rank) {
        const int device = devices == nullptr ? rank : devices[rank];
        code = is_device(device) ? init_rank(&comms_out[rank], count, id, rank, device)
                                 : refuse_in_group(kNcclInvalidArgument, "ncclCommInitAll: no device ", device);
      }
    } catch (...) {
      code = nccl_caught("ncclCommInitAll");
    }
  }
  if (depth_before > 0) return code;
  const std::vector<Deferred> operations = std::move(group().operations);
  group() = {};
  if (code == kNcclSuccess) code = nccl_status(finish(operations));
  if (code != kNcclSuccess) {
    for (const Deferred &operation : operations) comms().remove(operation.comm);
    std::fill(comms_out, comms_out + count, nullptr);
  }
  return code;
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommFinalize(const void *handle) try {
  Comm *comm = comms().find(handle);
  if (comm == nullptr) return refuse(kNcclInvalidArgument, "ncclCommFinalize: argument \"comm\" is no living communicator");
  if (comm->finalized) return refuse(kNcclInvalidUsage, "ncclCommFinalize: the communicator was finalized already");
  const Outcome failure = comm->world->failure();
  if (failure.code != kNcclSuccess) return refuse(failure.code, "ncclCommFinalize: ", failure.text);
  const Outcome ready = check_ready(*comm);
  if (ready.code != kNcclSuccess) return refuse(ready.code, "ncclCommFinalize: ", ready.text);
  comm->finalized = true;
  return comm->blocking ? kNcclSuccess : in_progress(comm, Outcome{});
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommDestroy(const void *comm) try {
  return release(comm, "ncclCommDestroy", false);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommAbort(const void *comm) try {
  return release(comm, "ncclCommAbort", true);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommCount(const void *comm, int *count) try {
  return read<int>(comm, "ncclCommCount", count, [](const Comm &found) { return found.world->ranks(); });
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommCuDevice(const void *comm, int *device) try {
  return read<int>(comm, "ncclCommCuDevice", device, [](const Comm &found) { return found.device; });
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommUserRank(const void *comm, int *rank) try {
  return read<int>(comm, "ncclCommUserRank", rank, [](const Comm &found) { return found.rank; });
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclCommGetAsyncError(const void *handle, ncclResult_t *error) try {
  Comm *comm = comms().find(handle);
  if (comm == nullptr) {
    return refuse(kNcclInvalidArgument, "ncclCommGetAsyncError: argument \"comm\" is no living communicator");
  }
  if (error == nullptr) return refuse(kNcclInvalidArgument, "ncclCommGetAsyncError: the pointer for the answer is NULL");
  if (comm->looks > 0) {
    --comm->looks;
    *error = kNcclInProgress;
  } else if (comm->job != nullptr && !comm->job->done) {
    *error = kNcclInProgress;
  } else if (comm->job != nullptr) {
    /* A rank that has left since is no failure of what was called. */
    comm->job->join();
    comm->failed = comm->job->outcome;
    comm->job = nullptr;
    for (const auto &[place, result] : comm->results) {
      if (comm->failed.code == kNcclSuccess) *place = result;
    }
    comm->results.clear();
    *error = nccl_status(comm->failed);
  } else if (comm->failed.code != kNcclSuccess) {
    *error = nccl_status(comm->failed);
  } else if (const Outcome failure = comm->world->failure(); failure.code != kNcclSuccess) {
    comm->joining = false;
    *error = nccl_status(failure);
  } else if (comm->joining && !comm->world->all_joined()) {
    *error = kNcclInProgress;
  } else if (comm->joining) {
    comm->joining = false;
    *error = nccl_status(comm->world->wait_for_all_to_join(comm->rank));
    if (std::shared_ptr<World> settled = comm->world->settled()) comm->world = std::move(settled);
  } else {
    *error = kNcclSuccess;
  }
  return kNcclSuccess;
} CHAGRES_NCCL_CATCH

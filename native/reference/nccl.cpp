/* NCCL's functions over communicators among threads of this process. Arguments are checked before anything is posted. */
#include <unistd.h>

#include <algorithm>
#include <functional>
#include <random>

#include "collectives.h"

namespace chagres::reference {

namespace {

constexpr int kVersion = 22809;
constexpr size_t kIdBytes = 128;

/* ncclUniqueId: by value across the interface. The first bytes are ours. */
struct UniqueId {
  char magic[16];
  uint64_t process;
  uint64_t words[2];
  char rest[kIdBytes - 40];
};
static_assert(sizeof(UniqueId) == kIdBytes, "size of ncclUniqueId");
constexpr char kMagic[16] = "chagres-ref";

struct Comm {
  std::shared_ptr<World> world;
  int rank = 0;
  int device = 0;
  bool finalized = false;
};

Objects<Comm> &comms() {
  static auto *objects = new Objects<Comm>;
  return *objects;
}

/* Worlds that ranks may still join. */
std::mutex worlds_mutex;
std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<World>> &worlds() {
  static auto *map = new std::map<std::pair<uint64_t, uint64_t>, std::shared_ptr<World>>;
  return *map;
}

thread_local std::string last_error;

int status(const Outcome &outcome) {
  if (outcome.code != kNcclSuccess) last_error = outcome.text;
  return outcome.code;
}

template <class... Parts>
int refuse(int code, const Parts &...parts) {
  return status({code, text(parts...)});
}

/* ---- groups ---- */

/* An operation that ncclGroupEnd posts, and what it then waits for. */
struct Deferred {
  Comm *comm;
  std::function<Outcome(std::shared_ptr<Pending> *)> post; /* empty: waits for all ranks to join */
};

thread_local int group_depth = 0;
thread_local std::vector<Deferred> group;
thread_local Outcome group_failure;

Outcome finish(const std::vector<Deferred> &operations) {
  Outcome first;
  const auto keep = [&](const Outcome &outcome) {
    if (first.code == kNcclSuccess) first = outcome;
  };
  std::vector<std::shared_ptr<Pending>> pending(operations.size());
  for (size_t i = 0; i < operations.size(); ++i) {
    if (operations[i].post) keep(operations[i].post(&pending[i]));
  }
  for (size_t i = 0; i < operations.size(); ++i) {
    const Comm &comm = *operations[i].comm;
    if (!operations[i].post) {
      keep(comm.world->wait_for_all_to_join());
    } else if (pending[i] != nullptr) {
      keep(comm.world->wait(comm.rank, pending[i]));
    }
  }
  return first;
}

int submit(Deferred operation) {
  if (group_depth == 0) return status(finish({std::move(operation)}));
  group.push_back(std::move(operation));
  return kNcclSuccess;
}

/* A wrong argument inside a group also fails the group. */
template <class... Parts>
int refuse_in_group(int code, const Parts &...parts) {
  const Outcome outcome{code, text(parts...)};
  if (group_depth > 0 && group_failure.code == kNcclSuccess) group_failure = outcome;
  return status(outcome);
}

/* ---- arguments ---- */

struct Call {
  const char *function;
  const void *comm, *stream;
  size_t count;
  int dtype;
};

/* A buffer of `bytes` must be memory that the CUDA runtime handed out or registered. */
bool is_buffer(const void *buffer, size_t bytes) { return bytes == 0 || is_accessible(buffer, bytes); }

int check_call(const Call &call, Comm **comm) {
  *comm = comms().find(call.comm);
  if (*comm == nullptr) {
    return refuse_in_group(kNcclInvalidArgument, call.function, ": argument \"comm\" is no living communicator");
  }
  if ((*comm)->finalized) {
    return refuse_in_group(kNcclInvalidUsage, call.function, ": the communicator was finalized");
  }
  if (call.dtype < 0 || call.dtype >= kNcclDtypes) {
    return refuse_in_group(kNcclInvalidArgument, call.function, ": argument \"datatype\" must be 0 to ", kNcclDtypes - 1,
                           ", got ", call.dtype);
  }
  if (!is_stream(call.stream)) {
    return refuse_in_group(kNcclInvalidArgument, call.function, ": argument \"stream\" is no living stream");
  }
  if (call.count > SIZE_MAX / 64 / static_cast<size_t>((*comm)->world->ranks())) {
    return refuse_in_group(kNcclInvalidArgument, call.function, ": argument \"count\" is too large: ", call.count);
  }
  return kNcclSuccess;
}

int check_buffer(const Call &call, const char *argument, const void *buffer, size_t elements) {
  const size_t bytes = elements * nccl_dtype_size(call.dtype);
  if (is_buffer(buffer, bytes)) return kNcclSuccess;
  return refuse_in_group(kNcclInvalidArgument, call.function, ": argument \"", argument, "\" must be ", bytes,
                         " bytes of device memory, got ", buffer == nullptr ? "NULL" : "another or smaller buffer");
}

struct Buffers {
  const void *send;
  size_t send_elements; /* 0: not looked at on this rank */
  void *receive;
  size_t receive_elements;
};

int collective(const Call &call, Collective kind, const Buffers &buffers, int op, int root) {
  Comm *comm;
  int code = check_call(call, &comm);
  if (code != kNcclSuccess) return code;
  const bool reducing = kind == Collective::AllReduce || kind == Collective::Reduce || kind == Collective::ReduceScatter;
  if (reducing && (op < 0 || op >= kNcclOps)) {
    return refuse_in_group(kNcclInvalidArgument, call.function, ": argument \"op\" must be 0 to ", kNcclOps - 1, ", got ", op);
  }
  if (reducing && !is_reducible(call.dtype)) {
    return refuse_in_group(kNcclInvalidUsage, call.function, ": the reference does not reduce FP8 values");
  }
  if (root < 0 || root >= comm->world->ranks()) {
    return refuse_in_group(kNcclInvalidArgument, call.function, ": argument \"root\" must be a rank below ",
                           comm->world->ranks(), ", got ", root);
  }
  code = check_buffer(call, "sendbuff", buffers.send, buffers.send_elements);
  if (code == kNcclSuccess) code = check_buffer(call, "recvbuff", buffers.receive, buffers.receive_elements);
  if (code != kNcclSuccess) return code;
  const Signature signature{kind, call.count, call.dtype, op, root};
  return submit({comm, [=](std::shared_ptr<Pending> *pending) {
                   return comm->world->post(comm->rank, signature, buffers.send, buffers.receive, pending);
                 }});
}

size_t ranks_of(const void *handle) {
  Comm *comm = comms().find(handle);
  return comm == nullptr ? 1 : static_cast<size_t>(comm->world->ranks());
}

bool is_rank(const void *handle, int rank) {
  Comm *comm = comms().find(handle);
  return comm != nullptr && comm->rank == rank;
}

int transfer(const Call &call, bool sending, const void *send, void *receive, int peer) {
  Comm *comm;
  int code = check_call(call, &comm);
  if (code != kNcclSuccess) return code;
  if (peer < 0 || peer >= comm->world->ranks()) {
    return refuse_in_group(kNcclInvalidArgument, call.function, ": argument \"peer\" must be a rank below ",
                           comm->world->ranks(), ", got ", peer);
  }
  code = sending ? check_buffer(call, "sendbuff", send, call.count) : check_buffer(call, "recvbuff", receive, call.count);
  if (code != kNcclSuccess) return code;
  return submit({comm, [=](std::shared_ptr<Pending> *pending) {
                   return sending ? comm->world->post_send(comm->rank, peer, send, call.count, call.dtype, pending)
                                  : comm->world->post_receive(comm->rank, peer, receive, call.count, call.dtype, pending);
                 }});
}

/* ---- communicators ---- */

Outcome find_world(const UniqueId &id, int ranks, std::shared_ptr<World> *world) {
  if (std::memcmp(id.magic, kMagic, sizeof(kMagic)) != 0) {
    return {kNcclInvalidArgument, "argument \"commId\" was not made by this library's ncclGetUniqueId"};
  }
  if (id.process != static_cast<uint64_t>(getpid())) {
    return {kNcclSystemError, "argument \"commId\" is another process's: the reference joins threads of one process"};
  }
  std::lock_guard<std::mutex> lock(worlds_mutex);
  auto &known = worlds()[{id.words[0], id.words[1]}];
  if (known == nullptr) known = std::make_shared<World>(ranks);
  if (known->ranks() != ranks) {
    const Outcome outcome{kNcclInvalidArgument, text("argument \"nranks\" is ", ranks, ", another rank says ", known->ranks())};
    return outcome;
  }
  *world = known;
  return {};
}

void forget_world(const UniqueId &id) {
  std::lock_guard<std::mutex> lock(worlds_mutex);
  worlds().erase({id.words[0], id.words[1]});
}

/* Waits for the other ranks, unless a group does. */
int init_rank(void **handle, int ranks, const UniqueId &id, int rank, int device) {
  if (handle == nullptr) return refuse_in_group(kNcclInvalidArgument, "ncclCommInitRank: argument \"comm\" is NULL");
  *handle = nullptr;
  if (ranks < 1 || rank < 0 || rank >= ranks) {
    return refuse_in_group(kNcclInvalidArgument, "ncclCommInitRank: rank must be from 0 to nranks - 1, got rank ", rank,
                           " of ", ranks);
  }
  std::shared_ptr<World> world;
  Outcome outcome = find_world(id, ranks, &world);
  if (outcome.code == kNcclSuccess) outcome = world->join(rank, device);
  if (outcome.code != kNcclSuccess) return refuse_in_group(outcome.code, "ncclCommInitRank: ", outcome.text);
  Comm *comm = comms().add();
  comm->world = world;
  comm->rank = rank;
  comm->device = device;
  *handle = comm;
  const int code = submit({comm, nullptr});
  if (group_depth > 0) return code;
  forget_world(id);
  if (code != kNcclSuccess) {
    comms().remove(comm);
    *handle = nullptr;
  }
  return code;
}

int release(const void *handle, const char *function, bool aborted) {
  if (handle == nullptr) return kNcclSuccess;
  Comm *comm = comms().find(handle);
  if (comm == nullptr) {
    return refuse(kNcclInvalidArgument, function, ": argument \"comm\" was destroyed already or never created");
  }
  comm->world->leave(comm->rank, aborted);
  comms().remove(handle);
  return kNcclSuccess;
}

template <class Value>
int read(const void *handle, const char *function, Value *out, Value (*get)(const Comm &)) {
  Comm *comm = comms().find(handle);
  if (comm == nullptr) return refuse(kNcclInvalidArgument, function, ": argument \"comm\" is no living communicator");
  if (out == nullptr) return refuse(kNcclInvalidArgument, function, ": the pointer for the answer is NULL");
  *out = get(*comm);
  return kNcclSuccess;
}

}  // namespace

void keep_nccl_error(const std::string &error) { last_error = error; }

}  // namespace chagres::reference

using namespace chagres::reference;

typedef int ncclResult_t;

CHAGRES_EXPORT ncclResult_t ncclGetVersion(int *version) {
  if (version == nullptr) return refuse(kNcclInvalidArgument, "ncclGetVersion: argument \"version\" is NULL");
  *version = kVersion;
  return kNcclSuccess;
}

CHAGRES_EXPORT const char *ncclGetErrorString(ncclResult_t result) {
  static const char *const texts[] = {
      "no error",          "the CUDA runtime failed", "a system call failed or ranks are in different processes",
      "internal error",    "invalid argument",        "invalid usage",
      "another rank failed, left or was too late", "in progress"};
  return result >= 0 && result < 8 ? texts[result] : "unknown result code";
}

/* This thread's last error. */
CHAGRES_EXPORT const char *ncclGetLastError(const void *) { return last_error.c_str(); }

/* There is no debug output to start anew. */
CHAGRES_EXPORT void ncclResetDebugInit(void) {}

/* Memory for collectives is device memory. */
CHAGRES_EXPORT ncclResult_t ncclMemAlloc(void **pointer, size_t size) {
  const int code = allocate_device_memory(pointer, size);
  if (code == kCudaSuccess) return kNcclSuccess;
  return refuse(kNcclUnhandledCudaError, "ncclMemAlloc: the CUDA runtime answered ", code, " for ", size, " bytes");
}

CHAGRES_EXPORT ncclResult_t ncclMemFree(void *pointer) {
  const int code = release_device_memory(pointer);
  if (code == kCudaSuccess) return kNcclSuccess;
  return refuse(kNcclUnhandledCudaError, "ncclMemFree: the CUDA runtime answered ", code);
}

CHAGRES_EXPORT ncclResult_t ncclGetUniqueId(UniqueId *id) {
  if (id == nullptr) return refuse(kNcclInvalidArgument, "ncclGetUniqueId: argument \"uniqueId\" is NULL");
  std::random_device device;
  *id = UniqueId{};
  std::memcpy(id->magic, kMagic, sizeof(kMagic));
  id->process = static_cast<uint64_t>(getpid());
  for (uint64_t &word : id->words) word = static_cast<uint64_t>(device()) << 32 | device();
  return kNcclSuccess;
}

CHAGRES_EXPORT ncclResult_t ncclCommInitRank(void **comm, int ranks, UniqueId id, int rank) {
  return init_rank(comm, ranks, id, rank, current_device());
}

CHAGRES_EXPORT ncclResult_t ncclCommInitRankConfig(void **comm, int ranks, UniqueId id, int rank, const void *) {
  return init_rank(comm, ranks, id, rank, current_device());
}

CHAGRES_EXPORT ncclResult_t ncclCommInitAll(void **comms_out, int count, const int *devices) {
  if (comms_out == nullptr || count < 1 || count > device_count()) {
    return refuse(kNcclInvalidArgument, "ncclCommInitAll: needs an array for 1 to ", device_count(), " communicators, got ",
                  count);
  }
  UniqueId id;
  ncclGetUniqueId(&id);
  const int depth_before = group_depth++;
  int code = kNcclSuccess;
  for (int rank = 0; rank < count && code == kNcclSuccess; ++rank) {
    const int device = devices == nullptr ? rank : devices[rank];
    code = is_device(device) ? init_rank(&comms_out[rank], count, id, rank, device)
                             : refuse_in_group(kNcclInvalidArgument, "ncclCommInitAll: no device ", device);
  }
  group_depth = depth_before;
  forget_world(id);
  if (depth_before > 0) return code;
  const std::vector<Deferred> operations = std::move(group);
  group.clear();
  group_failure = {};
  if (code == kNcclSuccess) code = status(finish(operations));
  if (code != kNcclSuccess) {
    for (const Deferred &operation : operations) comms().remove(operation.comm);
    std::fill(comms_out, comms_out + count, nullptr);
  }
  return code;
}

CHAGRES_EXPORT ncclResult_t ncclCommFinalize(const void *handle) {
  Comm *comm = comms().find(handle);
  if (comm == nullptr) return refuse(kNcclInvalidArgument, "ncclCommFinalize: argument \"comm\" is no living communicator");
  if (comm->finalized) return refuse(kNcclInvalidUsage, "ncclCommFinalize: the communicator was finalized already");
  comm->finalized = true;
  return kNcclSuccess;
}

CHAGRES_EXPORT ncclResult_t ncclCommDestroy(const void *comm) { return release(comm, "ncclCommDestroy", false); }

CHAGRES_EXPORT ncclResult_t ncclCommAbort(const void *comm) { return release(comm, "ncclCommAbort", true); }

CHAGRES_EXPORT ncclResult_t ncclCommCount(const void *comm, int *count) {
  return read<int>(comm, "ncclCommCount", count, [](const Comm &found) { return found.world->ranks(); });
}

CHAGRES_EXPORT ncclResult_t ncclCommCuDevice(const void *comm, int *device) {
  return read<int>(comm, "ncclCommCuDevice", device, [](const Comm &found) { return found.device; });
}

CHAGRES_EXPORT ncclResult_t ncclCommUserRank(const void *comm, int *rank) {
  return read<int>(comm, "ncclCommUserRank", rank, [](const Comm &found) { return found.rank; });
}

CHAGRES_EXPORT ncclResult_t ncclCommGetAsyncError(const void *comm, ncclResult_t *error) {
  return read<int>(comm, "ncclCommGetAsyncError", error, [](const Comm &found) { return status(found.world->failure()); });
}

CHAGRES_EXPORT ncclResult_t ncclGroupStart(void) {
  ++group_depth;
  return kNcclSuccess;
}

CHAGRES_EXPORT ncclResult_t ncclGroupEnd(void) {
  if (group_depth == 0) return refuse(kNcclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
  if (--group_depth > 0) return kNcclSuccess;
  const std::vector<Deferred> operations = std::move(group);
  const Outcome failed = group_failure;
  group.clear();
  group_failure = {};
  /* Nothing was posted yet: a group with a wrong call does nothing. */
  return status(failed.code != kNcclSuccess ? failed : finish(operations));
}

CHAGRES_EXPORT ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, int dtype, int op,
                                          const void *comm, const void *stream) {
  return collective({"ncclAllReduce", comm, stream, count, dtype}, Collective::AllReduce, {send, count, receive, count},
                    op, 0);
}

CHAGRES_EXPORT ncclResult_t ncclReduce(const void *send, void *receive, size_t count, int dtype, int op, int root,
                                       const void *comm, const void *stream) {
  return collective({"ncclReduce", comm, stream, count, dtype}, Collective::Reduce,
                    {send, count, receive, is_rank(comm, root) ? count : 0}, op, root);
}

CHAGRES_EXPORT ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, int dtype, int root,
                                          const void *comm, const void *stream) {
  return collective({"ncclBroadcast", comm, stream, count, dtype}, Collective::Broadcast,
                    {send, is_rank(comm, root) ? count : 0, receive, count}, 0, root);
}

CHAGRES_EXPORT ncclResult_t ncclBcast(void *buffer, size_t count, int dtype, int root, const void *comm,
                                      const void *stream) {
  return ncclBroadcast(buffer, buffer, count, dtype, root, comm, stream);
}

CHAGRES_EXPORT ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, int dtype, const void *comm,
                                          const void *stream) {
  return collective({"ncclAllGather", comm, stream, count, dtype}, Collective::AllGather,
                    {send, count, receive, count * ranks_of(comm)}, 0, 0);
}

CHAGRES_EXPORT ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, int dtype, int op,
                                              const void *comm, const void *stream) {
  return collective({"ncclReduceScatter", comm, stream, count, dtype}, Collective::ReduceScatter,
                    {send, count * ranks_of(comm), receive, count}, op, 0);
}

CHAGRES_EXPORT ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t count, int dtype, const void *comm,
                                         const void *stream) {
  return collective({"ncclAlltoAll", comm, stream, count, dtype}, Collective::AllToAll,
                    {send, count * ranks_of(comm), receive, count * ranks_of(comm)}, 0, 0);
}

CHAGRES_EXPORT ncclResult_t ncclGather(const void *send, void *receive, size_t count, int dtype, int root,
                                       const void *comm, const void *stream) {
  return collective({"ncclGather", comm, stream, count, dtype}, Collective::Gather,
                    {send, count, receive, is_rank(comm, root) ? count * ranks_of(comm) : 0}, 0, root);
}

CHAGRES_EXPORT ncclResult_t ncclScatter(const void *send, void *receive, size_t count, int dtype, int root,
                                        const void *comm, const void *stream) {
  return collective({"ncclScatter", comm, stream, count, dtype}, Collective::Scatter,
                    {send, is_rank(comm, root) ? count * ranks_of(comm) : 0, receive, count}, 0, root);
}

CHAGRES_EXPORT ncclResult_t ncclSend(const void *send, size_t count, int dtype, int peer, const void *comm,
                                     const void *stream) {
  return transfer({"ncclSend", comm, stream, count, dtype}, true, send, nullptr, peer);
}

CHAGRES_EXPORT ncclResult_t ncclRecv(void *receive, size_t count, int dtype, int peer, const void *comm,
                                     const void *stream) {
  return transfer({"ncclRecv", comm, stream, count, dtype}, false, nullptr, receive, peer);
}

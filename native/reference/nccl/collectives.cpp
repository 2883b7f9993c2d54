/* NCCL's collectives and transfers. Arguments are checked before anything is posted. */
#include "cuda/capture.h"
#include "nccl/nccl.h"

namespace chagres::reference {

namespace {

struct Call {
  const char *function;
  const void *comm, *stream;
  size_t count;
  int dtype;
};

/* A buffer of `bytes` must be memory that the CUDA runtime handed out or registered. */
bool is_buffer(const void *buffer, size_t bytes) { return bytes <= accessible_bytes(buffer); }

int check_call(const Call &call, Comm **comm) {
  *comm = comms().find(call.comm);
  if (*comm == nullptr) {
    return refuse_in_group(kNcclInvalidArgument, call.function, ": argument \"comm\" is no living communicator");
  }
  if ((*comm)->finalized) {
    return refuse_call(*comm, kNcclInvalidUsage, call.function, ": the communicator was finalized");
  }
  const Outcome ready = check_ready(**comm);
  if (ready.code != kNcclSuccess) return refuse_call(*comm, ready.code, call.function, ": ", ready.text);
  if (call.dtype < 0 || call.dtype >= kNcclDtypes) {
    return refuse_call(*comm, kNcclInvalidArgument, call.function, ": argument \"datatype\" must be 0 to ", kNcclDtypes - 1,
                           ", got ", call.dtype);
  }
  if (!is_stream(call.stream)) {
    return refuse_call(*comm, kNcclInvalidArgument, call.function, ": argument \"stream\" is no living stream");
  }
  if (call.count > SIZE_MAX / 64 / static_cast<size_t>((*comm)->world->ranks())) {
    return refuse_call(*comm, kNcclInvalidArgument, call.function, ": argument \"count\" is too large: ", call.count);
  }
  return kNcclSuccess;
}

int check_buffer(Comm *comm, const Call &call, const char *argument, const void *buffer, size_t elements) {
  const size_t bytes = elements * nccl_dtype_size(call.dtype);
  if (is_buffer(buffer, bytes)) return kNcclSuccess;
  return refuse_call(comm, kNcclInvalidArgument, call.function, ": argument \"", argument, "\" must be ", bytes,
                         " bytes of device memory, got ", buffer == nullptr ? "NULL" : "another or smaller buffer");
}

struct Buffers {
  const void *send;
  size_t send_elements; /* 0: not looked at on this rank */
  void *receive;
  size_t receive_elements;
};

bool is_summed_by_symmetric_kernels(const Signature &signature) {
  switch (signature.dtype) {
    case kNcclFloat16:
    case kNcclFloat32:
    case kNcclBfloat16:
    case kNcclFloat8e4m3:
    case kNcclFloat8e5m2:
      return signature.op == kNcclSum;
    default:
      return false;
  }
}

/* What peers reach of this rank's memory in the symmetric kernels of NCCL 2.28.9, which it takes where both buffers lie in windows: a gather
 * writes into the peers' memory, a reduce-scatter reads theirs. */
SymmetricPlaces symmetric_places(const Comm &comm, const Signature &signature, const Buffers &buffers) {
  const WindowPlace send = window_place(comm, buffers.send), receive = window_place(comm, buffers.receive);
  if (send.window == 0 || receive.window == 0 || signature.count == 0 || comm.world->ranks() == 1) return {};
  switch (signature.kind) {
    case Collective::AllGather:
      return {{}, receive};
    case Collective::ReduceScatter:
      return is_summed_by_symmetric_kernels(signature) ? SymmetricPlaces{send, {}} : SymmetricPlaces{};
    case Collective::AllReduce:
      return is_summed_by_symmetric_kernels(signature) ? SymmetricPlaces{send, receive} : SymmetricPlaces{};
    default:
      return {};
  }
}

int collective(const Call &call, Collective kind, const Buffers &buffers, int op, int root) {
  Comm *comm;
  int code = check_call(call, &comm);
  if (code != kNcclSuccess) return code;
  const bool reducing = kind == Collective::AllReduce || kind == Collective::Reduce || kind == Collective::ReduceScatter;
  const auto made = comm->ops.find(op);
  const bool premultiplied = reducing && made != comm->ops.end();
  if (reducing && (op < 0 || op >= kNcclOps) && !premultiplied) {
    return refuse_call(comm, kNcclInvalidArgument, call.function, ": argument \"op\" must be 0 to ", kNcclOps - 1,
                           " or an operation that was made for this communicator and lives, got ", op);
  }
  if (premultiplied && made->second.dtype != call.dtype) {
    return refuse_call(comm, kNcclInvalidArgument, call.function, ": argument \"op\" was made for datatype ",
                           made->second.dtype, ", got ", call.dtype);
  }
  if (root < 0 || root >= comm->world->ranks()) {
    return refuse_call(comm, kNcclInvalidArgument, call.function, ": argument \"root\" must be a rank below ",
                           comm->world->ranks(), ", got ", root);
  }
  code = check_buffer(comm, call, "sendbuff", buffers.send, buffers.send_elements);
  if (code == kNcclSuccess) code = check_buffer(comm, call, "recvbuff", buffers.receive, buffers.receive_elements);
  if (code != kNcclSuccess) return code;
  /* Every rank leaves it out, since all bring equal counts. */
  if (leaves_out(call.stream, call.count * nccl_dtype_size(call.dtype))) return kNcclSuccess;
  const Signature signature{kind, call.count, call.dtype, premultiplied ? static_cast<int>(kNcclPreMulSum) : op, root};
  /* The operation may be destroyed as soon as this returns, so its factor goes along. */
  const PreMulSum sum = premultiplied ? made->second : PreMulSum{};
  const SymmetricPlaces places = symmetric_places(*comm, signature, buffers);
  return submit({comm, [=](std::shared_ptr<Pending> *pending) {
                   Contribution given{buffers.send, buffers.receive, sum.factor, 0, 0, places};
                   if (sum.on_device != nullptr) {
                     std::memcpy(given.factor.bytes, sum.on_device, nccl_dtype_size(signature.dtype));
                   }
                   return comm->world->post(comm->rank, signature, given, pending);
                 },
                 call.stream});
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
    return refuse_call(comm, kNcclInvalidArgument, call.function, ": argument \"peer\" must be a rank below ",
                           comm->world->ranks(), ", got ", peer);
  }
  code = sending ? check_buffer(comm, call, "sendbuff", send, call.count) : check_buffer(comm, call, "recvbuff", receive, call.count);
  if (code != kNcclSuccess) return code;
  if (leaves_out(call.stream, call.count * nccl_dtype_size(call.dtype))) return kNcclSuccess;
  return submit({comm, [=](std::shared_ptr<Pending> *pending) {
                   return sending ? comm->world->post_send(comm->rank, peer, send, call.count, call.dtype, pending)
                                  : comm->world->post_receive(comm->rank, peer, receive, call.count, call.dtype, pending);
                 },
                 call.stream});
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

CHAGRES_EXPORT ncclResult_t ncclAllReduce(const void *send, void *receive, size_t count, int dtype, int op,
                                          const void *comm, const void *stream) try {
  return collective({"ncclAllReduce", comm, stream, count, dtype}, Collective::AllReduce, {send, count, receive, count},
                    op, 0);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclReduce(const void *send, void *receive, size_t count, int dtype, int op, int root,
                                       const void *comm, const void *stream) try {
  return collective({"ncclReduce", comm, stream, count, dtype}, Collective::Reduce,
                    {send, count, receive, is_rank(comm, root) ? count : 0}, op, root);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclBroadcast(const void *send, void *receive, size_t count, int dtype, int root,
                                          const void *comm, const void *stream) try {
  return collective({"ncclBroadcast", comm, stream, count, dtype}, Collective::Broadcast,
                    {send, is_rank(comm, root) ? count : 0, receive, count}, 0, root);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclBcast(void *buffer, size_t count, int dtype, int root, const void *comm,
                                      const void *stream) try {
  return ncclBroadcast(buffer, buffer, count, dtype, root, comm, stream);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclAllGather(const void *send, void *receive, size_t count, int dtype, const void *comm,
                                          const void *stream) try {
  return collective({"ncclAllGather", comm, stream, count, dtype}, Collective::AllGather,
                    {send, count, receive, count * ranks_of(comm)}, 0, 0);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclReduceScatter(const void *send, void *receive, size_t count, int dtype, int op,
                                              const void *comm, const void *stream) try {
  return collective({"ncclReduceScatter", comm, stream, count, dtype}, Collective::ReduceScatter,
                    {send, count * ranks_of(comm), receive, count}, op, 0);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclAlltoAll(const void *send, void *receive, size_t count, int dtype, const void *comm,
                                         const void *stream) try {
  return collective({"ncclAlltoAll", comm, stream, count, dtype}, Collective::AllToAll,
                    {send, count * ranks_of(comm), receive, count * ranks_of(comm)}, 0, 0);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclGather(const void *send, void *receive, size_t count, int dtype, int root,
                                       const void *comm, const void *stream) try {
  return collective({"ncclGather", comm, stream, count, dtype}, Collective::Gather,
                    {send, count, receive, is_rank(comm, root) ? count * ranks_of(comm) : 0}, 0, root);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclScatter(const void *send, void *receive, size_t count, int dtype, int root,
                                        const void *comm, const void *stream) try {
  return collective({"ncclScatter", comm, stream, count, dtype}, Collective::Scatter,
                    {send, is_rank(comm, root) ? count * ranks_of(comm) : 0, receive, count}, 0, root);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclSend(const void *send, size_t count, int dtype, int peer, const void *comm,
                                     const void *stream) try {
  return transfer({"ncclSend", comm, stream, count, dtype}, true, send, nullptr, peer);
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclRecv(void *receive, size_t count, int dtype, int peer, const void *comm,
                                     const void *stream) try {
  return transfer({"ncclRecv", comm, stream, count, dtype}, false, nullptr, receive, peer);
} CHAGRES_NCCL_CATCH

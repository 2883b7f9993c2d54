/* NCCL's functions, on a communicator of one rank. */
#include <climits>

#include "cases.h"

namespace extremes {

namespace {

constexpr int kFloat32 = 7, kSum = 0;

void **owned_comm(Fixture &f) {
  auto *comm = f.out<void *>();
  f.finally([=] { symbol<int(void *)>("ncclCommDestroy")(*comm); });
  return comm;
}

/* ncclConfig_t as NCCL_CONFIG_INITIALIZER leaves it. */
int *config(Fixture &f) {
  constexpr int kUndefined = INT_MIN;
  return f.values<int>({80, 0, static_cast<int>(0xcafebeefu), 22809, kUndefined, kUndefined, kUndefined, kUndefined, 0, 0,
                        kUndefined, kUndefined, 0, 0, kUndefined, kUndefined, kUndefined, kUndefined, kUndefined, kUndefined});
}

/* Memory that NCCL hands out. */
void *nccl_memory(Fixture &f, size_t size) {
  void *memory = nullptr;
  symbol<int(void **, size_t)>("ncclMemAlloc")(&memory, size);
  f.finally([=] { symbol<int(void *)>("ncclMemFree")(memory); });
  return memory;
}

using Register = int(void *, void *, size_t, void **);
using RegisterWindow = int(void *, void *, size_t, void **, int);
using CreateSum = int(int *, const void *, int, int, void *);

int deregister(void *comm, void *memory) {
  void *handle = nullptr;
  const int status = symbol<Register>("ncclCommRegister")(comm, memory, 64, &handle);
  return status != 0 ? status : symbol<int(void *, void *)>("ncclCommDeregister")(comm, handle);
}

int deregister_window(void *comm, void *memory) {
  void *handle = nullptr;
  const int status = symbol<RegisterWindow>("ncclCommWindowRegister")(comm, memory, 64, &handle, 1);
  return status != 0 ? status : symbol<int(void *, void *)>("ncclCommWindowDeregister")(comm, handle);
}

int destroy_op(void *comm, const float *factor) {
  int made = 0;
  const int status = symbol<CreateSum>("ncclRedOpCreatePreMulSum")(&made, factor, kFloat32, 1, comm);
  return status != 0 ? status : symbol<int(int, void *)>("ncclRedOpDestroy")(made, comm);
}

/* A communicator of one rank cannot lose one: right is a status that is no success. */
int shrink(void *comm, const int *excluded, int count, void **made, void *settings, int flags) {
  return symbol<int(void *, const int *, int, void **, void *, int)>("ncclCommShrink")(comm, excluded, count, made, settings,
                                                                                     flags) == 0;
}

std::vector<Case> communicators() {
  return {
      CASE_AS(ncclGetVersion, int(int *), f.out<int>()),
      CASE_AS(ncclResetDebugInit, void()),
      CASE_AS(ncclMemAlloc, int(void **, size_t), f.out<void *>(), 64),
      CASE_AS(ncclMemFree, int(void *), f.to_free(f.device(64))),
      CASE_AS(ncclGetUniqueId, int(UniqueId *), f.out<UniqueId>()),
      CASE_AS(ncclCommInitRank, int(void **, int, UniqueId, int), owned_comm(f), 1, f.id(), 0),
      CASE_AS(ncclCommInitRankConfig, int(void **, int, UniqueId, int, void *), owned_comm(f), 1, f.id(), 0, config(f)),
      CASE_AS(ncclCommInitRankScalable, int(void **, int, int, int, const UniqueId *, void *), owned_comm(f), 1, 0, 1,
              f.values<UniqueId>({f.id()}), config(f)),
      CASE_AS(ncclCommSplit, int(void *, int, int, void **, void *), f.comm(), 0, 0, owned_comm(f), config(f)),
      CASE_OF("ncclCommShrink", &shrink, f.comm(), f.values<int>({0}), 1, owned_comm(f), config(f), 0),
      CASE_AS(ncclCommRevoke, int(void *, int), f.comm(), 0),
      CASE_AS(ncclCommRegister, int(void *, void *, size_t, void **), f.comm(), f.device(64), 64, f.out<void *>()),
      CASE_OF("ncclCommDeregister", &deregister, f.comm(), f.device(64)),
      CASE_AS(ncclCommWindowRegister, int(void *, void *, size_t, void **, int), f.comm(), nccl_memory(f, 64), 64,
              f.out<void *>(), 1),
      CASE_OF("ncclCommWindowDeregister", &deregister_window, f.comm(), nccl_memory(f, 64)),
      CASE_AS(ncclRedOpCreatePreMulSum, int(int *, const void *, int, int, void *), f.out<int>(), f.values<float>({2}),
              kFloat32, 1, f.comm()),
      CASE_OF("ncclRedOpDestroy", &destroy_op, f.comm(), f.values<float>({2})),
      CASE_AS(ncclCommInitAll, int(void **, int, const int *), owned_comm(f), 1, f.values<int>({1})),
      CASE_AS(ncclCommFinalize, int(void *), f.comm()),
      CASE_AS(ncclCommDestroy, int(void *), f.comm()),
      CASE_AS(ncclCommAbort, int(void *), f.comm()),
      CASE_AS(ncclCommCount, int(void *, int *), f.comm(), f.out<int>()),
      CASE_AS(ncclCommCuDevice, int(void *, int *), f.comm(), f.out<int>()),
      CASE_AS(ncclCommUserRank, int(void *, int *), f.comm(), f.out<int>()),
      CASE_AS(ncclCommGetAsyncError, int(void *, int *), f.comm(), f.out<int>()),
      CASE_AS(ncclGetErrorString, const char *(int), 1),
      CASE_AS(ncclGetLastError, const char *(void *), f.comm()),
      CASE_AS(ncclGroupStart, int()),
      CASE_OF("ncclGroupEnd", +[] {
        symbol<int()>("ncclGroupStart")();
        return symbol<int()>("ncclGroupEnd")();
      }),
  };
}

std::vector<Case> collectives() {
  return {
      CASE_AS(ncclAllReduce, int(const void *, void *, size_t, int, int, void *, void *), f.device(64), f.device(64), 16,
              kFloat32, kSum, f.comm(), f.stream()),
      CASE_AS(ncclReduce, int(const void *, void *, size_t, int, int, int, void *, void *), f.device(64), f.device(64), 16,
              kFloat32, kSum, 0, f.comm(), f.stream()),
      CASE_AS(ncclBroadcast, int(const void *, void *, size_t, int, int, void *, void *), f.device(64), f.device(64), 16,
              kFloat32, 0, f.comm(), f.stream()),
      CASE_AS(ncclBcast, int(void *, size_t, int, int, void *, void *), f.device(64), 16, kFloat32, 0, f.comm(), f.stream()),
      CASE_AS(ncclAllGather, int(const void *, void *, size_t, int, void *, void *), f.device(64), f.device(64), 16, kFloat32,
              f.comm(), f.stream()),
      CASE_AS(ncclReduceScatter, int(const void *, void *, size_t, int, int, void *, void *), f.device(64), f.device(64), 16,
              kFloat32, kSum, f.comm(), f.stream()),
      CASE_AS(ncclAlltoAll, int(const void *, void *, size_t, int, void *, void *), f.device(64), f.device(64), 16, kFloat32,
              f.comm(), f.stream()),
      CASE_AS(ncclGather, int(const void *, void *, size_t, int, int, void *, void *), f.device(64), f.device(64), 16,
              kFloat32, 0, f.comm(), f.stream()),
      CASE_AS(ncclScatter, int(const void *, void *, size_t, int, int, void *, void *), f.device(64), f.device(64), 16,
              kFloat32, 0, f.comm(), f.stream()),
  };
}

using Receive = int(void *, size_t, int, int, void *, void *);
using Send = int(const void *, size_t, int, int, void *, void *);

/* A rank that sends to itself does so in one group with the receiving: alone, the call would wait. A refused call fails its
 * group, which then does nothing. */
template <class Call>
int in_group(const Call &call) {
  symbol<int()>("ncclGroupStart")();
  const int status = call();
  const int ended = symbol<int()>("ncclGroupEnd")();
  return status != 0 ? status : ended;
}

int send_to_itself(void *other, const void *send, size_t count, int dtype, int peer, void *comm, void *stream) {
  return in_group([&] {
    symbol<Receive>("ncclRecv")(other, 16, kFloat32, 0, comm, nullptr);
    return symbol<Send>("ncclSend")(send, count, dtype, peer, comm, stream);
  });
}

int receive_from_itself(const void *other, void *receive, size_t count, int dtype, int peer, void *comm, void *stream) {
  return in_group([&] {
    symbol<Send>("ncclSend")(other, 16, kFloat32, 0, comm, nullptr);
    return symbol<Receive>("ncclRecv")(receive, count, dtype, peer, comm, stream);
  });
}

std::vector<Case> transfers() {
  return {
      CASE_OF("ncclSend", &send_to_itself, f.device(64), f.device(64), 16, kFloat32, 0, f.comm(), f.stream()),
      CASE_OF("ncclRecv", &receive_from_itself, f.device(64), f.device(64), 16, kFloat32, 0, f.comm(), f.stream()),
  };
}

}  // namespace

std::vector<Case> nccl_cases() {
  std::vector<Case> all;
  for (const auto &some : {communicators(), collectives(), transfers()})
    all.insert(all.end(), some.begin(), some.end());
  return all;
}

}  // namespace extremes

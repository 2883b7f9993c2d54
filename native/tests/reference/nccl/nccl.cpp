/* Communicators among threads: every collective, and groups. */
#include "nccl/ranks.h"

using namespace ranks_test;

namespace {

double expected_value(int op, const std::vector<double> &values) {
  double result = values[0];
  for (size_t i = 1; i < values.size(); ++i) {
    const double x = values[i];
    result = op == kNcclProd ? result * x : op == kNcclMax ? std::max(result, x) : op == kNcclMin ? std::min(result, x) : result + x;
  }
  return op == kNcclAvg ? result / static_cast<double>(values.size()) : result;
}

template <class T>
void all_reduce_typed(int dtype, double relative) {
  for (const int ranks : {1, 2, 5}) {
    with_ranks(ranks, [&](int rank, void *comm) {
      for (const size_t count : {1, 7, 20000}) {
        for (int op = 0; op < kNcclOps; ++op) {
          Buffer<T> send(count), receive(count);
          const auto value = [&](int of, size_t i) { return static_cast<double>((of * 7 + static_cast<int>(i % 13)) % 9 + 1); };
          for (size_t i = 0; i < count; ++i) send[i] = static_cast<T>(value(rank, i));
          EXPECT_EQUAL(ncclAllReduce(send, receive, count, dtype, op, comm, nullptr), 0);
          EXPECT_EQUAL(ncclAllReduce(send, send, count, dtype, op, comm, nullptr), 0); /* in place */
          for (size_t i = 0; i < count; ++i) {
            std::vector<double> values;
            for (int of = 0; of < ranks; ++of) values.push_back(value(of, i));
            double expected = expected_value(op, values);
            if (std::is_integral<T>::value) {
              if (sizeof(T) == 1) expected = static_cast<T>(static_cast<int64_t>(expected_value(op == kNcclAvg ? kNcclSum : op, values)));
              if (op == kNcclAvg && sizeof(T) == 1) expected = static_cast<double>(static_cast<T>(expected) / ranks);
              expected = std::trunc(expected);
            }
            EXPECT(check::close(static_cast<double>(receive[i]), expected, relative, 0));
            EXPECT(receive[i] == send[i]);
          }
        }
      }
    });
  }
}

}  // namespace

TEST(all_reduce_of_every_number) {
  all_reduce_typed<float>(kNcclFloat32, 1e-6);
  all_reduce_typed<double>(kNcclFloat64, 1e-15);
  all_reduce_typed<int32_t>(kNcclInt32, 0);
  all_reduce_typed<uint32_t>(kNcclUint32, 0);
  all_reduce_typed<int64_t>(kNcclInt64, 0);
  all_reduce_typed<uint64_t>(kNcclUint64, 0);
  all_reduce_typed<int8_t>(kNcclInt8, 0);
  all_reduce_typed<uint8_t>(kNcclUint8, 0);
}

TEST(halves_are_summed_in_float_and_rounded_once) {
  with_ranks(4, [](int rank, void *comm) {
    for (const int dtype : {kNcclFloat16, kNcclBfloat16}) {
      const NVTEDType format = dtype == kNcclFloat16 ? kNVTEFloat16 : kNVTEBFloat16;
      Buffer<uint16_t> send(3), receive(3);
      /* 1 + small + small + small: each partial sum in the format itself would lose the small terms. */
      const double small = dtype == kNcclFloat16 ? 0x1p-12 : 0x1p-9;
      for (size_t i = 0; i < 3; ++i) store(send, static_cast<int64_t>(i), format, rank == 0 ? 1.0f : static_cast<float>(small));
      EXPECT_EQUAL(ncclAllReduce(send, receive, 3, dtype, kNcclSum, comm, nullptr), 0);
      for (size_t i = 0; i < 3; ++i) EXPECT_EQUAL(static_cast<double>(load(receive, static_cast<int64_t>(i), format)), 1 + 4 * small);
    }
  });
}

TEST(integers_wrap) {
  with_ranks(2, [](int, void *comm) {
    Buffer<int32_t> value(1);
    value[0] = INT32_MAX;
    EXPECT_EQUAL(ncclAllReduce(value, value, 1, kNcclInt32, kNcclSum, comm, nullptr), 0);
    EXPECT_EQUAL(value[0], -2);
  });
}

TEST(the_other_collectives) {
  constexpr int kRanks = 3;
  constexpr size_t kCount = 5000;
  with_ranks(kRanks, [](int rank, void *comm) {
    const auto value = [](int of, size_t i) { return static_cast<float>(of * 1000 + static_cast<int>(i % 97)); };
    Buffer<float> one(kCount), all(kCount * kRanks), out(kCount), all_out(kCount * kRanks);
    for (size_t i = 0; i < kCount; ++i) one[i] = value(rank, i);
    for (size_t i = 0; i < kCount * kRanks; ++i) all[i] = value(rank, i);

    EXPECT_EQUAL(ncclReduce(one, out, kCount, kNcclFloat32, kNcclSum, 1, comm, nullptr), 0);
    for (size_t i = 0; rank == 1 && i < kCount; ++i) EXPECT_EQUAL(out[i], value(0, i) + value(1, i) + value(2, i));

    EXPECT_EQUAL(ncclBroadcast(one, out, kCount, kNcclFloat32, 2, comm, nullptr), 0);
    for (size_t i = 0; i < kCount; ++i) EXPECT_EQUAL(out[i], value(2, i));
    EXPECT_EQUAL(ncclBroadcast(rank == 1 ? static_cast<void *>(one) : nullptr, out, kCount, kNcclFloat32, 1, comm, nullptr), 0);
    EXPECT_EQUAL(out[7], value(1, 7));

    EXPECT_EQUAL(ncclAllGather(one, all_out, kCount, kNcclFloat32, comm, nullptr), 0);
    for (int of = 0; of < kRanks; ++of) {
      for (size_t i = 0; i < kCount; ++i) EXPECT_EQUAL(all_out[static_cast<size_t>(of) * kCount + i], value(of, i));
    }
    for (size_t i = 0; i < kCount; ++i) all_out[static_cast<size_t>(rank) * kCount + i] = value(rank, i) + 0.5f;
    EXPECT_EQUAL(ncclAllGather(&all_out[static_cast<size_t>(rank) * kCount], all_out, kCount, kNcclFloat32, comm, nullptr), 0);
    EXPECT_EQUAL(all_out[2 * kCount + 3], value(2, 3) + 0.5f);

    EXPECT_EQUAL(ncclReduceScatter(all, out, kCount, kNcclFloat32, kNcclMax, comm, nullptr), 0);
    for (size_t i = 0; i < kCount; ++i) EXPECT_EQUAL(out[i], value(2, static_cast<size_t>(rank) * kCount + i));

    EXPECT_EQUAL(ncclAlltoAll(all, all_out, kCount, kNcclFloat32, comm, nullptr), 0);
    for (int of = 0; of < kRanks; ++of) EXPECT_EQUAL(all_out[static_cast<size_t>(of) * kCount + 9], value(of, static_cast<size_t>(rank) * kCount + 9));

    EXPECT_EQUAL(ncclGather(one, all_out, kCount, kNcclFloat32, 0, comm, nullptr), 0);
    if (rank == 0) EXPECT_EQUAL(all_out[2 * kCount + 11], value(2, 11));
    EXPECT_EQUAL(ncclScatter(all, out, kCount, kNcclFloat32, 1, comm, nullptr), 0);
    EXPECT_EQUAL(out[4], value(1, static_cast<size_t>(rank) * kCount + 4));
    EXPECT_EQUAL(ncclBcast(one, kCount, kNcclFloat32, 0, comm, nullptr), 0);
    EXPECT_EQUAL(one[6], value(0, 6));
    EXPECT_EQUAL(ncclAllReduce(one, one, 0, kNcclFloat32, kNcclSum, comm, nullptr), 0); /* nothing to do */
  });
}

TEST(a_ring_of_sends) {
  with_ranks(4, [](int rank, void *comm) {
    Buffer<int64_t> send(100), receive(100), self(100);
    for (size_t i = 0; i < 100; ++i) send[i] = rank * 1000 + static_cast<int>(i);
    EXPECT_EQUAL(ncclGroupStart(), 0);
    EXPECT_EQUAL(ncclSend(send, 100, kNcclInt64, (rank + 1) % 4, comm, nullptr), 0);
    EXPECT_EQUAL(ncclRecv(receive, 100, kNcclInt64, (rank + 3) % 4, comm, nullptr), 0);
    EXPECT_EQUAL(ncclSend(send, 100, kNcclInt64, rank, comm, nullptr), 0);
    EXPECT_EQUAL(ncclRecv(self, 100, kNcclInt64, rank, comm, nullptr), 0);
    EXPECT_EQUAL(ncclGroupEnd(), 0);
    EXPECT_EQUAL(receive[99], int64_t{(rank + 3) % 4 * 1000 + 99});
    EXPECT_EQUAL(self[1], int64_t{rank * 1000 + 1});
    /* Without a group, in an order that fits. */
    if (rank % 2 == 0) {
      EXPECT_EQUAL(ncclSend(send, 10, kNcclInt64, rank + 1, comm, nullptr), 0);
    } else {
      EXPECT_EQUAL(ncclRecv(receive, 10, kNcclInt64, rank - 1, comm, nullptr), 0);
      EXPECT_EQUAL(receive[0], int64_t{(rank - 1) * 1000});
    }
  });
}

TEST(one_thread_drives_all_ranks_in_a_group) {
  void *comms[3];
  const int devices[] = {4, 5, 6};
  EXPECT_EQUAL(ncclCommInitAll(comms, 3, devices), 0);
  Buffer<float> a(10), b(10), c(10);
  Buffer<float> *buffers[] = {&a, &b, &c};
  for (int rank = 0; rank < 3; ++rank) {
    int value = -1;
    EXPECT_EQUAL(ncclCommUserRank(comms[rank], &value), 0);
    EXPECT_EQUAL(value, rank);
    EXPECT_EQUAL(ncclCommCuDevice(comms[rank], &value), 0);
    EXPECT_EQUAL(value, devices[rank]);
    EXPECT_EQUAL(ncclCommCount(comms[rank], &value), 0);
    EXPECT_EQUAL(value, 3);
    for (size_t i = 0; i < 10; ++i) (*buffers[rank])[i] = static_cast<float>(rank + 1);
  }
  ncclGroupStart();
  ncclGroupStart(); /* groups nest */
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQUAL(ncclAllReduce(*buffers[rank], *buffers[rank], 10, kNcclFloat32, kNcclSum, comms[rank], nullptr), 0);
  EXPECT_EQUAL(ncclGroupEnd(), 0);
  EXPECT_EQUAL(a[0], 1.0f); /* the inner end starts nothing */
  EXPECT_EQUAL(ncclGroupEnd(), 0);
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQUAL((*buffers[rank])[9], 6.0f);
  for (void *comm : comms) EXPECT_EQUAL(ncclCommDestroy(comm), 0);
  EXPECT_EQUAL(ncclCommDestroy(comms[0]), 4);
  EXPECT(std::string(ncclGetLastError(nullptr)).find("destroyed already") != std::string::npos);
  EXPECT_EQUAL(ncclCommDestroy(nullptr), 0);
}

TEST(init_in_a_group) {
  TestUniqueId id;
  ncclGetUniqueId(&id);
  void *comms[2];
  ncclGroupStart();
  for (int rank = 0; rank < 2; ++rank) {
    cudaSetDevice(rank);
    EXPECT_EQUAL(ncclCommInitRank(&comms[rank], 2, id, rank), 0);
  }
  cudaSetDevice(0);
  EXPECT_EQUAL(ncclGroupEnd(), 0);
  for (void *comm : comms) EXPECT_EQUAL(ncclCommDestroy(comm), 0);
}

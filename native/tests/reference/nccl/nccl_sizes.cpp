/* Sixteen ranks, and collectives of 256 MiB. In a process of their own, since the number of devices is read once. */
#include "nccl/ranks.h"

using namespace ranks_test;

SET_VARIABLE(CHAGRES_REFERENCE_DEVICES, "16");

TEST(sixteen_ranks) {
  for (const int ranks : {9, 13, 16}) {
    with_ranks(ranks, [&](int rank, void *comm) {
      constexpr size_t kCount = 30011;
      Buffer<float> own(kCount), all(kCount * static_cast<size_t>(ranks)), part(kCount);
      for (size_t i = 0; i < kCount; ++i) own[i] = static_cast<float>(rank + static_cast<int>(i % 5));
      EXPECT_EQUAL(ncclAllGather(own, all, kCount, kNcclFloat32, comm, nullptr), 0);
      EXPECT_EQUAL(ncclReduceScatter(all, part, kCount, kNcclFloat32, kNcclSum, comm, nullptr), 0);
      for (size_t i = 0; i < kCount; ++i) EXPECT_EQUAL(part[i], static_cast<float>(ranks * (rank + static_cast<int>(i % 5))));
      EXPECT_EQUAL(ncclAllReduce(own, own, kCount, kNcclFloat32, kNcclSum, comm, nullptr), 0);
      for (size_t i = 0; i < kCount; ++i) {
        EXPECT_EQUAL(own[i], static_cast<float>(ranks * (ranks - 1) / 2 + ranks * static_cast<int>(i % 5)));
      }
    });
  }
}

/* More ranks than an int8 can count: as many as one process may have. */
TEST(averages_over_hundreds_of_ranks) {
  const std::vector<int8_t> values(3, -6);
  const std::vector<Source> sources(300, Source{values.data(), {}});
  std::vector<int8_t> average(3);
  reduce_elements(kNcclInt8, kNcclAvg, sources, 0, 3, average.data());
  /* The sum wraps as an int8 does: 300 * -6 is -8 modulo 256. */
  for (const int8_t value : average) EXPECT_EQUAL(static_cast<int>(value), -8 / 300);
  const std::vector<uint8_t> bytes(3, 2);
  const std::vector<Source> many(256, Source{bytes.data(), {}});
  std::vector<uint8_t> mean(3, 1);
  reduce_elements(kNcclUint8, kNcclAvg, many, 0, 3, mean.data());
  for (const uint8_t value : mean) EXPECT_EQUAL(static_cast<int>(value), 0);
}

/* Floats are multiplied by 1 / N, rounded to their type, before they are added: large ones have a finite average. */
TEST(averages_of_large_floats) {
  const auto average_of = [](int dtype, NVTEDType format, std::vector<float> values) {
    std::vector<std::vector<uint32_t>> stored(values.size(), std::vector<uint32_t>(1));
    std::vector<Source> sources;
    for (size_t rank = 0; rank < values.size(); ++rank) {
      store(stored[rank].data(), 0, format, values[rank]);
      sources.push_back({stored[rank].data(), {}});
    }
    uint32_t result = 0;
    reduce_elements(dtype, kNcclAvg, sources, 0, 1, &result);
    return load(&result, 0, format);
  };
  EXPECT_EQUAL(average_of(kNcclFloat32, kNVTEFloat32, {3e38f, 3e38f}), 3e38f);
  EXPECT_EQUAL(average_of(kNcclFloat32, kNVTEFloat32, {-3e38f, 3e38f}), 0.0f);
  EXPECT_EQUAL(average_of(kNcclBfloat16, kNVTEBFloat16, {0x1.9p127f, 0x1.9p127f, 0x1.9p127f, 0x1.9p127f}), 0x1.9p127f);
  EXPECT_EQUAL(average_of(kNcclFloat16, kNVTEFloat16, {60000, 60000}), 60000.0f);
  EXPECT_EQUAL(average_of(kNcclFloat8e5m2, kNVTEFloat8E5M2, {57344, 57344}), 57344.0f);
  /* 1 / 3 is 0.333984375 in BF16 and 0.34375 in E4M3. */
  EXPECT_EQUAL(average_of(kNcclBfloat16, kNVTEBFloat16, {256, 256, 256}), 256.0f);
  EXPECT_EQUAL(average_of(kNcclBfloat16, kNVTEBFloat16, {1, 0, 0}), 0.333984375f);
  EXPECT_EQUAL(average_of(kNcclFloat8e4m3, kNVTEFloat8E4M3, {8, 0, 0}), 2.75f);
  const std::vector<double> doubles(1, 1.7e308);
  double of_doubles = 0;
  reduce_elements(kNcclFloat64, kNcclAvg, {Source{doubles.data(), {}}, Source{doubles.data(), {}}}, 0, 1, &of_doubles);
  EXPECT_EQUAL(of_doubles, 1.7e308);
}

/* 256 MiB on each rank, of a count that nothing divides, and every element of the results. */
TEST(hundreds_of_mebibytes) {
  with_ranks(2, [](int rank, void *comm) {
    constexpr size_t kCount = (size_t{64} << 20) + 5;
    constexpr size_t kPart = kCount / 2 + 1;
    const auto value = [](int of, size_t i) { return static_cast<float>(of * 1000 + static_cast<int>(i % 977)); };
    Buffer<float> own(kCount), all(2 * kPart);
    for (size_t i = 0; i < kCount; ++i) own[i] = value(rank, i);
    EXPECT_EQUAL(ncclAllGather(own, all, kPart, kNcclFloat32, comm, nullptr), 0);
    EXPECT_EQUAL(ncclAllReduce(own, own, kCount, kNcclFloat32, kNcclSum, comm, nullptr), 0);
    size_t wrong = 0;
    for (int of = 0; of < 2; ++of) {
      for (size_t i = 0; i < kPart; ++i) wrong += all[static_cast<size_t>(of) * kPart + i] != value(of, i);
    }
    EXPECT_EQUAL(wrong, size_t{0});
    for (size_t i = 0; i < kCount; ++i) wrong += own[i] != value(0, i) + value(1, i);
    EXPECT_EQUAL(wrong, size_t{0});
  });
}

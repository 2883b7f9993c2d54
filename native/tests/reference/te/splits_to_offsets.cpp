/* Offsets of parts from their lengths. */
#include "check.h"

using namespace chagres::reference;
using check::Array;
using check::Known;

TEST(offsets_are_running_sums) {
  std::vector<int64_t> sizes = {3, 0, 5, -1}, offsets(5);
  const Known known_sizes(sizes), known_offsets(offsets);
  nvte_splits_to_offsets(sizes.data(), offsets.data(), 4, 10, nullptr);
  EXPECT(offsets == (std::vector<int64_t>{0, 30, 30, 80, 70}));
  for (const NVTEDType from : {kNVTEInt32, kNVTEInt64}) {
    for (const NVTEDType to : {kNVTEInt32, kNVTEInt64}) {
      Array first({3}, from), last({3}, from), with({4}, to), without({3}, to);
      for (size_t i = 0; i < 3; ++i) {
        first.set(i, static_cast<double>(i + 2));
        last.set(i, static_cast<double>(7 - i));
      }
      nvte_splits_to_offsets_2d(first, last, with, nullptr);
      EXPECT_CLOSE(with.values(), (std::vector<double>{0, 14, 32, 52}), 0, 0);
      NVTETensor outputs[] = {with, without};
      const int64_t strides[] = {1, 100};
      const int zeros[] = {1, 0};
      nvte_splits_to_offsets_multi(first, outputs, strides, zeros, 2, nullptr);
      EXPECT_CLOSE(with.values(), (std::vector<double>{0, 2, 5, 9}), 0, 0);
      EXPECT_CLOSE(without.values(), (std::vector<double>{200, 500, 900}), 0, 0);
    }
  }
  nvte_splits_to_offsets_multi(nullptr, nullptr, nullptr, nullptr, 0, nullptr);
}

TEST(refusals) {
  std::vector<int64_t> sizes(3), offsets(3);
  const Known known_sizes(sizes), known_offsets(offsets);
  EXPECT_THROWS(nvte_splits_to_offsets(sizes.data(), offsets.data(), 3, 1, nullptr), "nvte_splits_to_offsets", "\"output\"", "32 bytes", "24 bytes");
  EXPECT_THROWS(nvte_splits_to_offsets(nullptr, offsets.data(), 2, 1, nullptr), "\"split_sizes\"", "NULL");
  EXPECT_THROWS(nvte_splits_to_offsets(sizes.data(), offsets.data(), 0, 1, nullptr), "\"num_splits\"", "got 0");
  EXPECT_THROWS(nvte_splits_to_offsets(sizes.data(), offsets.data(), 2, 0, nullptr), "\"stride\"", "got 0");
  Array first({3}, kNVTEInt32), short_one({2}, kNVTEInt32), floats({3}, kNVTEFloat32), output({4}, kNVTEInt64), matrix({1, 3}, kNVTEInt32);
  EXPECT_THROWS(nvte_splits_to_offsets_2d(first, short_one, output, nullptr), "nvte_splits_to_offsets_2d", "\"last_dims\"", "(3)", "(2)");
  EXPECT_THROWS(nvte_splits_to_offsets_2d(first, first, first, nullptr), "\"output\"", "(4)", "(3)");
  EXPECT_THROWS(nvte_splits_to_offsets_2d(floats, first, output, nullptr), "\"first_dims\"", "Int32, Int64", "Float32");
  EXPECT_THROWS(nvte_splits_to_offsets_2d(matrix, first, output, nullptr), "\"first_dims\"", "one dimension", "(1, 3)");
  NVTETensor outputs[] = {output};
  const int64_t stride = 1;
  const int no = 0;
  EXPECT_THROWS(nvte_splits_to_offsets_multi(first, outputs, &stride, &no, 1, nullptr), "nvte_splits_to_offsets_multi", "\"outputs\"", "(3)", "(4)");
  EXPECT_THROWS(nvte_splits_to_offsets_multi(first, outputs, nullptr, &no, 1, nullptr), "\"strides\"", "NULL");
}

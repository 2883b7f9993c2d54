/* The k largest keys of rows: against sorting, rows of other lengths, order by bits, error texts. */
#include <algorithm>

#include "check.h"

using namespace chagres::reference;
using check::Array;

namespace {

struct Call {
  Call(size_t rows, size_t length, size_t most, NVTEDType dtype)
      : keys({rows, length}, dtype), lengths({rows}, kNVTEInt32), found({rows, most}, dtype),
        indices({rows, most}, kNVTEInt32), rows(rows), length(length), k(most) {
    lengths.fill(static_cast<double>(length));
  }
  void run() {
    check::with_workspace([&](NVTETensor workspace) {
      nvte_topk(nullptr, keys, lengths, found, indices, workspace, static_cast<int>(rows), static_cast<int>(length),
                static_cast<int>(k));
    });
  }
  Array keys, lengths, found, indices;
  size_t rows, length, k;
};

std::vector<double> row_of(const Array &array, size_t row, size_t count) {
  std::vector<double> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = array.get(row * count + i);
  return values;
}

void expect_largest(const Call &call) {
  for (size_t row = 0; row < call.rows; ++row) {
    const auto length = static_cast<size_t>(call.lengths.get(row)), found = std::min(length, call.k);
    std::vector<double> expected = row_of(call.keys, row, call.length);
    expected.resize(length);
    std::sort(expected.rbegin(), expected.rend());
    expected.resize(found);
    std::vector<double> actual = row_of(call.found, row, call.k), positions = row_of(call.indices, row, call.k);
    for (size_t i = 0; i < call.k; ++i) {
      const auto at = static_cast<size_t>(positions[i]);
      EXPECT_EQUAL(actual[i], i < found ? call.keys.get(row * call.length + at) : -1.0);
      if (i >= found) EXPECT_EQUAL(positions[i], -1.0);
    }
    actual.resize(found);
    positions.resize(found);
    std::sort(actual.rbegin(), actual.rend());
    EXPECT(actual == expected);
    std::sort(positions.begin(), positions.end());
    EXPECT(std::adjacent_find(positions.begin(), positions.end()) == positions.end());
  }
}

}  // namespace

TEST(finds_what_sorting_finds) {
  for (const NVTEDType dtype : {kNVTEFloat32, kNVTEBFloat16}) {
    for (const size_t length : {1, 2, 31, 1000, 32768}) {
      for (const size_t k : {1, 5, 31, 64}) {
        Call call(3, length, k, dtype);
        call.keys.normal();
        call.lengths.set(1, static_cast<double>(length / 2));
        call.run();
        expect_largest(call);
      }
    }
  }
  Call long_rows(2, 40000, 7, kNVTEFloat32);
  long_rows.keys.normal();
  long_rows.run();
  expect_largest(long_rows);
}

TEST(equal_keys_are_found_as_often_as_there_is_room) {
  Call call(1, 100, 10, kNVTEBFloat16);
  call.keys.fill(2);
  call.keys.set(50, 3);
  call.run();
  expect_largest(call);
}

/* Ascending by bits. */
TEST(keys_are_ordered_by_their_bits) {
  const std::vector<float> ascending = {-NAN, -INFINITY, -1, -0.0f, 0.0f, 1e-40f, 1, INFINITY, NAN};
  for (size_t k = 1; k <= ascending.size(); ++k) {
    Call call(1, ascending.size(), k, kNVTEFloat32);
    for (size_t i = 0; i < ascending.size(); ++i) call.keys.as<float>()[i] = std::copysign(ascending[i], i < 4 ? -1.0f : 1.0f);
    call.run();
    std::vector<double> positions = call.indices.values();
    std::sort(positions.begin(), positions.end());
    for (size_t i = 0; i < k; ++i) EXPECT_EQUAL(positions[i], static_cast<double>(ascending.size() - k + i));
  }
}

TEST(refusals) {
  Call call(2, 8, 3, kNVTEFloat32);
  Array halves({2, 8}, kNVTEFloat16), narrow({2, 2}, kNVTEFloat32), bf16({2, 3}, kNVTEBFloat16), workspace({16}, kNVTEByte);
  const auto topk = [&](NVTETensor keys, NVTETensor found, int rows, int length, int k) {
    nvte_topk(nullptr, keys, call.lengths, found, call.indices, workspace, rows, length, k);
  };
  EXPECT_THROWS(topk(halves, call.found, 2, 8, 3), "nvte_topk", "\"keys_in\"", "Float32, BFloat16", "Float16");
  EXPECT_THROWS(topk(call.keys, narrow, 2, 8, 3), "\"keys_out\"", "6 elements", "4");
  EXPECT_THROWS(topk(call.keys, bf16, 2, 8, 3), "\"keys_out\"", "Float32", "BFloat16");
  EXPECT_THROWS(topk(call.keys, call.found, 2, 7, 3), "\"workspace\"", "(14)", "(16)");
  EXPECT_THROWS(topk(call.keys, call.found, 0, 8, 3), "\"batch_size\"", "at least 1", "got 0");
  EXPECT_THROWS(topk(call.keys, call.found, 2, 0, 3), "\"seq_len\"", "got 0");
  EXPECT_THROWS(topk(call.keys, call.found, 2, 8, -1), "\"k\"", "got -1");
  call.lengths.set(1, 9);
  EXPECT_THROWS(call.run(), "\"lengths_in\"", "from 0 to 8", "got 9 for row 1");
  Call wide(1, 32769, 2, kNVTEFloat32), wide_bf16(1, 32769, 2, kNVTEBFloat16);
  wide.lengths.set(0, 32768);
  EXPECT_THROWS(wide.run(), "\"lengths_in\"", "must hold 32769", "got 32768");
  EXPECT_THROWS(wide_bf16.run(), "\"keys_in\"", "must be Float32", "BFloat16");
}

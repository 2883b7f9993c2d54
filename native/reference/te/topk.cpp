/* The k largest keys of each row, and their indices.
 *
 * Keys are compared by their bits, as Transformer Engine's radix search compares them: -0 is below 0, a NaN above infinity
 * or, with a sign, below -infinity. Neither the order of what is found nor which of equal keys is found is promised; here it
 * is the order of the row, and of equal keys the first ones. A row with at most k keys is copied; -1 fills the places behind.
 */
#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

#include "te/recorded.h"

namespace chagres::reference {

namespace {

/* Longer rows take several blocks of the GPU. Those look at whole rows, whatever their lengths; and the workspace that is
 * asked for is that of Float32 keys, which can be less than BFloat16 keys take. */
constexpr int kOneBlock = 32768;

struct Rows {
  View keys, lengths, found, indices;
  int length, k;
};

/* Larger for a larger key. */
uint32_t rank_of(const View &keys, int64_t i) {
  const uint32_t bits = keys.dtype == kNVTEFloat32
                            ? static_cast<const uint32_t *>(keys.data)[i]
                            : static_cast<uint32_t>(static_cast<const uint16_t *>(keys.data)[i]) << 16;
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

/* Positions, in the row that begins at key `first`, of the k largest of its first `length` keys. */
std::vector<int32_t> largest(const Rows &rows, int64_t first, int length) {
  std::vector<int32_t> positions(static_cast<size_t>(std::min(length, rows.k)));
  std::iota(positions.begin(), positions.end(), 0);
  if (length <= rows.k) return positions;
  /* Of equal keys the first ones are the larger numbers. */
  std::vector<uint64_t> ranked(static_cast<size_t>(length));
  for (int i = 0; i < length; ++i) {
    ranked[static_cast<size_t>(i)] = static_cast<uint64_t>(rank_of(rows.keys, first + i)) << 32 | ~static_cast<uint32_t>(i);
  }
  std::nth_element(ranked.begin(), ranked.begin() + rows.k, ranked.end(), std::greater<>());
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = static_cast<int32_t>(~static_cast<uint32_t>(ranked[i]));
  std::sort(positions.begin(), positions.end());
  return positions;
}

void select(const Rows &rows, int64_t row) {
  const int length = static_cast<const int32_t *>(rows.lengths.data)[row];
  const std::vector<int32_t> positions = largest(rows, row * rows.length, length);
  const size_t size = element_size(rows.keys.dtype);
  auto *indices = static_cast<int32_t *>(rows.indices.data) + row * rows.k;
  for (int64_t i = 0; i < rows.k; ++i) {
    void *const place = element(rows.found.data, row * rows.k + i, rows.keys.dtype);
    if (i < static_cast<int64_t>(positions.size())) {
      indices[i] = positions[static_cast<size_t>(i)];
      std::memcpy(place, element(rows.keys.data, row * rows.length + indices[i], rows.keys.dtype), size);
    } else {
      indices[i] = -1;
      store(place, 0, rows.keys.dtype, -1.0f);
    }
  }
}

void expect_positive(int value, const char *argument, const Caller &caller) {
  if (value < 1) fail(caller, text("Argument \"", argument, "\" must be at least 1, got ", value));
}

void check_lengths(const Rows &rows, const Caller &caller) {
  for (int64_t row = 0; row < rows.lengths.count(); ++row) {
    const int32_t length = static_cast<const int32_t *>(rows.lengths.data)[row];
    if (length < 0 || length > rows.length) {
      fail(caller, text("Tensor \"lengths_in\" must hold numbers from 0 to ", rows.length, ", got ", length, " for row ", row));
    }
    if (rows.length > kOneBlock && length != rows.length) {
      fail(caller, text("Tensor \"lengths_in\" must hold ", rows.length, " for rows of more than ", kOneBlock,
                        " keys, got ", length, " for row ", row));
    }
  }
}

Rows checked_rows(NVTETensor keys_in, NVTETensor lengths_in, NVTETensor keys_out, NVTETensor indices_out, int batch_size,
                  int seq_len, int k, const Caller &caller) {
  const Rows rows{view(keys_in, "keys_in", {kNVTEFloat32, kNVTEBFloat16}, caller),
                  view(lengths_in, "lengths_in", {kNVTEInt32}, caller),
                  view(keys_out, "keys_out", {kNVTEFloat32, kNVTEBFloat16}, caller),
                  view(indices_out, "indices_out", {kNVTEInt32}, caller), seq_len, k};
  const int64_t batch = batch_size;
  expect_count(rows.keys, "keys_in", batch * seq_len, caller);
  expect_count(rows.lengths, "lengths_in", batch, caller);
  expect_dtype(rows.found, "keys_out", rows.keys.dtype, caller);
  expect_count(rows.found, "keys_out", batch * k, caller);
  expect_count(rows.indices, "indices_out", batch * k, caller);
  if (seq_len > kOneBlock && rows.keys.dtype != kNVTEFloat32) {
    fail(caller, text("Tensor \"keys_in\" must be Float32 for rows of more than ", kOneBlock, " keys, got ",
                      dtype_name(rows.keys.dtype)));
  }
  return rows;
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_topk(cudaStream_t stream, NVTETensor keys_in, NVTETensor lengths_in, NVTETensor keys_out, NVTETensor indices_out,
               NVTETensor workspace, int batch_size, int seq_len, int k) {
  const auto again = +[](NVTETensor keys, NVTETensor lengths, NVTETensor found, NVTETensor indices, NVTETensor memory,
                         int rows, int length, int most, cudaStream_t into) {
    nvte_topk(into, keys, lengths, found, indices, memory, rows, length, most);
  };
  if (!asks(workspace) && recorded(again, keys_in, lengths_in, keys_out, indices_out, workspace, batch_size, seq_len, k,
                                   stream)) return;
  const Caller caller = Caller::here();
  expect_positive(batch_size, "batch_size", caller);
  expect_positive(seq_len, "seq_len", caller);
  expect_positive(k, "k", caller);
  const size_t bytes = static_cast<size_t>(batch_size) * static_cast<size_t>(seq_len);
  if (workspace_query(workspace, "workspace", {bytes}, kNVTEByte)) return;
  const Rows rows = checked_rows(keys_in, lengths_in, keys_out, indices_out, batch_size, seq_len, k, caller);
  check_lengths(rows, caller);
  parallel_for(0, batch_size, grain_for(seq_len), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) select(rows, row);
  });
}

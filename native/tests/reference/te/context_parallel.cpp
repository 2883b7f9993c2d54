/* Packed tokens of context-parallel ranks against plain loops: halves, merging, orders; refusals. */
#include <algorithm>

#include "check.h"

using namespace chagres::reference;
using check::Array;

namespace {

/* Sequences of 8, 0, 4 and 12 tokens, and two tokens behind them. */
const std::vector<int> kStarts = {0, 8, 8, 12, 24};
constexpr size_t kSequences = 4, kTokens = 26, kHeads = 3, kDim = 4, kLongest = 14;
constexpr size_t kColumns = kHeads * kDim;

void set(Array &array, const std::vector<int> &values) {
  for (size_t i = 0; i < values.size(); ++i) array.set(i, values[i]);
}

/* A token of a sequence: its number, the number of its place in all halves, whether it is in the second. */
struct Token {
  size_t sequence, index, token, half_token;
  bool second;
};

std::vector<Token> tokens() {
  std::vector<Token> all;
  for (size_t b = 0; b < kSequences; ++b) {
    const auto start = static_cast<size_t>(kStarts[b]), half = static_cast<size_t>(kStarts[b + 1]) / 2 - start / 2;
    for (size_t i = 0; i < 2 * half; ++i) all.push_back({b, i, start + i, start / 2 + i % half, i >= half});
  }
  return all;
}

/* Index of an LSE's element: `index` in the sequence, `token` where it is packed. */
size_t lse_index(bool packed, size_t head, size_t sequence, size_t index, size_t token, size_t columns) {
  return packed ? head * columns + token : (sequence * kHeads + head) * columns + index;
}

std::vector<size_t> lse_shape(bool packed, size_t columns) {
  return packed ? std::vector<size_t>{kHeads, columns} : std::vector<size_t>{kSequences, kHeads, columns};
}

}  // namespace

TEST(halves_are_read) {
  Array cu({5}, kNVTEInt32), pair({2, kTokens, kHeads, kDim}, kNVTEFloat32), half({2, kTokens / 2, kHeads, kDim}, kNVTEFloat32);
  set(cu, kStarts);
  pair.normal();
  const NVTETensor from = pair, lengths = cu;
  for (const int second : {0, 1}) {
    half.fill(9);
    std::vector<double> expected = half.values();
    nvte_cp_thd_read_half_tensor(&from, &lengths, half, second, nullptr);
    for (const Token &t : tokens()) {
      for (size_t part = 0; part < 2 && t.second == (second == 1); ++part) {
        for (size_t c = 0; c < kColumns; ++c) {
          expected[(part * kTokens / 2 + t.half_token) * kColumns + c] = pair.get((part * kTokens + t.token) * kColumns + c);
        }
      }
    }
    EXPECT(half.values() == expected);
  }
}

TEST(lse_of_second_halves) {
  Array cu({5}, kNVTEInt32);
  set(cu, kStarts);
  for (const bool packed : {true, false}) {
    const size_t columns = packed ? kTokens : kLongest, half_columns = packed ? kTokens / 2 + 3 : kLongest / 2;
    Array lse(lse_shape(packed, columns), kNVTEFloat32), half(lse_shape(packed, half_columns), kNVTEFloat32),
        step(lse_shape(packed, half_columns), kNVTEFloat32);
    lse.normal(), step.normal(), half.fill(9);
    const NVTETensor whole = lse, lengths = cu, term = step;
    nvte_cp_thd_read_second_half_lse(&whole, &lengths, half, packed, static_cast<int>(half_columns), nullptr);
    std::vector<double> read(half.count(), 9), sum = lse.values();
    for (const Token &t : tokens()) {
      for (size_t head = 0; head < kHeads && t.second; ++head) {
        const size_t at = lse_index(packed, head, t.sequence, t.index, t.token, columns);
        const size_t first = t.index - static_cast<size_t>(kStarts[t.sequence + 1] - kStarts[t.sequence]) / 2;
        const size_t from = lse_index(packed, head, t.sequence, first, t.half_token, half_columns);
        read[from] = sum[at];
        sum[at] = std::log(std::exp(lse.get(at)) + std::exp(step.get(from)));
      }
    }
    EXPECT(half.values() == read);
    nvte_cp_thd_second_half_lse_correction(lse, &term, &lengths, packed, nullptr);
    EXPECT_CLOSE(lse.values(), sum, 1e-6, 1e-6);
  }
}

TEST(outputs_are_merged) {
  Array cu({5}, kNVTEInt32);
  set(cu, kStarts);
  for (const NVTEDType dtype : {kNVTEFloat32, kNVTEBFloat16}) {
    for (const bool packed : {true, false}) {
      for (const bool half : {true, false}) {
        const size_t dim = 8, divisor = half ? 2 : 1, columns = packed ? kTokens + 2 : kLongest;
        Array out({kTokens, kHeads, dim}, dtype), step({kTokens / divisor, kHeads, dim}, dtype),
            old_lse(lse_shape(packed, columns), kNVTEFloat32), lse(lse_shape(packed, columns), kNVTEFloat32),
            step_lse(lse_shape(packed, columns / divisor), kNVTEFloat32);
        out.normal(), step.normal(), old_lse.normal(), lse.normal(), step_lse.normal();
        const NVTETensor handles[] = {step, old_lse, lse, step_lse, cu};
        std::vector<double> expected = out.values();
        for (const Token &t : tokens()) {
          if (half && !t.second) continue;
          const size_t step_token = half ? t.half_token : t.token;
          const size_t length = static_cast<size_t>(kStarts[t.sequence + 1] - kStarts[t.sequence]);
          const size_t step_index = half ? t.index - length / 2 : t.index;
          for (size_t head = 0; head < kHeads; ++head) {
            const size_t at = lse_index(packed, head, t.sequence, t.index, t.token, columns);
            const size_t from = lse_index(packed, head, t.sequence, step_index, step_token, columns / divisor);
            for (size_t i = 0; i < dim; ++i) {
              double &value = expected[(t.token * kHeads + head) * dim + i];
              value = value * std::exp(old_lse.get(at) - lse.get(at)) +
                      step.get((step_token * kHeads + head) * dim + i) * std::exp(step_lse.get(from) - lse.get(at));
            }
          }
        }
        nvte_cp_thd_out_correction(out, &handles[0], &handles[1], &handles[2], &handles[3], &handles[4], half, packed, nullptr);
        EXPECT_CLOSE(out.values(), expected, std::max(check::rounding(dtype), 1e-6), 1e-5);
      }
    }
  }
}

TEST(gradients_are_merged) {
  const std::vector<std::pair<std::string, std::string>> updates = {{"add", "none"},  {"none", "add"}, {"copy", "none"},
                                                                    {"none", "copy"}, {"copy", "zero"}, {"zero", "copy"},
                                                                    {"add", "copy"},  {"copy", "add"}};
  Array cu({5}, kNVTEInt32);
  set(cu, kStarts);
  const NVTETensor lengths = cu;
  for (const auto &[first, second] : updates) {
    const bool half = first == "none" || second == "none" || first == "zero" || second == "zero";
    const size_t step_tokens = half ? kTokens / 2 : kTokens;
    Array grad({2, kTokens, kHeads, kDim}, kNVTEFloat32), step({2, step_tokens, kHeads, kDim}, kNVTEFloat32);
    grad.normal(), step.normal();
    std::vector<double> expected = grad.values();
    for (const Token &t : tokens()) {
      const std::string &update = t.second ? second : first;
      for (size_t i = 0; i < 2 * kColumns; ++i) {
        const size_t part = i / kColumns, c = i % kColumns;
        double &value = expected[(part * kTokens + t.token) * kColumns + c];
        const double from = step.get((part * step_tokens + (half ? t.half_token : t.token)) * kColumns + c);
        if (update == "zero") value = 0;
        if (update == "copy") value = from;
        if (update == "add") value += from;
      }
    }
    const NVTETensor term = step;
    nvte_cp_thd_grad_correction(grad, &term, &lengths, first.c_str(), second.c_str(), nullptr);
    EXPECT_CLOSE(grad.values(), expected, 1e-6, 1e-6);
  }
}

TEST(orders_of_tokens) {
  const std::vector<int> starts = {0, 8, 8, 12, 24};
  Array cu({5}, kNVTEInt32), x({24, 2, 4}, kNVTEBFloat16), by_rank({24, 2, 4}, kNVTEBFloat16), back({24, 2, 4}, kNVTEBFloat16);
  set(cu, starts);
  x.normal();
  const NVTETensor from = x, lengths = cu, ranked = by_rank;
  const size_t world = 2;
  std::vector<double> expected;
  for (size_t rank = 0; rank < world; ++rank) {
    std::vector<int> places;
    for (size_t b = 0; b + 1 < starts.size(); ++b) {
      const int chunk = (starts[b + 1] - starts[b]) / 4;
      for (const int number : {static_cast<int>(rank), 3 - static_cast<int>(rank)}) {
        for (int i = 0; i < chunk; ++i) places.push_back(starts[b] + number * chunk + i);
      }
    }
    Array indices({12}, kNVTEInt32);
    nvte_cp_thd_get_partitioned_indices(&lengths, indices, 24, world, static_cast<int>(rank), nullptr);
    EXPECT(indices.values() == std::vector<double>(places.begin(), places.end()));
    for (const int place : places) {
      for (size_t c = 0; c < 8; ++c) expected.push_back(x.get(static_cast<size_t>(place) * 8 + c));
    }
  }
  nvte_thd_sequence_order_to_cp_rank_order(&from, &lengths, by_rank, world, 24, nullptr);
  EXPECT(by_rank.values() == expected);
  nvte_thd_cp_rank_order_to_sequence_order(&ranked, &lengths, back, world, 24, nullptr);
  EXPECT(back.values() == x.values());
}

TEST(valid_tokens_are_copied) {
  Array padded({4}, kNVTEInt32), valid({4}, kNVTEInt32), x({12, 4}, kNVTEFloat32), y({12, 4}, kNVTEFloat32);
  set(padded, {2, 6, 6, 12}); /* the first two tokens belong to none */
  set(valid, {0, 3, 3, 5});
  x.normal(), y.fill(9);
  const NVTETensor from = x, places = padded, lengths = valid;
  nvte_thd_copy_valid_tokens_from_per_split_to_rank_local(&from, &places, &lengths, y, 12, nullptr);
  for (size_t t = 0; t < 12; ++t) {
    const bool copied = (t >= 2 && t < 5) || (t >= 6 && t < 8);
    for (size_t c = 0; c < 4; ++c) EXPECT(y.get(4 * t + c) == (copied ? x.get(4 * t + c) : 9));
  }
}

TEST(refusals) {
  Array cu({3}, kNVTEInt32), x({8, 2, 4}, kNVTEFloat32), y({8, 2, 4}, kNVTEFloat32), half({4, 2, 4}, kNVTEFloat32),
      narrow({8, 1, 2}, kNVTEFloat32), lse({2, 8}, kNVTEFloat32), short_lse({2, 3}, kNVTEFloat32), indices({4}, kNVTEInt32);
  set(cu, {0, 4, 8});
  const NVTETensor from = x, lengths = cu, thin = narrow, part = half, few = short_lse, all = lse;
  EXPECT_THROWS(nvte_cp_thd_read_half_tensor(&from, &lengths, half, 2, nullptr), "nvte_cp_thd_read_half_tensor", "\"half_idx\"", "2");
  EXPECT_THROWS(nvte_cp_thd_read_half_tensor(&from, &lengths, y, 0, nullptr), "\"half\"", "1 x 4 tokens of 8", "(8, 2, 4)");
  EXPECT_THROWS(nvte_cp_thd_read_half_tensor(&thin, &lengths, half, 0, nullptr), "\"tensor\"", "16 bytes", "8");
  EXPECT_THROWS(nvte_cp_thd_second_half_lse_correction(lse, &few, &lengths, 1, nullptr), "\"lse_per_step\"", "at least 4", "3");
  EXPECT_THROWS(nvte_cp_thd_second_half_lse_correction(lse, &few, &lengths, 0, nullptr), "\"lse\"", "3 dimensions", "(2, 8)");
  EXPECT_THROWS(nvte_cp_thd_out_correction(x, &part, &all, &all, &all, &lengths, 0, 1, nullptr), "\"out_per_step\"", "1 x 8");
  EXPECT_THROWS(nvte_cp_thd_grad_correction(x, &part, &lengths, "none", "zero", nullptr), "\"none\" and \"zero\"", "Float32");
  EXPECT_THROWS(nvte_cp_thd_get_partitioned_indices(&lengths, indices, 8, 3, 0, nullptr), "\"total_tokens\"", "6", "8");
  EXPECT_THROWS(nvte_cp_thd_get_partitioned_indices(&lengths, indices, 8, 2, 2, nullptr), "\"rank\"", "2");
  EXPECT_THROWS(nvte_thd_sequence_order_to_cp_rank_order(&from, &lengths, half, 2, 8, nullptr), "\"out\"", "1 x 8", "(4, 2, 4)");
  set(cu, {0, 3, 8});
  EXPECT_THROWS(nvte_cp_thd_read_half_tensor(&from, &lengths, half, 0, nullptr), "\"cu_seqlens\"", "multiples of 2", "3 at index 1");
  set(cu, {0, 4, 12});
  EXPECT_THROWS(nvte_cp_thd_read_half_tensor(&from, &lengths, half, 0, nullptr), "\"cu_seqlens\"", "end at 8", "12 at index 2");
}

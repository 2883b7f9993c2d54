/*
 * Packed tokens (THD) of context-parallel ranks: halves of sequences, merging of partial results, orders of tokens.
 *
 * Sequence b has the tokens cu_seqlens[b] to cu_seqlens[b + 1], whose number is even, and two halves of as many. Tokens of
 * halves are counted over all sequences: the i-th token of all first, or all second, halves is token i of a step's result.
 */
#include <algorithm>
#include <cmath>
#include <vector>

#include "te/context_parallel.h"
#include "te/recorded.h"

namespace chagres::reference {

Sequences read_sequences(NVTETensor cu_seqlens, int64_t tokens, int64_t divisor, const char *argument, const Caller &caller) {
  const View cu = view(cu_seqlens, argument, {kNVTEInt32}, caller);
  if (cu.shape.ndim != 1 || cu.count() < 2) {
    fail(caller, text("Tensor \"", argument, "\" must have one dimension of at least 2, got ", shape_text(cu.shape)));
  }
  const auto *starts = static_cast<const int32_t *>(cu.data);
  for (int64_t i = 0; i < cu.count(); ++i) {
    const int64_t before = i == 0 ? 0 : starts[i - 1];
    if ((i == 0 && starts[i] != 0) || starts[i] < before || (starts[i] - before) % divisor != 0 || starts[i] > tokens) {
      fail(caller, text("Tensor \"", argument, "\" must start at 0, have lengths that are multiples of ", divisor,
                        " and end at ", tokens, " or before, got ", starts[i], " at index ", i));
    }
  }
  return {starts, cu.count() - 1};
}

int64_t Sequences::sequence_of(int64_t token) const {
  return std::upper_bound(starts, starts + count + 1, token) - starts - 1;
}

Rows read_rows(NVTETensor handle, const char *argument, bool may_be_pair, const Caller &caller) {
  Rows rows{};
  rows.view = view(handle, argument,
                   {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16, kNVTEByte, kNVTEInt16, kNVTEInt32, kNVTEInt64, kNVTEFloat8E4M3,
                    kNVTEFloat8E5M2},
                   caller);
  const NVTEShape &shape = rows.view.shape;
  const bool is_pair = may_be_pair && shape.ndim == 4;
  if (may_be_pair && shape.ndim != 3 && shape.ndim != 4) {
    fail(caller, text("Tensor \"", argument, "\" must have 3 or 4 dimensions, got ", shape_text(shape)));
  }
  if (shape.ndim < 1) fail(caller, text("Tensor \"", argument, "\" must have tokens, got ", shape_text(shape)));
  rows.parts = is_pair ? static_cast<int64_t>(shape.data[0]) : 1;
  rows.tokens = static_cast<int64_t>(shape.data[is_pair ? 1 : 0]);
  rows.columns = 1;
  for (size_t i = is_pair ? 2 : 1; i < shape.ndim; ++i) rows.columns *= static_cast<int64_t>(shape.data[i]);
  if (rows.bytes() % 16 != 0) {
    fail(caller, text("Tensor \"", argument, "\" must have tokens of a multiple of 16 bytes, got ", rows.bytes()));
  }
  return rows;
}

void expect_rows(const Rows &rows, const char *argument, const Rows &model, int64_t tokens, const Caller &caller) {
  expect_dtype(rows.view, argument, model.view.dtype, caller);
  if (rows.parts != model.parts || rows.tokens != tokens || rows.columns != model.columns) {
    fail(caller, text("Tensor \"", argument, "\" must have ", model.parts, " x ", tokens, " tokens of ", model.columns,
                      " elements, got ", shape_text(rows.view.shape)));
  }
}

namespace {

/* A token of all second halves, or of all first ones, as a token of the sequences. */
int64_t whole_token(const Sequences &sequences, int64_t token, bool second) {
  int64_t sequence = 0;
  while (sequences.starts[sequence + 1] / 2 <= token) ++sequence;
  return token + sequences.starts[sequence + (second ? 1 : 0)] / 2;
}

enum class Update { none, copy, add, zero };

void update_row(const Rows &grad, int64_t row, const Rows &step, int64_t step_row, Update update) {
  const NVTEDType dtype = grad.view.dtype;
  void *const to = grad.row(row);
  if (update == Update::zero) std::memset(to, 0, static_cast<size_t>(grad.bytes()));
  if (update == Update::copy) std::memcpy(to, step.row(step_row), static_cast<size_t>(grad.bytes()));
  if (update != Update::add) return;
  Scratch sum(grad.columns), term(grad.columns);
  to_float(sum.data(), to, dtype, grad.columns);
  to_float(term.data(), step.row(step_row), dtype, grad.columns);
  for (int64_t i = 0; i < grad.columns; ++i) sum[i] += term[i];
  from_float(to, sum.data(), dtype, grad.columns);
}

struct Updates {
  const char *first_name, *second_name;
  Update first, second;
  bool for_bytes; /* FP8, whose numbers cannot be added */
};

constexpr Updates kUpdates[] = {
    {"add", "none", Update::add, Update::none, false},  {"none", "add", Update::none, Update::add, false},
    {"copy", "none", Update::copy, Update::none, false}, {"none", "copy", Update::none, Update::copy, false},
    {"copy", "zero", Update::copy, Update::zero, true}, {"zero", "copy", Update::zero, Update::copy, true},
    {"add", "copy", Update::add, Update::copy, false},  {"copy", "add", Update::copy, Update::add, false},
};

const Updates &find_updates(const char *first_half, const char *second_half, NVTEDType dtype, const Caller &caller) {
  const bool floats = dtype == kNVTEFloat32 || dtype == kNVTEFloat16 || dtype == kNVTEBFloat16;
  for (const Updates &updates : kUpdates) {
    if (std::strcmp(updates.first_name, first_half) == 0 && std::strcmp(updates.second_name, second_half) == 0 &&
        (floats || updates.for_bytes)) {
      return updates;
    }
  }
  fail(caller, text("Unsupported updates of the halves of ", dtype_name(dtype), ": \"", first_half, "\" and \"", second_half,
                    "\""));
}

/* Whether a step has results for one half of each sequence alone. */
bool is_half(const Updates &updates) {
  const auto idle = [](Update update) { return update == Update::none || update == Update::zero; };
  return idle(updates.first) || idle(updates.second);
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_cp_thd_read_half_tensor(const NVTETensor *tensor, const NVTETensor *cu_seqlens, NVTETensor half, int half_idx,
                                  cudaStream_t stream) {
  if (recorded(nvte_cp_thd_read_half_tensor, list(tensor, 1), list(cu_seqlens, 1), half, half_idx, stream)) return;
  const Caller caller = Caller::here();
  const Rows whole = read_rows(*tensor, "tensor", true, caller), part = read_rows(half, "half", true, caller);
  expect_rows(part, "half", whole, whole.tokens / 2, caller);
  CHAGRES_CHECK(half_idx == 0 || half_idx == 1, "Argument \"half_idx\" must be 0 or 1, got ", half_idx);
  const Sequences sequences = read_sequences(*cu_seqlens, whole.tokens, 2, "cu_seqlens", caller);
  for (int64_t i = 0; i < whole.parts; ++i) {
    for (int64_t token = 0; token < sequences.tokens() / 2; ++token) {
      std::memcpy(part.row(i * part.tokens + token),
                  whole.row(i * whole.tokens + whole_token(sequences, token, half_idx == 1)),
                  static_cast<size_t>(whole.bytes()));
    }
  }
}

void nvte_cp_thd_grad_correction(NVTETensor grad, const NVTETensor *grad_per_step, const NVTETensor *cu_seqlens,
                                 const char *first_half, const char *second_half, cudaStream_t stream) {
  if (recorded(nvte_cp_thd_grad_correction, grad, list(grad_per_step, 1), list(cu_seqlens, 1), first_half, second_half,
               stream)) return;
  const Caller caller = Caller::here();
  const Rows sum = read_rows(grad, "grad", true, caller), step = read_rows(*grad_per_step, "grad_per_step", true, caller);
  const Updates &updates = find_updates(first_half, second_half, sum.view.dtype, caller);
  const bool half = is_half(updates);
  expect_rows(step, "grad_per_step", sum, half ? sum.tokens / 2 : sum.tokens, caller);
  const Sequences sequences = read_sequences(*cu_seqlens, sum.tokens, 2, "cu_seqlens", caller);
  for (int64_t part = 0; part < sum.parts; ++part) {
    const int64_t to = part * sum.tokens, from = part * step.tokens;
    for (int64_t token = 0; token < sequences.tokens() / 2; ++token) {
      const int64_t first = whole_token(sequences, token, false), second = whole_token(sequences, token, true);
      update_row(sum, to + first, step, from + (half ? token : first), updates.first);
      update_row(sum, to + second, step, from + (half ? token : second), updates.second);
    }
  }
}

namespace {

void check_ranks(int64_t total_tokens, int64_t world_size, const Caller &caller) {
  if (world_size < 1) fail(caller, text("Argument \"world_size\" must be at least 1, got ", world_size));
  if (total_tokens < 1 || total_tokens % (world_size * 2) != 0) {
    fail(caller, text("Argument \"total_tokens\" must be a multiple of 2 * world_size = ", world_size * 2, ", at least it, got ",
                      total_tokens));
  }
}

/* Where token `token` of a rank stands in the order of sequences: the rank has chunks `rank` and 2 world_size - 1 - rank of
 * each sequence, which is cut into 2 world_size chunks. */
int64_t place_of(const Sequences &sequences, int64_t token, int64_t world_size, int64_t rank) {
  const int64_t sequence = sequences.sequence_of(token * world_size);
  const int64_t start = sequences.starts[sequence], length = (sequences.starts[sequence + 1] - start) / world_size;
  const int64_t index = token - start / world_size;
  const int64_t chunks = index < length / 2 ? rank : (world_size - 1) * 2 - rank;
  return index + start + length / 2 * chunks;
}

void reorder(const NVTETensor *inp, const NVTETensor *cu_seqlens, NVTETensor out, int world_size, int total_tokens,
             bool to_sequences, const Caller &caller) {
  check_ranks(total_tokens, world_size, caller);
  const Rows from = read_rows(*inp, "inp", false, caller), to = read_rows(out, "out", false, caller);
  expect_rows(from, "inp", from, total_tokens, caller);
  expect_rows(to, "out", from, total_tokens, caller);
  const Sequences sequences = read_sequences(*cu_seqlens, total_tokens, 2 * world_size, "cu_seqlens", caller);
  if (sequences.tokens() != total_tokens) {
    fail(caller, text("Tensor \"cu_seqlens\" must end at total_tokens = ", total_tokens, ", got ", sequences.tokens()));
  }
  const int64_t each = total_tokens / world_size;
  for (int64_t i = 0; i < total_tokens; ++i) {
    const int64_t place = place_of(sequences, i % each, world_size, i / each);
    std::memcpy(to.row(to_sequences ? place : i), from.row(to_sequences ? i : place), static_cast<size_t>(from.bytes()));
  }
}

}  // namespace

void nvte_cp_thd_get_partitioned_indices(const NVTETensor *cu_seqlens, NVTETensor output, int total_tokens, int world_size,
                                         int rank, cudaStream_t stream) {
  if (recorded(nvte_cp_thd_get_partitioned_indices, list(cu_seqlens, 1), output, total_tokens, world_size, rank, stream)) return;
  const Caller caller = Caller::here();
  check_ranks(total_tokens, world_size, caller);
  CHAGRES_CHECK(rank >= 0 && rank < world_size, "Argument \"rank\" must be below world_size, got ", rank);
  const View indices = view(output, "output", {kNVTEInt32});
  expect_count(indices, "output", total_tokens / world_size);
  const Sequences sequences = read_sequences(*cu_seqlens, total_tokens, 2 * world_size, "cu_seqlens", caller);
  CHAGRES_CHECK(sequences.tokens() == total_tokens, "Tensor \"cu_seqlens\" must end at total_tokens = ", total_tokens, ", got ",
                sequences.tokens());
  for (int64_t token = 0; token < indices.count(); ++token) {
    static_cast<int32_t *>(indices.data)[token] = static_cast<int32_t>(place_of(sequences, token, world_size, rank));
  }
}

void nvte_thd_sequence_order_to_cp_rank_order(const NVTETensor *inp, const NVTETensor *cu_seqlens, NVTETensor out,
                                              int world_size, int total_tokens, cudaStream_t stream) {
  if (recorded(nvte_thd_sequence_order_to_cp_rank_order, list(inp, 1), list(cu_seqlens, 1), out, world_size, total_tokens,
               stream)) return;
  reorder(inp, cu_seqlens, out, world_size, total_tokens, false, Caller::here());
}

void nvte_thd_cp_rank_order_to_sequence_order(const NVTETensor *inp, const NVTETensor *cu_seqlens, NVTETensor out,
                                              int world_size, int total_tokens, cudaStream_t stream) {
  if (recorded(nvte_thd_cp_rank_order_to_sequence_order, list(inp, 1), list(cu_seqlens, 1), out, world_size, total_tokens,
               stream)) return;
  reorder(inp, cu_seqlens, out, world_size, total_tokens, true, Caller::here());
}

void nvte_thd_copy_valid_tokens_from_per_split_to_rank_local(const NVTETensor *inp, const NVTETensor *cu_seqlens_padded,
                                                             const NVTETensor *cu_seqlens, NVTETensor out, int total_tokens,
                                                             cudaStream_t stream) {
  if (recorded(nvte_thd_copy_valid_tokens_from_per_split_to_rank_local, list(inp, 1), list(cu_seqlens_padded, 1),
               list(cu_seqlens, 1), out, total_tokens, stream)) return;
  const Caller caller = Caller::here();
  CHAGRES_CHECK(total_tokens > 0, "Argument \"total_tokens\" must be at least 1, got ", total_tokens);
  const Rows from = read_rows(*inp, "inp", false, caller), to = read_rows(out, "out", false, caller);
  expect_rows(from, "inp", from, total_tokens, caller);
  expect_rows(to, "out", from, total_tokens, caller);
  const Sequences valid = read_sequences(*cu_seqlens, total_tokens, 1, "cu_seqlens", caller);
  /* Places may begin behind token 0: those of a later step do. */
  const View places = view(*cu_seqlens_padded, "cu_seqlens_padded", {kNVTEInt32});
  expect_count(places, "cu_seqlens_padded", valid.count + 1);
  const auto *starts = static_cast<const int32_t *>(places.data);
  for (int64_t b = 0; b < valid.count; ++b) {
    const int64_t length = valid.starts[b + 1] - valid.starts[b];
    CHAGRES_CHECK(starts[b] >= 0 && starts[b + 1] >= starts[b], "Tensor \"cu_seqlens_padded\" must not decrease, got ",
                  starts[b + 1], " behind ", starts[b]);
    for (int64_t token = starts[b]; token < std::min<int64_t>(starts[b] + length, total_tokens); ++token) {
      if (token < starts[b + 1] || b + 1 == valid.count) {
        std::memcpy(to.row(token), from.row(token), static_cast<size_t>(from.bytes()));
      }
    }
  }
}

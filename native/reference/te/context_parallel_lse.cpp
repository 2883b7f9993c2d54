/*
 * Merging of the results of context-parallel steps over packed tokens, by the logarithms of their sums of exponentials (LSE).
 *
 * Packed, an LSE is [h, L] with a column a token, else [B, h, S] with a row of columns a sequence.
 */
#include <algorithm>
#include <cmath>

#include "te/context_parallel.h"
#include "te/recorded.h"

namespace chagres::reference {

namespace {

struct Lse {
  float *data;
  int64_t heads, columns, count;
};

Lse read_lse(NVTETensor handle, const char *argument, bool packed, const Caller &caller) {
  const View found = view(handle, argument, {kNVTEFloat32}, caller);
  if (found.shape.ndim != (packed ? 2u : 3u)) {
    fail(caller, text("Tensor \"", argument, "\" must have ", packed ? "2 dimensions, as it is packed" : "3 dimensions",
                      ", got ", shape_text(found.shape)));
  }
  const size_t *dimensions = found.shape.data + (packed ? 0 : 1);
  return {static_cast<float *>(found.data), static_cast<int64_t>(dimensions[0]), static_cast<int64_t>(dimensions[1]),
          found.count()};
}

void expect_columns(const Lse &lse, const char *argument, int64_t least, bool packed, const Caller &caller) {
  if (packed ? lse.columns < least : lse.columns != least) {
    fail(caller, text("Tensor \"", argument, "\" must have ", packed ? "at least " : "", least, " columns, got ", lse.columns));
  }
}

void expect_heads(const Lse &lse, const char *argument, int64_t heads, int64_t sequences, bool packed, const Caller &caller) {
  if (lse.heads != heads || (!packed && lse.count != sequences * heads * lse.columns)) {
    fail(caller, text("Tensor \"", argument, "\" must have ", heads, " heads", packed ? "" : " of each sequence", ", got ",
                      lse.heads));
  }
}

/* A token of a sequence. */
struct Place {
  int64_t sequence, index;
};

/* Element of a head at a place. `packed_token` is the token's column where the LSE is packed. */
float &at(const Lse &lse, bool packed, int64_t head, const Place &place, int64_t packed_token) {
  return packed ? lse.data[head * lse.columns + packed_token]
                : lse.data[(place.sequence * lse.heads + head) * lse.columns + place.index];
}

/* Calls f(place in the whole LSE, its token, place in the half's, its token) for each token of second halves. */
template <class F>
void for_second_halves(const Sequences &sequences, const F &f) {
  for (int64_t b = 0; b < sequences.count; ++b) {
    const int64_t start = sequences.starts[b], half = (sequences.starts[b + 1] - start) / 2;
    for (int64_t i = 0; i < half; ++i) f(Place{b, half + i}, start + half + i, Place{b, i}, start / 2 + i);
  }
}

Sequences lengths_within(NVTETensor cu_seqlens, const Lse &lse, bool packed, const Caller &caller) {
  const int64_t most = packed ? lse.columns : std::max<int64_t>(lse.count, 0);
  const Sequences sequences = read_sequences(cu_seqlens, most, 2, "cu_seqlens", caller);
  for (int64_t b = 0; !packed && b < sequences.count; ++b) {
    if (sequences.starts[b + 1] - sequences.starts[b] > lse.columns) {
      fail(caller, text("Tensor \"cu_seqlens\" must have lengths of at most ", lse.columns, ", got ",
                        sequences.starts[b + 1] - sequences.starts[b]));
    }
  }
  return sequences;
}

struct Halves {
  Lse whole, half;
  Sequences sequences;
};

Halves read_halves(NVTETensor lse, NVTETensor half, const char *half_argument, NVTETensor cu_seqlens, bool packed,
                   const Caller &caller) {
  Halves halves{read_lse(lse, "lse", packed, caller), read_lse(half, half_argument, packed, caller), {}};
  expect_columns(halves.half, half_argument, halves.whole.columns / 2, packed, caller);
  halves.sequences = lengths_within(cu_seqlens, halves.whole, packed, caller);
  expect_heads(halves.whole, "lse", halves.whole.heads, halves.sequences.count, packed, caller);
  expect_heads(halves.half, half_argument, halves.whole.heads, halves.sequences.count, packed, caller);
  return halves;
}

/* A factor on an element, 0 for 0 whatever the factor. */
float scaled(float value, float factor) { return value == 0 ? 0 : value * factor; }

struct Correction {
  Rows out, step;
  Lse old_lse, lse, step_lse;
  bool packed;
};

void correct_token(const Correction &c, const Place &place, int64_t token, const Place &step_place, int64_t step_token) {
  const int64_t heads = c.lse.heads, dim = c.out.columns / heads;
  const NVTEDType dtype = c.out.view.dtype;
  Scratch sum(c.out.columns), term(c.out.columns);
  to_float(sum.data(), c.out.row(token), dtype, c.out.columns);
  to_float(term.data(), c.step.row(step_token), dtype, c.out.columns);
  for (int64_t head = 0; head < heads; ++head) {
    const float now = at(c.lse, c.packed, head, place, token);
    const float keep = std::exp(at(c.old_lse, c.packed, head, place, token) - now);
    const float add = std::exp(at(c.step_lse, c.packed, head, step_place, step_token) - now);
    for (int64_t i = head * dim; i < (head + 1) * dim; ++i) sum[i] = scaled(sum[i], keep) + scaled(term[i], add);
  }
  from_float(c.out.row(token), sum.data(), dtype, c.out.columns);
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_cp_thd_second_half_lse_correction(NVTETensor lse, const NVTETensor *lse_per_step, const NVTETensor *cu_seqlens,
                                            int lse_packed, cudaStream_t stream) {
  if (recorded(nvte_cp_thd_second_half_lse_correction, lse, list(lse_per_step, 1), list(cu_seqlens, 1), lse_packed,
               stream)) return;
  const bool packed = lse_packed != 0;
  const Halves h = read_halves(lse, *lse_per_step, "lse_per_step", *cu_seqlens, packed, Caller::here());
  for_second_halves(h.sequences, [&](const Place &place, int64_t token, const Place &step_place, int64_t step_token) {
    for (int64_t head = 0; head < h.whole.heads; ++head) {
      float &sum = at(h.whole, packed, head, place, token);
      const float term = at(h.half, packed, head, step_place, step_token);
      const float larger = std::max(sum, term);
      sum = larger + std::log1p(std::exp(std::min(sum, term) - larger));
    }
  });
}

void nvte_cp_thd_read_second_half_lse(const NVTETensor *lse, const NVTETensor *cu_seqlens, NVTETensor half_lse,
                                      int lse_packed, int second_half_lse_seqlen, cudaStream_t stream) {
  if (recorded(nvte_cp_thd_read_second_half_lse, list(lse, 1), list(cu_seqlens, 1), half_lse, lse_packed,
               second_half_lse_seqlen, stream)) return;
  const bool packed = lse_packed != 0;
  const Halves h = read_halves(*lse, half_lse, "half_lse", *cu_seqlens, packed, Caller::here());
  CHAGRES_CHECK(h.half.columns == second_half_lse_seqlen, "Argument \"second_half_lse_seqlen\" must be the columns of "
                "\"half_lse\", ", h.half.columns, ", got ", second_half_lse_seqlen);
  for_second_halves(h.sequences, [&](const Place &place, int64_t token, const Place &half_place, int64_t half_token) {
    for (int64_t head = 0; head < h.whole.heads; ++head) {
      at(h.half, packed, head, half_place, half_token) = at(h.whole, packed, head, place, token);
    }
  });
}

/* out = out exp(old_lse - lse) + out_per_step exp(lse_per_step - lse) */
void nvte_cp_thd_out_correction(NVTETensor out, const NVTETensor *out_per_step, const NVTETensor *old_lse,
                                const NVTETensor *lse, const NVTETensor *lse_per_step, const NVTETensor *cu_seqlens,
                                int only_second_half, int lse_packed, cudaStream_t stream) {
  if (recorded(nvte_cp_thd_out_correction, out, list(out_per_step, 1), list(old_lse, 1), list(lse, 1), list(lse_per_step, 1),
               list(cu_seqlens, 1), only_second_half, lse_packed, stream)) return;
  const Caller caller = Caller::here();
  const bool packed = lse_packed != 0, half = only_second_half != 0;
  const int64_t divisor = half ? 2 : 1;
  expect_dtype(view(out, "out"), "out", view(*out_per_step, "out_per_step").dtype, caller);
  const Correction c{read_rows(out, "out", true, caller),        read_rows(*out_per_step, "out_per_step", true, caller),
                     read_lse(*old_lse, "old_lse", packed, caller), read_lse(*lse, "lse", packed, caller),
                     read_lse(*lse_per_step, "lse_per_step", packed, caller), packed};
  CHAGRES_CHECK(c.out.view.shape.ndim == 3, "Tensor \"out\" must have 3 dimensions, got ", shape_text(c.out.view.shape));
  expect_rows(c.step, "out_per_step", c.out, c.out.tokens / divisor, caller);
  const auto heads = static_cast<int64_t>(c.out.view.shape.data[1]);
  CHAGRES_CHECK(heads > 0 && (c.out.columns / heads) * static_cast<int64_t>(element_size(c.out.view.dtype)) % 16 == 0,
                "Tensor \"out\" must have heads of a multiple of 16 bytes, got ", shape_text(c.out.view.shape));
  if (packed) expect_columns(c.lse, "lse", c.out.tokens, true, caller);
  expect_columns(c.old_lse, "old_lse", c.lse.columns, false, caller);
  expect_columns(c.step_lse, "lse_per_step", c.lse.columns / divisor, packed, caller);
  const Sequences sequences = lengths_within(*cu_seqlens, c.lse, packed, caller);
  CHAGRES_CHECK(sequences.tokens() <= c.out.tokens, "Tensor \"cu_seqlens\" must end at ", c.out.tokens, " or before, got ",
                sequences.tokens());
  expect_heads(c.old_lse, "old_lse", heads, sequences.count, packed, caller);
  expect_heads(c.lse, "lse", heads, sequences.count, packed, caller);
  expect_heads(c.step_lse, "lse_per_step", heads, sequences.count, packed, caller);
  if (half) {
    for_second_halves(sequences, [&](const Place &place, int64_t token, const Place &step_place, int64_t step_token) {
      correct_token(c, place, token, step_place, step_token);
    });
    return;
  }
  for (int64_t b = 0; b < sequences.count; ++b) {
    for (int64_t token = sequences.starts[b]; token < sequences.starts[b + 1]; ++token) {
      const Place place{b, token - sequences.starts[b]};
      correct_token(c, place, token, place, token);
    }
  }
}

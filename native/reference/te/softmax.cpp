/*
 * The softmax family of softmax.h: over the last dimension, of scaled scores, whole or masked, forward and backward.
 *
 * As TE: a masked score is -10000, not -infinity; forward rounds the scale to the storage dtype, backward does not.
 */
#include <algorithm>
#include <limits>

#include "te/recorded.h"
#include "runtime/elementary.h"
#include "runtime/reference.h"
#include "runtime/sums.h"

namespace chagres::reference {

namespace {

constexpr float kMasked = -10000.0f;
constexpr int64_t kLongestRow = 16384;

enum class RowMask { None, Given, UpperTriangular, AlignedCausal };

struct Scores {
  int64_t batches, heads, queries, keys;
  int64_t rows() const { return batches * heads * queries; }
};

/* Rows of the kernel's thread block; TE refuses a count of queries that its blocks do not divide. */
int64_t rows_per_block(int64_t keys) {
  int64_t power = 1;
  while (power < keys) power *= 2;
  return 128 / std::min<int64_t>(power, 32) * (power <= 128 ? 2 : 1);
}

Scores check_scores(const View &scores, const char *argument, RowMask mask, const Caller &caller) {
  const NVTEShape &shape = scores.shape;
  const auto at = [&](size_t i) { return static_cast<int64_t>(shape.data[i]); };
  if (mask == RowMask::UpperTriangular) {
    if (shape.ndim != 3 || shape.data[1] != shape.data[2])
      fail(caller, text("Tensor \"", argument, "\" must have shape [b h, s, s], got ", shape_text(shape)));
    return {at(0), 1, at(1), at(2)};
  }
  if (shape.ndim != 4)
    fail(caller, text("Tensor \"", argument, "\" must have shape [b, h, sq, sk], got ", shape_text(shape)));
  return {at(0), at(1), at(2), at(3)};
}

void check_limits(const Scores &scores, RowMask mask, const Caller &caller) {
  if (scores.keys > kLongestRow)
    fail(caller, text("Unsupported shape: at most ", kLongestRow, " keys, got ", scores.keys));
  if (scores.keys == 0 || mask == RowMask::AlignedCausal) return;
  const bool triangular = mask == RowMask::UpperTriangular;
  const int64_t divided = triangular ? scores.batches : scores.queries, block = rows_per_block(scores.keys);
  if (divided % block != 0)
    fail(caller, text("Unsupported shape: with ", scores.keys, " keys the ", triangular ? "batches b h" : "queries sq",
                      " must be a multiple of ", block, ", got ", divided));
}

/* Scores that a row may use; the rest of it becomes zero. */
int64_t visible_keys(const Scores &scores, RowMask mask, int64_t row) {
  const int64_t query = row % scores.queries;
  if (mask == RowMask::UpperTriangular) return query + 1;
  if (mask == RowMask::AlignedCausal)
    return std::clamp<int64_t>(query + scores.keys - scores.queries + 1, 0, scores.keys);
  return scores.keys;
}

CHAGRES_CLONES void scale_row(float *row, float scale, int64_t count) {
  for (int64_t i = 0; i < count; ++i) row[i] *= scale;
}

CHAGRES_CLONES void hide_masked(float *row, const uint8_t *mask, int64_t count) {
  for (int64_t i = 0; i < count; ++i) row[i] = mask[i] != 1 ? row[i] : kMasked;
}

CHAGRES_CLONES void softmax_row(float *row, int64_t count, float largest, float sum_of_hidden) {
  for (int64_t i = 0; i < count; ++i) row[i] = fast_exp(row[i] - largest);
  const float sum = sum_of_hidden + lane_sum(count, [&](int64_t i) { return row[i]; });
  for (int64_t i = 0; i < count; ++i) row[i] /= sum;
}

/* gradient becomes scale (y dy - y sum(y dy)). */
CHAGRES_CLONES void softmax_gradient_row(float *gradient, const float *y, float scale, int64_t count) {
  const float sum = lane_sum(count, [&](int64_t i) { return y[i] * gradient[i]; });
  for (int64_t i = 0; i < count; ++i) gradient[i] = scale * (y[i] * gradient[i] - y[i] * sum);
}

struct Forward {
  Scores scores;
  RowMask mask;
  const View &input, &output;
  const uint8_t *masked; /* [1 or b, 1, sq, sk] */
  int64_t mask_batches;
  float scale;

  void row(int64_t index, float *values) const {
    const int64_t keys = scores.keys, visible = visible_keys(scores, mask, index);
    to_float(values, element(input.data, index * keys, input.dtype), input.dtype, visible);
    scale_row(values, scale, visible);
    if (masked != nullptr) hide_masked(values, masked + mask_row(index) * keys, visible);
    finish(values, visible);
    std::fill(values + visible, values + keys, 0.0f);
    from_float(element(output.data, index * keys, output.dtype), values, output.dtype, keys);
  }

 private:
  int64_t mask_row(int64_t index) const {
    const int64_t batch = mask_batches == 1 ? 0 : index / (scores.heads * scores.queries);
    return batch * scores.queries + index % scores.queries;
  }

  void finish(float *values, int64_t visible) const {
    float largest = -std::numeric_limits<float>::infinity(), hidden = 0;
    for (int64_t i = 0; i < visible; ++i) largest = values[i] > largest ? values[i] : largest;
    if (mask == RowMask::AlignedCausal) {
      /* The kernel sums over the next power of two, with kMasked in every place that a row must not see. */
      int64_t places = 1;
      while (places < scores.keys) places *= 2;
      if (places > visible) {
        largest = std::max(largest, kMasked);
        hidden = static_cast<float>(places - visible) * fast_exp(kMasked - largest);
      }
    }
    const bool nothing = mask == RowMask::Given && largest == kMasked;
    if (nothing)
      std::fill(values, values + visible, 0.0f);
    else
      softmax_row(values, visible, largest, hidden);
  }
};

void forward(NVTETensor input, NVTETensor mask_tensor, NVTETensor results, float scale, RowMask mask, Caller caller) {
  const View scores_view = view(input, "input", {}, caller), output = view(results, "softmax_results", {}, caller);
  const Scores scores = check_scores(scores_view, "input", mask, caller);
  check_limits(scores, mask, caller);
  expect_same_shape(output, "softmax_results", scores_view, "input", caller);
  expect_dtype(output, "softmax_results", scores_view.dtype, caller);
  Forward pass{scores, mask, scores_view, output, nullptr, 1, scale};
  if (mask == RowMask::Given) {
    const View given = view(mask_tensor, "mask", {kNVTEByte}, caller);
    const NVTEShape &shape = given.shape;
    const bool fits = shape.ndim == 4 && (shape.data[0] == 1 || shape.data[0] == static_cast<size_t>(scores.batches)) &&
                      shape.data[1] == 1 && shape.data[2] == static_cast<size_t>(scores.queries) &&
                      shape.data[3] == static_cast<size_t>(scores.keys);
    if (!fits)
      fail(caller, text("Tensor \"mask\" must have shape (1 or ", scores.batches, ", 1, ", scores.queries, ", ",
                        scores.keys, "), got ", shape_text(shape)));
    pass.masked = static_cast<const uint8_t *>(given.data);
    pass.mask_batches = static_cast<int64_t>(shape.data[0]);
  }
  if (scores.keys == 0) return;
  uint32_t rounded = 0;
  store(&rounded, 0, scores_view.dtype, scale);
  pass.scale = load(&rounded, 0, scores_view.dtype);
  parallel_for(0, scores.rows(), grain_for(8 * scores.keys), [&](int64_t first, int64_t last) {
    Scratch values(scores.keys);
    for (int64_t row = first; row < last; ++row) pass.row(row, values.data());
  });
}

void backward(NVTETensor incoming, NVTETensor results, NVTETensor outgoing, float scale, RowMask mask, Caller caller) {
  const View dy = view(incoming, "incoming_grads", {}, caller), y = view(results, "softmax_results", {}, caller);
  const View dx = view(outgoing, "output_grads", {}, caller);
  const Scores scores = check_scores(dx, "output_grads", mask, caller);
  if (scores.keys > kLongestRow)
    fail(caller, text("Unsupported shape: at most ", kLongestRow, " keys, got ", scores.keys));
  expect_same_shape(dy, "incoming_grads", dx, "output_grads", caller);
  expect_same_shape(y, "softmax_results", dx, "output_grads", caller);
  expect_dtype(dy, "incoming_grads", dx.dtype, caller);
  expect_dtype(y, "softmax_results", dx.dtype, caller);
  if (scores.keys == 0) return;
  parallel_for(0, scores.rows(), grain_for(8 * scores.keys), [&](int64_t first, int64_t last) {
    Scratch gradient(scores.keys), probability(scores.keys);
    for (int64_t row = first; row < last; ++row) {
      const int64_t at = row * scores.keys, visible = visible_keys(scores, mask, row);
      to_float(gradient.data(), element(dy.data, at, dy.dtype), dy.dtype, visible);
      to_float(probability.data(), element(y.data, at, y.dtype), y.dtype, visible);
      softmax_gradient_row(gradient.data(), probability.data(), scale, visible);
      std::fill(gradient.data() + visible, gradient.data() + scores.keys, 0.0f);
      from_float(element(dx.data, at, dx.dtype), gradient.data(), dx.dtype, scores.keys);
    }
  });
}

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_scaled_softmax_forward(NVTETensor input, NVTETensor softmax_results, float scale_factor, cudaStream_t stream) {
  if (recorded(nvte_scaled_softmax_forward, input, softmax_results, scale_factor, stream)) return;
  forward(input, nullptr, softmax_results, scale_factor, RowMask::None, Caller::here());
}

void nvte_scaled_softmax_backward(NVTETensor incoming_grads, NVTETensor softmax_results, NVTETensor output_grads,
                                  float scale_factor, cudaStream_t stream) {
  if (recorded(nvte_scaled_softmax_backward, incoming_grads, softmax_results, output_grads, scale_factor,
               stream)) return;
  backward(incoming_grads, softmax_results, output_grads, scale_factor, RowMask::None, Caller::here());
}

void nvte_scaled_masked_softmax_forward(NVTETensor input, NVTETensor mask, NVTETensor softmax_results,
                                        float scale_factor, cudaStream_t stream) {
  if (recorded(nvte_scaled_masked_softmax_forward, input, mask, softmax_results, scale_factor, stream)) return;
  forward(input, mask, softmax_results, scale_factor, RowMask::Given, Caller::here());
}

void nvte_scaled_masked_softmax_backward(NVTETensor incoming_grads, NVTETensor softmax_results, NVTETensor output_grads,
                                         float scale_factor, cudaStream_t stream) {
  if (recorded(nvte_scaled_masked_softmax_backward, incoming_grads, softmax_results, output_grads, scale_factor,
               stream)) return;
  backward(incoming_grads, softmax_results, output_grads, scale_factor, RowMask::Given, Caller::here());
}

void nvte_scaled_upper_triang_masked_softmax_forward(NVTETensor input, NVTETensor softmax_results, float scale_factor,
                                                     cudaStream_t stream) {
  if (recorded(nvte_scaled_upper_triang_masked_softmax_forward, input, softmax_results, scale_factor, stream)) return;
  forward(input, nullptr, softmax_results, scale_factor, RowMask::UpperTriangular, Caller::here());
}

void nvte_scaled_upper_triang_masked_softmax_backward(NVTETensor incoming_grads, NVTETensor softmax_results,
                                                      NVTETensor output_grads, float scale_factor, cudaStream_t stream) {
  if (recorded(nvte_scaled_upper_triang_masked_softmax_backward, incoming_grads, softmax_results, output_grads,
               scale_factor, stream)) return;
  backward(incoming_grads, softmax_results, output_grads, scale_factor, RowMask::UpperTriangular, Caller::here());
}

void nvte_scaled_aligned_causal_masked_softmax_forward(NVTETensor input, NVTETensor softmax_results, float scale_factor,
                                                       cudaStream_t stream) {
  if (recorded(nvte_scaled_aligned_causal_masked_softmax_forward, input, softmax_results, scale_factor, stream)) return;
  forward(input, nullptr, softmax_results, scale_factor, RowMask::AlignedCausal, Caller::here());
}

void nvte_scaled_aligned_causal_masked_softmax_backward(NVTETensor incoming_grads, NVTETensor softmax_results,
                                                        NVTETensor output_grads, float scale_factor, cudaStream_t stream) {
  if (recorded(nvte_scaled_aligned_causal_masked_softmax_backward, incoming_grads, softmax_results, output_grads,
               scale_factor, stream)) return;
  backward(incoming_grads, softmax_results, output_grads, scale_factor, RowMask::AlignedCausal, Caller::here());
}

/* Attention in eight bits: computes whole rows of scores, since a weight is rounded after its row's sum is known. */
#include <cmath>
#include <limits>
#include <mutex>

#include "runtime/fp8.h"
#include "te/attention_tile.h"
#include "te/quantized.h"

namespace chagres::reference {

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();

/* values[i] = r(values[i]) / inverse: in units of the type. The largest magnitude before. */
float round_run(float *values, float scale, NVTEDType dtype, int64_t count) {
  const float largest = largest_magnitude(values, count);
  constexpr int64_t kPiece = 256;
  uint8_t codes[kPiece];
  for (int64_t i = 0; i < count; i += kPiece) {
    const int64_t piece = std::min(kPiece, count - i);
    rescale(values + i, scale, piece);
    from_float(codes, values + i, dtype, piece);
    to_float(values + i, codes, dtype, piece);
  }
  return largest;
}

/* Stores rows by their scale; the largest magnitude before. */
float store_scaled(float *panel, int64_t rows, int64_t columns, int64_t width, float scale, const AttentionTensor &tensor,
                   int64_t sequence, int64_t head, int64_t first) {
  float largest = 0;
  for (int64_t i = 0; i < rows; ++i) {
    largest = std::max(largest, largest_magnitude(panel + i * width, columns));
    rescale(panel + i * width, scale, columns);
  }
  store_panel(panel, rows, columns, width, tensor, sequence, head, first);
  return largest;
}

/* A head's keys or values in units of their type, as rows and as columns of `stride` numbers, tile_columns(rows). */
class Side {
 public:
  Side(const AttentionTensor &tensor, int64_t sequence, int64_t head, int64_t rows, int64_t columns, int64_t stride)
      : width(round_up(columns, kLane)), rows_(stride * width), columns_(width * stride) {
    load_panel(tensor, sequence, head, 0, rows, columns, width, rows_.data());
    std::fill(columns_.data(), columns_.data() + width * stride, 0.0f);
    for (int64_t i = 0; i < rows; ++i)
      for (int64_t c = 0; c < columns; ++c) columns_[c * stride + i] = rows_[i * width + c];
  }
  const float *rows() { return rows_.data(); }
  const float *columns() { return columns_.data(); }

  const int64_t width;

 private:
  Scratch rows_, columns_;
};

/* A sequence of one head of keys, and what its queries do with them. */
class Head {
 public:
  Head(const AttentionProblem &problem, const AttentionScales &scales, int64_t sequence, int64_t kv_head)
      : problem_(problem),
        scales_(scales),
        sequence_(sequence),
        kv_head_(kv_head),
        group_(problem.heads / problem.kv_heads),
        length_(problem.lengths[static_cast<size_t>(sequence)]),
        keys_(tile_columns(length_.kv)),
        k_(problem.k, sequence, kv_head, length_.kv, problem.dim_qk, keys_),
        v_(problem.v, sequence, kv_head, length_.kv, problem.dim_v, keys_),
        q_(kTile * k_.width),
        o_(kTile * v_.width),
        weights_(kTile * keys_) {}

  AttentionScales forward() {
    for (int64_t h = 0; h < group_; ++h) {
      for (int64_t row = 0; row < length_.q; row += kTile) attend(kv_head_ * group_ + h, row);
      pad(kv_head_ * group_ + h);
    }
    return found_;
  }

  AttentionScales backward() {
    Scratch dk(keys_ * k_.width), dv(keys_ * v_.width);
    std::fill(dk.data(), dk.data() + keys_ * k_.width, 0.0f);
    std::fill(dv.data(), dv.data() + keys_ * v_.width, 0.0f);
    for (int64_t h = 0; h < group_; ++h) {
      const int64_t head = kv_head_ * group_ + h;
      for (int64_t row = 0; row < length_.q; row += kTile) differentiate(head, row, dk.data(), dv.data());
      store_zeros(problem_.dq, sequence_, head, length_.q, length_.q_rows, problem_.dim_qk);
    }
    rescale(dk.data(), scales_.dp_inverse * scales_.q_inverse, length_.kv * k_.width);
    rescale(dv.data(), scales_.s_inverse * scales_.d_o_inverse, length_.kv * v_.width);
    found_.amax_dk = store_scaled(dk.data(), length_.kv, problem_.dim_qk, k_.width, scales_.dk, problem_.dk, sequence_,
                                  kv_head_, 0);
    found_.amax_dv =
        store_scaled(dv.data(), length_.kv, problem_.dim_v, v_.width, scales_.dv, problem_.dv, sequence_, kv_head_, 0);
    store_zeros(problem_.dk, sequence_, kv_head_, length_.kv, length_.kv_rows, problem_.dim_qk);
    store_zeros(problem_.dv, sequence_, kv_head_, length_.kv, length_.kv_rows, problem_.dim_v);
    return found_;
  }

 private:
  /* Scaled scores of rows from `row` on; outside the band -infinity. */
  void score(int64_t head, int64_t row, int64_t rows) {
    load_panel(problem_.q, sequence_, head, row, rows, problem_.dim_qk, k_.width, q_.data());
    set_product(rows, keys_, problem_.dim_qk, q_.data(), k_.width, 1, k_.columns(), keys_, weights_.data(), keys_);
    rescale(weights_.data(), problem_.scale * scales_.q_inverse * scales_.k_inverse, rows * keys_);
    for (int64_t i = 0; i < rows; ++i) {
      float *scores = weights_.data() + i * keys_;
      const int64_t first = problem_.band.first(row + i, length_), last = problem_.band.last(row + i, length_);
      std::fill(scores, scores + std::min(first, keys_), kNothing);
      std::fill(scores + std::max(first, last), scores + keys_, kNothing);
    }
  }

  /* Scores become weights of their row's sum, and its logarithm the row's statistics. */
  void normalize(int64_t head, int64_t row, float *scores) {
    float largest = kNothing, sum = 0;
    for (int64_t j = 0; j < keys_; ++j) largest = scores[j] > largest ? scores[j] : largest;
    const float shift = largest == kNothing ? 0.0f : largest;
    for (int64_t j = 0; j < keys_; ++j) sum += scores[j] = std::exp(scores[j] - shift);
    if (sum != 0) rescale(scores, 1.0f / sum, keys_);
    *static_cast<float *>(problem_.stats.at(sequence_, head, row)) = sum == 0 ? kNothing : shift + std::log(sum);
  }

  void attend(int64_t head, int64_t row) {
    const int64_t rows = std::min(kTile, length_.q - row);
    score(head, row, rows);
    for (int64_t i = 0; i < rows; ++i) normalize(head, row + i, weights_.data() + i * keys_);
    found_.amax_s = std::max(found_.amax_s, round_run(weights_.data(), scales_.s, kNVTEFloat8E4M3, rows * keys_));
    set_product(rows, v_.width, length_.kv, weights_.data(), keys_, 1, v_.rows(), v_.width, o_.data(), v_.width);
    rescale(o_.data(), scales_.s_inverse * scales_.v_inverse, rows * v_.width);
    found_.amax_o = std::max(found_.amax_o, store_scaled(o_.data(), rows, problem_.dim_v, v_.width, scales_.o, problem_.o,
                                                         sequence_, head, row));
  }

  void pad(int64_t head) {
    store_zeros(problem_.o, sequence_, head, length_.q, length_.q_rows, problem_.dim_v);
    for (int64_t row = length_.q; row < length_.q_rows; ++row)
      *static_cast<float *>(problem_.stats.at(sequence_, head, row)) = kNothing;
  }

  void differentiate(int64_t head, int64_t row, float *dk, float *dv) {
    const int64_t rows = std::min(kTile, length_.q - row);
    Scratch gradients(kTile * keys_), d_o(kTile * v_.width), dq(kTile * k_.width);
    score(head, row, rows);
    load_panel(problem_.o, sequence_, head, row, rows, problem_.dim_v, v_.width, o_.data());
    load_panel(problem_.d_o, sequence_, head, row, rows, problem_.dim_v, v_.width, d_o.data());
    set_product(rows, keys_, problem_.dim_v, d_o.data(), v_.width, 1, v_.columns(), keys_, gradients.data(), keys_);
    rescale(gradients.data(), scales_.d_o_inverse * scales_.v_inverse, rows * keys_);
    for (int64_t i = 0; i < rows; ++i) {
      float *weights = weights_.data() + i * keys_, *gradient = gradients.data() + i * keys_;
      const float stats = *static_cast<const float *>(problem_.stats.at(sequence_, head, row + i));
      const float shift = stats == kNothing ? 0.0f : stats;
      for (int64_t j = 0; j < keys_; ++j) weights[j] = std::exp(weights[j] - shift);
      const float delta =
          dot(d_o.data() + i * v_.width, o_.data() + i * v_.width, v_.width) * scales_.d_o_inverse * scales_.o_inverse;
      score_gradient_row(gradient, weights, delta, keys_);
    }
    rescale(gradients.data(), problem_.scale, rows * keys_);
    round_run(weights_.data(), scales_.s, kNVTEFloat8E4M3, rows * keys_);
    found_.amax_dp =
        std::max(found_.amax_dp, round_run(gradients.data(), scales_.dp, scales_.dp_dtype, rows * keys_));
    set_product(rows, k_.width, length_.kv, gradients.data(), keys_, 1, k_.rows(), k_.width, dq.data(), k_.width);
    rescale(dq.data(), scales_.dp_inverse * scales_.k_inverse, rows * k_.width);
    found_.amax_dq = std::max(found_.amax_dq, store_scaled(dq.data(), rows, problem_.dim_qk, k_.width, scales_.dq,
                                                           problem_.dq, sequence_, head, row));
    add_product(length_.kv, k_.width, rows, gradients.data(), 1, keys_, q_.data(), k_.width, dk, k_.width);
    add_product(length_.kv, v_.width, rows, weights_.data(), 1, keys_, d_o.data(), v_.width, dv, v_.width);
  }

  const AttentionProblem &problem_;
  const AttentionScales &scales_;
  AttentionScales found_; /* its amaxes alone */
  const int64_t sequence_, kv_head_, group_;
  const AttentionLength &length_;
  const int64_t keys_;
  Side k_, v_;
  Scratch q_, o_, weights_;
};

void raise(AttentionScales &scales, const AttentionScales &found) {
  for (float AttentionScales::*amax : {&AttentionScales::amax_s, &AttentionScales::amax_o, &AttentionScales::amax_dp,
                                       &AttentionScales::amax_dq, &AttentionScales::amax_dk, &AttentionScales::amax_dv})
    scales.*amax = std::max(scales.*amax, found.*amax);
}

void each_head(const AttentionProblem &problem, AttentionScales &scales, AttentionScales (Head::*compute)()) {
  const int64_t sequences = static_cast<int64_t>(problem.lengths.size());
  const AttentionScales given = scales;
  std::mutex mutex;
  parallel_for(0, sequences * problem.kv_heads, 1, [&](int64_t item, int64_t) {
    Head head(problem, given, item / problem.kv_heads, item % problem.kv_heads);
    const AttentionScales found = (head.*compute)();
    std::lock_guard<std::mutex> lock(mutex);
    raise(scales, found);
  });
}

}  // namespace

void attention_forward_fp8(const AttentionProblem &problem, AttentionScales &scales) {
  each_head(problem, scales, &Head::forward);
}

void attention_backward_fp8(const AttentionProblem &problem, AttentionScales &scales) {
  each_head(problem, scales, &Head::backward);
}

}  // namespace chagres::reference

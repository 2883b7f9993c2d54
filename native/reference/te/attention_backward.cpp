/* Attention backward: one key-value head of one sequence a thread, so that every sum has a fixed order. */
#include <cmath>
#include <limits>

#include "te/attention_tile.h"

namespace chagres::reference {

namespace {

class BackwardHead {
 public:
  BackwardHead(const AttentionProblem &problem, int64_t sequence, int64_t kv_head, float *sink_gradients)
      : problem_(problem),
        sink_gradients_(sink_gradients),
        sequence_(sequence),
        length_(problem.lengths[static_cast<size_t>(sequence)]),
        kv_head_(kv_head),
        group_(problem.heads / problem.kv_heads),
        width_qk_(round_up(problem.dim_qk, kLane)),
        width_v_(round_up(problem.dim_v, kLane)),
        rows_(round_up(length_.q, kTile)),
        stats_(group_ * rows_),
        delta_(group_ * rows_),
        dq_(group_ * rows_ * width_qk_),
        q_(group_ * rows_ * width_qk_),
        d_o_(group_ * rows_ * width_v_),
        k_(kTile * width_qk_),
        v_(kTile * width_v_),
        k_transposed_(width_qk_ * kTile),
        v_transposed_(width_v_ * kTile),
        dk_(kTile * width_qk_),
        dv_(kTile * width_v_),
        probability_(kTile * kTile),
        weight_(kTile * kTile),
        gradient_(kTile * kTile),
        derivatives_(kTile * kTile) {}

  void compute() {
    std::fill(dq_.data(), dq_.data() + group_ * rows_ * width_qk_, 0.0f);
    for (int64_t h = 0; h < group_; ++h) load_rows(h);
    for (int64_t key = 0; key < length_.kv; key += kTile) add_keys(key, std::min(kTile, length_.kv - key));
    store_zeros(problem_.dk, sequence_, kv_head_, length_.kv, length_.kv_rows, problem_.dim_qk);
    store_zeros(problem_.dv, sequence_, kv_head_, length_.kv, length_.kv_rows, problem_.dim_v);
    for (int64_t h = 0; h < group_; ++h) store_queries(h);
  }

 private:
  int64_t head(int64_t h) const { return kv_head_ * group_ + h; }
  float *query(int64_t h, int64_t row) { return q_.data() + (h * rows_ + row) * width_qk_; }
  float *output_gradient(int64_t h, int64_t row) { return d_o_.data() + (h * rows_ + row) * width_v_; }

  /* Every query and its output's gradient, its stats and D_i, and the gradient of the head's sink from this sequence. */
  void load_rows(int64_t h) {
    float sink_gradient = 0;
    load_panel(problem_.q, sequence_, head(h), 0, length_.q, problem_.dim_qk, width_qk_, query(h, 0));
    load_panel(problem_.d_o, sequence_, head(h), 0, length_.q, problem_.dim_v, width_v_, output_gradient(h, 0));
    for (int64_t row = 0; row < length_.q; row += kTile) {
      const int64_t rows = std::min(kTile, length_.q - row);
      load_panel(problem_.o, sequence_, head(h), row, rows, problem_.dim_v, width_v_, v_.data());
      for (int64_t i = 0; i < rows; ++i) {
        delta_[h * rows_ + row + i] = dot(output_gradient(h, row + i), v_.data() + i * width_v_, width_v_);
        const float stats = *static_cast<const float *>(problem_.stats.at(sequence_, head(h), row + i));
        /* A row without a key: its scores are all -infinity, and exp(-infinity - 0) = 0. */
        stats_[h * rows_ + row + i] = stats == -std::numeric_limits<float>::infinity() ? 0.0f : stats;
        if (problem_.sink != nullptr && stats != -std::numeric_limits<float>::infinity())
          sink_gradient -= std::exp(problem_.sink[head(h)] - stats) * delta_[h * rows_ + row + i];
      }
    }
    sink_gradients_[head(h)] = sink_gradient;
  }

  void add_keys(int64_t key, int64_t keys) {
    load_panel(problem_.k, sequence_, kv_head_, key, keys, problem_.dim_qk, width_qk_, k_.data());
    load_panel(problem_.v, sequence_, kv_head_, key, keys, problem_.dim_v, width_v_, v_.data());
    transpose_panel(k_.data(), keys, problem_.dim_qk, width_qk_, k_transposed_.data());
    transpose_panel(v_.data(), keys, problem_.dim_v, width_v_, v_transposed_.data());
    std::fill(dk_.data(), dk_.data() + kTile * width_qk_, 0.0f);
    std::fill(dv_.data(), dv_.data() + kTile * width_v_, 0.0f);
    for (int64_t h = 0; h < group_; ++h)
      for (int64_t row = 0; row < length_.q; row += kTile) {
        const int64_t rows = std::min(kTile, length_.q - row);
        if (problem_.band.first(row, length_) >= key + kTile) break;
        if (problem_.band.last(row + rows - 1, length_) <= key) continue;
        add_tile(h, row, rows, key, keys);
      }
    scale_run(dk_.data(), problem_.scale, keys * width_qk_);
    store_panel(dk_.data(), keys, problem_.dim_qk, width_qk_, problem_.dk, sequence_, kv_head_, key);
    store_panel(dv_.data(), keys, problem_.dim_v, width_v_, problem_.dv, sequence_, kv_head_, key);
  }

  void add_tile(int64_t h, int64_t row, int64_t rows, int64_t key, int64_t keys) {
    const float *q = query(h, row), *d_o = output_gradient(h, row);
    const int64_t columns = tile_columns(keys);
    set_product(rows, columns, problem_.dim_qk, q, width_qk_, 1, k_transposed_.data(), kTile, probability_.data(), kTile);
    set_product(rows, columns, problem_.dim_v, d_o, width_v_, 1, v_transposed_.data(), kTile, gradient_.data(), kTile);
    const bool plain = is_plain_tile(problem_, length_, row, rows, key, columns);
    for (int64_t i = 0; !plain && i < rows; ++i) mask(h, row + i, key, columns, i * kTile);
    const float scale = plain ? problem_.scale : 1.0f;
    const float *stats = &stats_[h * rows_ + row];
    if (problem_.dropout.probability > 0 || problem_.scores.any()) {
      exponentiate_rows(probability_.data(), rows, columns, scale, stats, nullptr);
      for (int64_t i = 0; i < rows; ++i) differentiate(h, row + i, key, columns, i * kTile);
    } else {
      differentiate_rows(probability_.data(), gradient_.data(), rows, columns, scale, stats, &delta_[h * rows_ + row]);
    }
    const float *weight = problem_.dropout.probability > 0 ? weight_.data() : probability_.data();
    add_product(keys, width_v_, rows, weight, 1, kTile, d_o, width_v_, dv_.data(), width_v_);
    add_product(rows, width_qk_, keys, gradient_.data(), kTile, 1, k_.data(), width_qk_,
                dq_.data() + (h * rows_ + row) * width_qk_, width_qk_);
    add_product(keys, width_qk_, rows, gradient_.data(), 1, kTile, q, width_qk_, dk_.data(), width_qk_);
  }

  void mask(int64_t h, int64_t row, int64_t key, int64_t columns, int64_t at) {
    const int64_t first = problem_.band.first(row, length_) - key, last = problem_.band.last(row, length_) - key;
    mask_row(probability_.data() + at, columns, problem_.scale, first, last);
    if (problem_.scores.any())
      change_row(problem_.scores, length_, sequence_, head(h), row, key, first, last, probability_.data() + at,
                 derivatives_.data() + at);
  }

  /* With dropout probabilities give weights m p; the gradient of the weights becomes that of the scores. */
  void differentiate(int64_t h, int64_t row, int64_t key, int64_t columns, int64_t at) {
    const float *probability = probability_.data() + at;
    float *gradient = gradient_.data() + at;
    if (problem_.dropout.probability > 0) {
      float factors[kTile];
      dropout_row(problem_, sequence_, head(h), row, key, factors);
      multiply_run(gradient, factors, columns);
      std::copy_n(probability, columns, weight_.data() + at);
      multiply_run(weight_.data() + at, factors, columns);
    }
    score_gradient_row(gradient, probability, delta_[h * rows_ + row], columns);
    if (!problem_.scores.any()) return;
    if (problem_.scores.dbias != nullptr) {
      const int64_t first = problem_.band.first(row, length_) - key, last = problem_.band.last(row, length_) - key;
      float *dbias = problem_.scores.dbias + problem_.scores.bias.offset(sequence_, head(h), row) + key;
      const int64_t begin = std::clamp<int64_t>(first, 0, kTile), end = std::clamp<int64_t>(last, begin, kTile);
      const float factor = problem_.scores.bias_factor, *derivative = derivatives_.data() + at;
      for (int64_t j = begin; j < end; ++j) dbias[j] += factor != 0 ? factor * derivative[j] * gradient[j] : gradient[j];
    }
    multiply_run(gradient, derivatives_.data() + at, columns);
  }

  void store_queries(int64_t h) {
    float *rows = dq_.data() + h * rows_ * width_qk_;
    scale_run(rows, problem_.scale, length_.q * width_qk_);
    store_panel(rows, length_.q, problem_.dim_qk, width_qk_, problem_.dq, sequence_, head(h), 0);
    store_zeros(problem_.dq, sequence_, head(h), length_.q, length_.q_rows, problem_.dim_qk);
  }

  const AttentionProblem &problem_;
  float *const sink_gradients_; /* [heads] of this sequence */
  const int64_t sequence_;
  const AttentionLength &length_;
  const int64_t kv_head_, group_, width_qk_, width_v_, rows_;
  Scratch stats_, delta_, dq_, q_, d_o_, k_, v_, k_transposed_, v_transposed_, dk_, dv_;
  Scratch probability_, weight_, gradient_, derivatives_;
};

}  // namespace

void attention_backward(const AttentionProblem &problem) {
  const int64_t sequences = static_cast<int64_t>(problem.lengths.size());
  Scratch sink_gradients(sequences * problem.heads);
  const auto compute = [&](int64_t sequence, int64_t kv_head) {
    BackwardHead(problem, sequence, kv_head, &sink_gradients[sequence * problem.heads]).compute();
  };
  /* Those that add to the same elements of a bias do so one after another. */
  const bool share_sequences = problem.scores.dbias != nullptr && problem.scores.bias.sequence == 0;
  const bool share_heads = problem.scores.dbias != nullptr && problem.scores.bias.head == 0;
  const int64_t sequence_step = share_sequences ? std::max<int64_t>(sequences, 1) : 1;
  const int64_t head_step = share_heads ? std::max<int64_t>(problem.kv_heads, 1) : 1;
  const int64_t groups = problem.kv_heads / head_step;
  parallel_for(0, sequences / sequence_step * groups, 1, [&](int64_t item, int64_t) {
    const int64_t sequence = item / groups * sequence_step, kv_head = item % groups * head_step;
    for (int64_t b = sequence; b < sequence + sequence_step; ++b)
      for (int64_t h = kv_head; h < kv_head + head_step; ++h) compute(b, h);
  });
  if (problem.dsink == nullptr) return;
  for (int64_t h = 0; h < problem.heads; ++h) {
    problem.dsink[h] = 0;
    for (int64_t b = 0; b < sequences; ++b) problem.dsink[h] += sink_gradients[b * problem.heads + h];
  }
}

}  // namespace chagres::reference

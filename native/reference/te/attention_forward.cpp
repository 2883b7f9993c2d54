/* Attention forward: blocks of queries on all threads, keys in tiles with a running softmax. */
#include <cmath>
#include <limits>

#include "te/attention_tile.h"

namespace chagres::reference {

namespace {

constexpr float kNothing = -std::numeric_limits<float>::infinity();
constexpr int64_t kBlock = 4 * kTile; /* queries that share the conversion and transposition of a tile of keys */

struct Block {
  int64_t sequence, first, last; /* query rows */
};

/* One head's block: what the loop over tiles of keys updates. */
class ForwardBlock {
 public:
  ForwardBlock(const AttentionProblem &problem, const Block &block, int64_t head)
      : problem_(problem),
        sequence_(block.sequence),
        length_(problem.lengths[static_cast<size_t>(block.sequence)]),
        head_(head),
        kv_head_(head / (problem.heads / problem.kv_heads)),
        first_(block.first),
        last_(std::min(block.last, length_.q)),
        width_qk_(round_up(problem.dim_qk, kLane)),
        width_v_(round_up(problem.dim_v, kLane)),
        q_(kBlock * width_qk_),
        o_(kBlock * width_v_),
        keys_(round_up(kTile, kRegisterRows) * std::max(width_qk_, width_v_)),
        transposed_(width_qk_ * kTile),
        scores_(kTile * kTile),
        largest_(kBlock),
        sum_(kBlock) {}

  void compute() {
    if (first_ >= last_) return;
    load_panel(problem_.q, sequence_, head_, first_, last_ - first_, problem_.dim_qk, width_qk_, q_.data());
    std::fill(o_.data(), o_.data() + kBlock * width_v_, 0.0f);
    for (int64_t i = 0; i < kBlock; ++i) {
      largest_[i] = problem_.sink != nullptr ? problem_.sink[head_] : kNothing;
      sum_[i] = problem_.sink != nullptr ? 1.0f : 0.0f;
    }
    const int64_t begin = problem_.band.first(first_, length_) / kTile * kTile;
    const int64_t end = problem_.band.last(last_ - 1, length_);
    for (int64_t key = begin; key < end; key += kTile) add_keys(key, std::min(kTile, length_.kv - key));
    store();
  }

 private:
  void add_keys(int64_t key, int64_t keys) {
    load_panel(problem_.k, sequence_, kv_head_, key, keys, problem_.dim_qk, width_qk_, keys_.data());
    transpose_panel(keys_.data(), keys, problem_.dim_qk, width_qk_, transposed_.data());
    load_panel(problem_.v, sequence_, kv_head_, key, keys, problem_.dim_v, width_v_, keys_.data());
    for (int64_t row = first_; row < last_; row += kTile) {
      const int64_t rows = std::min(kTile, last_ - row);
      if (problem_.band.first(row, length_) >= key + kTile) continue;
      if (problem_.band.last(row + rows - 1, length_) <= key) continue;
      add_tile(row, rows, key, keys);
    }
  }

  void add_tile(int64_t row, int64_t rows, int64_t key, int64_t keys) {
    const int64_t local = row - first_, columns = tile_columns(keys);
    set_product(rows, columns, problem_.dim_qk, q_.data() + local * width_qk_, width_qk_, 1, transposed_.data(), kTile,
                scores_.data(), kTile);
    const bool plain = is_plain_tile(problem_, length_, row, rows, key, columns);
    for (int64_t i = 0; !plain && i < rows; ++i) mask(row + i, key, columns, scores_.data() + i * kTile);
    follow_largest(local, rows, columns, plain ? problem_.scale : 1.0f);
    if (problem_.dropout.probability > 0)
      for (int64_t i = 0; i < rows; ++i) {
        float factors[kTile];
        dropout_row(problem_, sequence_, head_, row + i, key, factors);
        multiply_run(scores_.data() + i * kTile, factors, columns);
      }
    add_product(rows, width_v_, keys, scores_.data(), kTile, 1, keys_.data(), width_v_, o_.data() + local * width_v_,
                width_v_);
  }

  void mask(int64_t row, int64_t key, int64_t columns, float *scores) {
    const int64_t first = problem_.band.first(row, length_) - key, last = problem_.band.last(row, length_) - key;
    mask_row(scores, columns, problem_.scale, first, last);
    if (problem_.scores.any())
      change_row(problem_.scores, length_, sequence_, head_, row, key, first, last, scores, nullptr);
  }

  /* Turns rows of scores, which are still to be scaled, into weights relative to the largest score so far, and what was
   * summed before likewise. */
  void follow_largest(int64_t local, int64_t rows, int64_t columns, float scale) {
    float before[kTile], shifts[kTile], sums[kTile];
    std::copy_n(&largest_[local], rows, before);
    largest_of_rows(scores_.data(), rows, columns, scale, &largest_[local]);
    for (int64_t i = 0; i < rows; ++i) {
      const float largest = largest_[local + i];
      shifts[i] = largest == kNothing ? 0.0f : largest;
      if (largest > before[i]) {
        const float factor = std::exp(before[i] - largest);
        scale_run(o_.data() + (local + i) * width_v_, factor, width_v_);
        sum_[local + i] *= factor;
      }
    }
    exponentiate_rows(scores_.data(), rows, columns, scale, shifts, sums);
    for (int64_t i = 0; i < rows; ++i) sum_[local + i] += sums[i];
  }

  void store() {
    for (int64_t row = first_; row < last_; ++row) {
      const int64_t local = row - first_;
      const float sum = sum_[local];
      if (sum != 0) scale_run(o_.data() + local * width_v_, 1.0f / sum, width_v_); /* NaN != 0 too */
      *static_cast<float *>(problem_.stats.at(sequence_, head_, row)) =
          sum == 0 ? kNothing : largest_[local] + std::log(sum);
    }
    store_panel(o_.data(), last_ - first_, problem_.dim_v, width_v_, problem_.o, sequence_, head_, first_);
  }

  const AttentionProblem &problem_;
  const int64_t sequence_;
  const AttentionLength &length_;
  const int64_t head_, kv_head_, first_, last_, width_qk_, width_v_;
  Scratch q_, o_, keys_, transposed_, scores_, largest_, sum_;
};

void store_padding(const AttentionProblem &problem, const Block &block, int64_t head) {
  const int64_t first = std::max(block.first, problem.lengths[static_cast<size_t>(block.sequence)].q);
  store_zeros(problem.o, block.sequence, head, first, block.last, problem.dim_v);
  for (int64_t row = first; row < block.last; ++row)
    *static_cast<float *>(problem.stats.at(block.sequence, head, row)) = kNothing;
}

}  // namespace

void attention_forward(const AttentionProblem &problem) {
  std::vector<Block> blocks;
  for (size_t b = 0; b < problem.lengths.size(); ++b)
    for (int64_t first = 0; first < problem.lengths[b].q_rows; first += kBlock)
      blocks.push_back({static_cast<int64_t>(b), first, std::min(first + kBlock, problem.lengths[b].q_rows)});
  parallel_for(0, static_cast<int64_t>(blocks.size()) * problem.heads, 1, [&](int64_t item, int64_t) {
    const Block &block = blocks[static_cast<size_t>(item / problem.heads)];
    const int64_t head = item % problem.heads;
    ForwardBlock(problem, block, head).compute();
    store_padding(problem, block, head);
  });
}

}  // namespace chagres::reference

#include "attention_double.h"

#include <algorithm>

#include "harness/philox.h"
#include "harness/report.h"

namespace chagres::tests {

int64_t AttentionShape::tokens() const {
  if (order != TokenOrder::kPacked) return batch() * length;
  int64_t sum = tokens_past;
  for (int64_t each : lengths) sum += each;
  return sum;
}

int64_t AttentionShape::token(int64_t sequence, int64_t row) const {
  if (order == TokenOrder::kBshd) return sequence * length + row;
  if (order == TokenOrder::kSbhd) return row * batch() + sequence;
  for (int64_t b = 0; b < sequence; ++b) row += lengths[static_cast<size_t>(b)];
  return row;
}

bool AttentionShape::is_row(int64_t token_index) const {
  if (order != TokenOrder::kPacked) return true;
  for (int64_t b = 0; b < batch(); ++b)
    if (token_index >= token(b, 0) && token_index < token(b, 0) + valid(b)) return true;
  return false;
}

std::vector<int32_t> AttentionShape::cu_seqlens() const {
  std::vector<int32_t> offsets = {0};
  for (int64_t each : lengths) offsets.push_back(offsets.back() + static_cast<int32_t>(each));
  return offsets;
}

OpsStrides AttentionShape::strides(int64_t parts) const {
  const int64_t width = parts * heads * head_dim;
  if (order == TokenOrder::kPacked) return {-1, width, head_dim}; /* -1: must not be looked at */
  if (order == TokenOrder::kBshd) return {length * width, width, head_dim};
  return {width, batch() * width, head_dim};
}

OpsStrides AttentionShape::statistics() const {
  if (order == TokenOrder::kPacked) return {-1, heads, 1};
  return {heads * length, 1, length};
}

std::string AttentionShape::text() const {
  const char *const orders[] = {"thd", "bshd", "sbhd"};
  std::string lengths_text;
  for (int64_t each : lengths) lengths_text += (lengths_text.empty() ? "" : ",") + std::to_string(each);
  return orders[static_cast<int>(order)] + std::string(one_buffer ? " in one buffer " : " ") +
         shape_text({{"h", heads}, {"d", head_dim}, {"length", length}, {"left", left}, {"right", right},
                     {"offset", offset}}) +
         " p=" + std::to_string(dropout) + " of " + lengths_text;
}

size_t AttentionDouble::at(int64_t sequence, int64_t head, int64_t row) const {
  return static_cast<size_t>((shape_.token(sequence, row) * shape_.heads + head) * shape_.head_dim);
}

size_t AttentionDouble::statistic(int64_t sequence, int64_t head, int64_t row) const {
  const OpsStrides strides = shape_.statistics();
  if (shape_.order == TokenOrder::kPacked)
    return static_cast<size_t>(shape_.token(sequence, row) * strides.token + head * strides.head);
  return static_cast<size_t>(sequence * strides.sequence + row * strides.token + head * strides.head);
}

double AttentionDouble::kept(int64_t sequence, int64_t head, int64_t query, int64_t key) const {
  if (shape_.dropout == 0) return 1;
  const auto seed = static_cast<uint64_t>(shape_.rng_state[0]), offset = static_cast<uint64_t>(shape_.rng_state[1]);
  const Words words =
      philox({static_cast<uint32_t>(key / 4), static_cast<uint32_t>(offset), static_cast<uint32_t>(query),
              static_cast<uint32_t>(sequence * shape_.heads + head)},
             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(offset >> 32));
  const bool kept = std::ldexp(words[static_cast<size_t>(key % 4)], -32) >= shape_.dropout;
  return kept ? 1 / (1 - static_cast<double>(shape_.dropout)) : 0;
}

AttentionDouble::Weights AttentionDouble::weights(int64_t sequence, int64_t head, int64_t query) const {
  const int64_t count = shape_.valid(sequence);
  Weights row = {Doubles(static_cast<size_t>(count), -INFINITY), Doubles(static_cast<size_t>(count), 0), 0, 1};
  double largest = -INFINITY, sum = 0;
  for (int64_t j = 0; j < count; ++j) {
    if (shape_.left >= 0 && query - j > shape_.left) continue;
    if (shape_.right >= 0 && j - query > shape_.right) continue;
    const size_t left = at(sequence, head, query), right = at(sequence, head, j);
    double score = 0, size = 0;
    for (size_t c = 0; c < static_cast<size_t>(shape_.head_dim); ++c) {
      score += q[left + c] * k[right + c] * shape_.scale();
      size += std::fabs(q[left + c] * k[right + c] * shape_.scale());
    }
    row.probability[static_cast<size_t>(j)] = score;
    row.factor[static_cast<size_t>(j)] = kept(sequence, head, query, j);
    largest = std::max(largest, score);
    row.slack = std::max(row.slack, 1 + size);
  }
  for (double &score : row.probability) sum += score = std::exp(score - largest);
  for (double &weight : row.probability) weight /= sum;
  row.log_sum_exp = largest + std::log(sum);
  return row;
}

void AttentionDouble::forward() {
  const bool packed = shape_.order == TokenOrder::kPacked;
  o.assign(static_cast<size_t>(shape_.elements()), 0);
  o_scale = o;
  log_sum_exp.assign(static_cast<size_t>(shape_.rows()), packed ? kUntouched : -INFINITY);
  sum_scale.assign(static_cast<size_t>(shape_.rows()), 0);
  for (int64_t b = 0; b < shape_.batch(); ++b)
    for (int64_t h = 0; h < shape_.heads; ++h)
      for (int64_t i = 0; i < shape_.valid(b); ++i) forward_row(b, h, i);
}

void AttentionDouble::forward_row(int64_t sequence, int64_t head, int64_t row) {
  const Weights seen = weights(sequence, head, row);
  const size_t own = at(sequence, head, row);
  for (size_t j = 0; j < seen.probability.size(); ++j)
    for (size_t c = 0; c < static_cast<size_t>(shape_.head_dim); ++c) {
      const double term =
          seen.probability[j] * seen.factor[j] * v[at(sequence, head, static_cast<int64_t>(j)) + c];
      o[own + c] += term;
      o_scale[own + c] += std::fabs(term) * seen.slack;
    }
  log_sum_exp[statistic(sequence, head, row)] = seen.log_sum_exp;
  sum_scale[statistic(sequence, head, row)] = seen.slack + std::fabs(seen.log_sum_exp);
}

void AttentionDouble::backward() {
  for (Doubles *gradient : {&dq, &dk, &dv, &dq_scale, &dk_scale, &dv_scale})
    gradient->assign(static_cast<size_t>(shape_.elements()), 0);
  for (int64_t b = 0; b < shape_.batch(); ++b)
    for (int64_t h = 0; h < shape_.heads; ++h)
      for (int64_t i = 0; i < shape_.valid(b); ++i) backward_row(b, h, i);
}

void AttentionDouble::backward_row(int64_t sequence, int64_t head, int64_t row) {
  const Weights seen = weights(sequence, head, row);
  const size_t own = at(sequence, head, row), columns = static_cast<size_t>(shape_.head_dim);
  double delta = 0, delta_size = 0;
  for (size_t c = 0; c < columns; ++c) {
    delta += d_o[own + c] * o[own + c];
    delta_size += std::fabs(d_o[own + c] * o[own + c]);
  }
  for (size_t j = 0; j < seen.probability.size(); ++j) {
    const size_t other = at(sequence, head, static_cast<int64_t>(j));
    double gradient = 0, size = 0;
    for (size_t c = 0; c < columns; ++c) {
      gradient += d_o[own + c] * v[other + c];
      size += std::fabs(d_o[own + c] * v[other + c]);
    }
    const double slope = shape_.scale() * seen.probability[j] * (seen.factor[j] * gradient - delta);
    const double slope_size =
        shape_.scale() * seen.probability[j] * (seen.factor[j] * size + delta_size) * seen.slack;
    const double weight = seen.probability[j] * seen.factor[j];
    for (size_t c = 0; c < columns; ++c) {
      dq[own + c] += slope * k[other + c];
      dq_scale[own + c] += slope_size * std::fabs(k[other + c]);
      dk[other + c] += slope * q[own + c];
      dk_scale[other + c] += slope_size * std::fabs(q[own + c]);
      dv[other + c] += weight * d_o[own + c];
      dv_scale[other + c] += std::fabs(weight * d_o[own + c]) * seen.slack;
    }
  }
}

}  // namespace chagres::tests

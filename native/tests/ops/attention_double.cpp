#include "attention_double.h"

#include <algorithm>

#include "harness/philox.h"
#include "harness/report.h"

namespace chagres::tests {

int64_t AttentionSide::tokens() const {
  if (!packed()) return batch() * length;
  int64_t sum = tokens_past;
  for (int64_t each : lengths) sum += each + gap;
  return sum;
}

int64_t AttentionSide::token(int64_t sequence, int64_t row) const {
  if (order == TokenOrder::kBshd) return sequence * length + row;
  if (order == TokenOrder::kSbhd) return row * batch() + sequence;
  for (int64_t b = 0; b < sequence; ++b) row += lengths[static_cast<size_t>(b)] + gap;
  return row;
}

bool AttentionSide::is_row(int64_t token_index) const {
  if (!packed()) return true;
  for (int64_t b = 0; b < batch(); ++b)
    if (token_index >= token(b, 0) && token_index < token(b, 0) + valid(b)) return true;
  return is_gap(token_index);
}

bool AttentionSide::is_gap(int64_t token_index) const {
  for (int64_t b = 0; packed() && b < batch(); ++b) {
    const int64_t row = token_index - token(b, 0), owned = std::min(lengths[static_cast<size_t>(b)] + gap, length);
    if (row >= valid(b) && row < owned && gap > 0) return true;
  }
  return false;
}

std::vector<int32_t> AttentionSide::starts() const {
  std::vector<int32_t> offsets;
  for (int64_t b = 0; b <= batch(); ++b) offsets.push_back(static_cast<int32_t>(token(b, 0)));
  return offsets;
}

std::vector<int32_t> AttentionSide::cu_seqlens() const {
  std::vector<int32_t> offsets = {0};
  for (int64_t each : lengths) offsets.push_back(offsets.back() + static_cast<int32_t>(each));
  return offsets;
}

OpsStrides AttentionSide::strides(int64_t token_width, int64_t head_width) const {
  if (packed()) return {-1, token_width, head_width}; /* -1: must not be looked at */
  if (order == TokenOrder::kBshd) return {length * token_width, token_width, head_width};
  return {token_width, batch() * token_width, head_width};
}

std::string AttentionSide::text() const {
  const char *const orders[] = {"thd", "bshd", "sbhd"};
  std::string lengths_text;
  for (int64_t each : lengths) lengths_text += (lengths_text.empty() ? "" : ",") + std::to_string(each);
  return orders[static_cast<int>(order)] + std::string(" ") + shape_text({{"h", heads}, {"length", length}}) + " of " +
         lengths_text + (gap == 0 ? "" : " with gaps of " + std::to_string(gap));
}

size_t elements(const OpsScoreShape &shape) {
  return static_cast<size_t>(shape.sequences * shape.heads * shape.queries * shape.keys);
}

size_t element_at(const OpsScoreShape &shape, int64_t sequence, int64_t head, int64_t query, int64_t key) {
  const int64_t b = shape.sequences == 1 ? 0 : sequence, h = shape.heads == 1 ? 0 : head;
  return static_cast<size_t>(((b * shape.heads + h) * shape.queries + query) * shape.keys + key);
}

std::string ScoreChange::text() const {
  return shape_text({{"slopes", alibi_sequences},
                     {"alibi", alibi_alignment},
                     {"bias", bias_sequences},
                     {"bias heads", bias_heads},
                     {"bias type", bias_type},
                     {"mask", mask_sequences},
                     {"mask heads", mask_heads},
                     {"past", past},
                     {"softmax", softmax}}) +
         " cap " + std::to_string(softcap);
}

OpsScoreShape AttentionShape::bias() const {
  return {change.bias_sequences, change.bias_heads, queries.length + change.past, keys.length + change.past};
}

OpsScoreShape AttentionShape::mask() const {
  return {change.mask_sequences, change.mask_heads, queries.length + change.past, keys.length + change.past};
}

int64_t AttentionShape::diagonal(int64_t sequence) const {
  if (alignment == OPS_BY_PLACE)
    return WholePlace::at(place.first_queries, sequence, 0) - WholePlace::at(place.first_keys, sequence, 0);
  return alignment == OPS_BOTTOM_RIGHT ? keys.valid(sequence) - queries.valid(sequence) : 0;
}

OpsStrides AttentionShape::statistics() const {
  if (queries.packed()) return {-1, queries.heads, 1};
  return {queries.heads * queries.length, 1, queries.length};
}

std::string AttentionShape::text() const {
  const char *const together[] = {"apart", "key and value together", "together"};
  return "queries " + queries.text() + ", keys " + keys.text() + ", " + together[static_cast<int>(inputs)] +
         ", gradients " + together[static_cast<int>(gradients)] + ", " +
         shape_text({{"d", head_dim}, {"dv", value_dim}, {"left", left}, {"right", right}, {"offset", offset}}) +
         (alignment == OPS_TOP_LEFT ? "" : alignment == OPS_BOTTOM_RIGHT ? " bottom right" : " by place") +
         (place.sequences.empty() ? "" : " of a whole") + " p=" + std::to_string(dropout) + ' ' + change.text();
}

size_t AttentionDouble::query_at(int64_t sequence, int64_t head, int64_t row, int64_t columns) const {
  return static_cast<size_t>((shape_.queries.token(sequence, row) * shape_.queries.heads + head) * columns);
}

size_t AttentionDouble::key_at(int64_t sequence, int64_t head, int64_t row, int64_t columns) const {
  const int64_t kv_head = head / shape_.group();
  return static_cast<size_t>((shape_.keys.token(sequence, row) * shape_.keys.heads + kv_head) * columns);
}

size_t AttentionDouble::statistic(int64_t sequence, int64_t head, int64_t row) const {
  const OpsStrides strides = shape_.statistics();
  if (shape_.queries.packed())
    return static_cast<size_t>(shape_.queries.token(sequence, row) * strides.token + head * strides.head);
  return static_cast<size_t>(sequence * strides.sequence + row * strides.token + head * strides.head);
}

bool AttentionDouble::sees(int64_t sequence, int64_t query, int64_t key) const {
  const int64_t after = key - query - shape_.diagonal(sequence); /* keys past the diagonal */
  return (shape_.left < 0 || -after <= shape_.left) && (shape_.right < 0 || after <= shape_.right);
}

double AttentionDouble::kept(int64_t sequence, int64_t head, int64_t query, int64_t key) const {
  if (shape_.dropout == 0) return 1;
  const auto seed = static_cast<uint64_t>(shape_.rng_state[0]), offset = static_cast<uint64_t>(shape_.rng_state[1]);
  const WholePlace &place = shape_.place;
  const int64_t heads = place.heads == 0 ? shape_.queries.heads : place.heads;
  const int64_t pair = WholePlace::at(place.sequences, sequence, sequence) * heads + place.first_head + head;
  query += WholePlace::at(place.first_queries, sequence, 0);
  key += WholePlace::at(place.first_keys, sequence, 0);
  const Words words =
      philox({static_cast<uint32_t>(key / 4), static_cast<uint32_t>(offset), static_cast<uint32_t>(query),
              static_cast<uint32_t>(pair)},
             static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(offset >> 32));
  const bool kept = std::ldexp(words[static_cast<size_t>(key % 4)], -32) >= shape_.dropout;
  return kept ? 1 / (1 - static_cast<double>(shape_.dropout)) : 0;
}

double AttentionDouble::sink(int64_t head) const {
  if (shape_.change.softmax == OPS_SOFTMAX_VANILLA) return -INFINITY;
  return shape_.change.softmax == OPS_SOFTMAX_LEARNABLE ? sinks[static_cast<size_t>(head)] : 0;
}

void AttentionDouble::change(int64_t sequence, int64_t head, int64_t query, int64_t key, double &score,
                             double &derivative, double &size) const {
  const ScoreChange &change = shape_.change;
  const bool before = change.bias_type == OPS_PRE_SCALE_BIAS;
  double term_of_bias = 0;
  if (change.bias_sequences > 0) {
    term_of_bias = bias[element_at(shape_.bias(), sequence, head, query, key)] * (before ? shape_.scale() : 1);
    size += std::isinf(term_of_bias) ? 0 : std::fabs(term_of_bias);
  }
  if (before) score += term_of_bias;
  if (change.softcap > 0) {
    const double part = std::tanh(score / change.softcap);
    score = change.softcap * part;
    derivative = 1 - part * part;
  }
  if (change.alibi_sequences > 0) {
    const int64_t row = change.alibi_sequences == 1 ? 0 : sequence;
    const int64_t diagonal =
        change.alibi_alignment == OPS_BOTTOM_RIGHT ? shape_.keys.valid(sequence) - shape_.queries.valid(sequence) : 0;
    const double term = slopes[static_cast<size_t>(row * shape_.queries.heads + head)] *
                        static_cast<double>(std::abs(query + diagonal - key));
    score -= term;
    size += std::fabs(term);
  }
  if (!before) score += term_of_bias;
  if (change.mask_sequences > 0 && mask[element_at(shape_.mask(), sequence, head, query, key)] != 0) score = -INFINITY;
}

AttentionDouble::Weights AttentionDouble::weights(int64_t sequence, int64_t head, int64_t query) const {
  const int64_t count = shape_.keys.valid(sequence);
  Weights row = {Doubles(static_cast<size_t>(count), -INFINITY), Doubles(static_cast<size_t>(count), 0),
                 Doubles(static_cast<size_t>(count), 1), -INFINITY, 1};
  double largest = sink(head), sum = 0;
  for (int64_t j = 0; j < count; ++j) {
    if (!sees(sequence, query, j)) continue;
    const size_t left = query_at(sequence, head, query, shape_.head_dim);
    const size_t right = key_at(sequence, head, j, shape_.head_dim);
    double score = 0, size = 0;
    for (size_t c = 0; c < static_cast<size_t>(shape_.head_dim); ++c) {
      score += q[left + c] * k[right + c] * shape_.scale();
      size += std::fabs(q[left + c] * k[right + c] * shape_.scale());
    }
    change(sequence, head, query, j, score, row.derivative[static_cast<size_t>(j)], size);
    row.probability[static_cast<size_t>(j)] = score;
    row.factor[static_cast<size_t>(j)] = kept(sequence, head, query, j);
    largest = std::max(largest, score);
    row.slack = std::max(row.slack, 1 + size);
  }
  if (largest == -INFINITY) { /* sees no key */
    std::fill(row.probability.begin(), row.probability.end(), 0);
    return row;
  }
  if (sink(head) > -INFINITY) sum = std::exp(sink(head) - largest);
  for (double &score : row.probability) sum += score = std::exp(score - largest);
  for (double &weight : row.probability) weight /= sum;
  row.log_sum_exp = largest + std::log(sum);
  return row;
}

void AttentionDouble::forward() {
  o.assign(static_cast<size_t>(shape_.queries.rows() * shape_.value_dim), 0);
  o_scale = o;
  log_sum_exp.assign(static_cast<size_t>(shape_.queries.rows()), shape_.queries.packed() ? kUntouched : -INFINITY);
  sum_scale.assign(static_cast<size_t>(shape_.queries.rows()), 0);
  for (int64_t b = 0; b < shape_.queries.batch(); ++b)
    for (int64_t h = 0; h < shape_.queries.heads; ++h)
      for (int64_t i = 0; i < shape_.queries.valid(b); ++i) forward_row(b, h, i);
  for (int64_t t = 0; t < shape_.queries.tokens(); ++t)
    for (int64_t h = 0; shape_.queries.is_gap(t) && h < shape_.queries.heads; ++h)
      log_sum_exp[static_cast<size_t>(t * shape_.queries.heads + h)] = -INFINITY;
}

void AttentionDouble::forward_row(int64_t sequence, int64_t head, int64_t row) {
  const Weights seen = weights(sequence, head, row);
  const size_t own = query_at(sequence, head, row, shape_.value_dim);
  for (size_t j = 0; j < seen.probability.size(); ++j)
    for (size_t c = 0; c < static_cast<size_t>(shape_.value_dim); ++c) {
      const double term = seen.probability[j] * seen.factor[j] *
                          v[key_at(sequence, head, static_cast<int64_t>(j), shape_.value_dim) + c];
      o[own + c] += term;
      o_scale[own + c] += std::fabs(term) * seen.slack;
    }
  log_sum_exp[statistic(sequence, head, row)] = seen.log_sum_exp;
  sum_scale[statistic(sequence, head, row)] = seen.slack + std::fabs(seen.log_sum_exp);
}

void AttentionDouble::backward() {
  for (Doubles *gradient : {&dq, &dq_scale})
    gradient->assign(static_cast<size_t>(shape_.queries.rows() * shape_.head_dim), 0);
  for (Doubles *gradient : {&dk, &dk_scale})
    gradient->assign(static_cast<size_t>(shape_.keys.rows() * shape_.head_dim), 0);
  for (Doubles *gradient : {&dv, &dv_scale})
    gradient->assign(static_cast<size_t>(shape_.keys.rows() * shape_.value_dim), 0);
  for (Doubles *gradient : {&dbias, &dbias_scale}) gradient->assign(elements(shape_.bias()), 0);
  for (Doubles *gradient : {&dsinks, &dsinks_scale}) gradient->assign(static_cast<size_t>(shape_.queries.heads), 0);
  for (int64_t b = 0; b < shape_.queries.batch(); ++b)
    for (int64_t h = 0; h < shape_.queries.heads; ++h)
      for (int64_t i = 0; i < shape_.queries.valid(b); ++i) backward_row(b, h, i);
}

void AttentionDouble::backward_row(int64_t sequence, int64_t head, int64_t row) {
  const Weights seen = weights(sequence, head, row);
  const auto dim = static_cast<size_t>(shape_.head_dim), value_dim = static_cast<size_t>(shape_.value_dim);
  const size_t query = query_at(sequence, head, row, shape_.head_dim);
  const size_t output = query_at(sequence, head, row, shape_.value_dim);
  double delta = 0, delta_size = 0;
  for (size_t c = 0; c < value_dim; ++c) {
    delta += d_o[output + c] * o[output + c];
    delta_size += std::fabs(d_o[output + c] * o[output + c]);
  }
  const double sunk = sink(head) == -INFINITY ? 0 : std::exp(sink(head) - seen.log_sum_exp);
  dsinks[static_cast<size_t>(head)] -= sunk * delta;
  dsinks_scale[static_cast<size_t>(head)] += sunk * delta_size * seen.slack;
  for (size_t j = 0; j < seen.probability.size(); ++j) {
    const size_t key = key_at(sequence, head, static_cast<int64_t>(j), shape_.head_dim);
    const size_t value = key_at(sequence, head, static_cast<int64_t>(j), shape_.value_dim);
    double gradient = 0, size = 0;
    for (size_t c = 0; c < value_dim; ++c) {
      gradient += d_o[output + c] * v[value + c];
      size += std::fabs(d_o[output + c] * v[value + c]);
    }
    const double dscore = seen.probability[j] * (seen.factor[j] * gradient - delta);
    const double dscore_size = seen.probability[j] * (seen.factor[j] * size + delta_size) * seen.slack;
    const double slope = shape_.scale() * seen.derivative[j] * dscore, slope_size = shape_.scale() * dscore_size;
    if (shape_.change.bias_sequences > 0) {
      const size_t at = element_at(shape_.bias(), sequence, head, row, static_cast<int64_t>(j));
      const bool before = shape_.change.bias_type == OPS_PRE_SCALE_BIAS;
      dbias[at] += before ? slope : dscore;
      dbias_scale[at] += before ? slope_size : dscore_size;
    }
    const double weight = seen.probability[j] * seen.factor[j];
    for (size_t c = 0; c < dim; ++c) {
      dq[query + c] += slope * k[key + c];
      dq_scale[query + c] += slope_size * std::fabs(k[key + c]);
      dk[key + c] += slope * q[query + c];
      dk_scale[key + c] += slope_size * std::fabs(q[query + c]);
    }
    for (size_t c = 0; c < value_dim; ++c) {
      dv[value + c] += weight * d_o[output + c];
      dv_scale[value + c] += std::fabs(weight * d_o[output + c]) * seen.slack;
    }
  }
}

}  // namespace chagres::tests

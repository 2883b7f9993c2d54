/* Modifications of attention's scores before the softmax. */
#include <cmath>
#include <limits>

#include "te/attention_tile.h"

namespace chagres::reference {

void change_row(const AttentionScores &scores, const AttentionLength &length, int64_t sequence, int64_t head, int64_t query,
                int64_t first_key, int64_t first, int64_t last, float *row, float *derivatives) {
  const int64_t begin = std::clamp<int64_t>(first, 0, kTile), end = std::clamp<int64_t>(last, begin, kTile);
  if (derivatives != nullptr) std::fill(derivatives, derivatives + kTile, 1.0f);
  float bias[kTile];
  const bool biased = scores.bias.data != nullptr && begin < end;
  if (biased) {
    const int64_t at = scores.bias.offset(sequence, head, query) + first_key + begin;
    to_float(bias, element(const_cast<void *>(scores.bias.data), at, scores.bias.dtype), scores.bias.dtype, end - begin);
    if (scores.bias_factor != 0)
      for (int64_t j = begin; j < end; ++j) row[j] += scores.bias_factor * bias[j - begin];
  }
  if (scores.softcap > 0)
    for (int64_t j = begin; j < end; ++j) {
      const float part = std::tanh(row[j] / scores.softcap);
      row[j] = scores.softcap * part;
      if (derivatives != nullptr) derivatives[j] = 1 - part * part;
    }
  if (scores.alibi_slopes != nullptr) {
    const float slope = scores.alibi_slopes[sequence * scores.alibi_sequence + head];
    const int64_t diagonal = query + (scores.alibi_bottom_right ? length.kv - length.q : 0);
    for (int64_t j = begin; j < end; ++j) row[j] -= slope * static_cast<float>(std::abs(diagonal - first_key - j));
  }
  if (biased && scores.bias_factor == 0)
    for (int64_t j = begin; j < end; ++j) row[j] += bias[j - begin];
  if (scores.mask.data != nullptr && begin < end) {
    const auto *mask = static_cast<const uint8_t *>(scores.mask.data) + scores.mask.offset(sequence, head, query) + first_key;
    for (int64_t j = begin; j < end; ++j)
      if (mask[j] != 0) row[j] = -std::numeric_limits<float>::infinity();
  }
}

}  // namespace chagres::reference

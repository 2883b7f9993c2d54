/* Modified scores on tensor cores: attention_scores.cuh for the fragments of attention_mma.cuh. */
#pragma once

#include <attention_mma.cuh>
#include <attention_scores.cuh>

/* Products of own rows from `first` and 16 tile rows become exponents of two, -infinity where they do not meet, and
 * `derivative` their derivatives by the plain scores; the tile's rows begin at `other`. */
template <class T, Own own>
__device__ inline void change_scores(Scores &score, Scores &derivative, const Meeting &meeting, int first, int other,
                                     int chunk, const ScoreRules<T> &rules, const AttentionArguments &a) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int row = first + own_row(n % 4 / 2), column = other + 16 * chunk + 8 * (n / 4) + 2 * quad() + n % 2;
    float &one = score.eight[n / 4][n % 4];
    Score changed = {minus_infinity(), 0.0f};
    if (meeting.has(n % 4 / 2, column))
      changed = own == Own::kQueries ? score_of(one, row, column, rules, a) : score_of(one, column, row, rules, a);
    one = changed.exponent;
    derivative.eight[n / 4][n % 4] = changed.derivative;
  }
}

/* Own rows are queries: their scores become gradients of the modified scores, given do_i . v_j. */
template <ScoreKind kind>
__device__ inline void differentiate(Scores &score, const Scores &gradient, const float (&log2_sum)[2],
                                     const float (&delta)[2], const AttentionArguments &a) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    float &one = score.eight[n / 4][n % 4];
    one = exp2_of(one * exponent_scale<kind>(a) - log2_sum[n % 4 / 2]) *
          (gradient.eight[n / 4][n % 4] - delta[n % 4 / 2]);
  }
}

/* By the derivatives of the scores. */
__device__ inline void multiply(Scores &value, const Scores &derivative) {
#pragma unroll
  for (int n = 0; n < 8; ++n) value.eight[n / 4][n % 4] *= derivative.eight[n / 4][n % 4];
}

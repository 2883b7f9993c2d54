/*
 * The mathematics of attention, free of handles: what fused_attn.cpp asks for after it has checked its arguments.
 *
 * For sequence b, head h, query i and key j, with g = h / (heads / kv_heads):
 *   s_ij = scale * sum_c q[i, c] k[j, c]       for j inside the band of row i, else -infinity; changed as `scores` says
 *   L_i  = log(sum_j exp(s_ij) [+ exp(sink_h)])  Stats; off-by-one and learnable softmax have a sink
 *   p_ij = exp(s_ij - L_i)
 *   o_i  = sum_j m_ij p_ij v_j                 m_ij = keep_ij / (1 - dropout)
 * backward, with D_i = sum_c do[i, c] o[i, c] and t_ij the derivative of the change, which is 1 but under a soft cap:
 *   dbias = p_ij (m_ij (do_i . v_j) - D_i),  ds_ij = t_ij dbias
 *   dv_j = sum_i m_ij p_ij do_i,  dq_i = scale * sum_j ds_ij k_j,  dk_j = scale * sum_i ds_ij q_i
 *   dsink_h = -sum_bi exp(sink_h - L_i) D_i
 * A row without a key and without a sink has o = 0, L = -infinity, and gives and gets no gradient.
 *
 * In eight bits, r(x, c) being x times the scale of c, rounded to the type of c and cut at its largest, and back:
 *   o_i = sum_j r(p_ij, S) v_j, stored as r(o, O)
 *   ds_ij = scale p_ij (do_i . v_j - D_i),  dv_j = sum_i r(p_ij, S) do_i,  dq_i = sum_j r(ds_ij, dP) k_j,
 *   dk_j = sum_i r(ds_ij, dP) q_i, each stored by its own scale
 */
#ifndef CHAGRES_REFERENCE_ATTENTION_H
#define CHAGRES_REFERENCE_ATTENTION_H

#include <algorithm>
#include <cstdint>
#include <vector>

#include "runtime/reference.h"

namespace chagres::reference {

/* One of Q, K, V, O, their gradients, or Stats: row t of sequence b and head h starts `offset` elements after data. The
 * last dimension is contiguous. */
struct AttentionTensor {
  void *data = nullptr;
  NVTEDType dtype = kNVTEFloat32;
  int64_t sequence_stride = 0; /* dense formats */
  int64_t token_stride = 0;
  int64_t head_stride = 0;
  const int32_t *first_token = nullptr; /* THD: token offset of each sequence, instead of sequence_stride */

  int64_t offset(int64_t sequence, int64_t head, int64_t row) const {
    const int64_t start =
        first_token != nullptr ? int64_t{first_token[sequence]} * token_stride : sequence * sequence_stride;
    return start + row * token_stride + head * head_stride;
  }
  void *at(int64_t sequence, int64_t head, int64_t row) const {
    return element(data, offset(sequence, head, row), dtype);
  }
};

struct AttentionLength {
  int64_t q, kv;           /* tokens that take part */
  int64_t q_rows, kv_rows; /* rows that the sequence owns, padding and gaps included */
  int64_t number = -1;     /* of the sequence among those of the whole; -1: its index */
  int64_t first_q = 0, first_kv = 0; /* numbers of the first query and key within the whole sequence */
};

/* Keys that a query sees, as every mask and window of TE is one interval a row. */
struct AttentionBand {
  int64_t left = -1;         /* keys before the diagonal, -1 without limit */
  int64_t right = -1;        /* keys after the diagonal, -1 without limit */
  bool bottom_right = false; /* the diagonal ends in the last row's last key, else it starts in the first row's first */
  bool by_place = false;     /* or rather, queries stand on the keys with their numbers */

  int64_t shift(const AttentionLength &length) const { /* the key on which row 0 stands */
    return by_place ? length.first_q - length.first_kv : bottom_right ? length.kv - length.q : 0;
  }
  int64_t first(int64_t row, const AttentionLength &length) const {
    const int64_t diagonal = row + shift(length);
    return left < 0 ? 0 : std::clamp<int64_t>(diagonal - left, 0, length.kv);
  }
  int64_t last(int64_t row, const AttentionLength &length) const { /* one past */
    const int64_t diagonal = row + shift(length);
    return right < 0 ? length.kv : std::clamp<int64_t>(diagonal + right + 1, 0, length.kv);
  }
};

/* Element (b, h, i, j) is kept when word j % 4 of Philox4x32-10 times 2^-32 is at least the probability. Key: the seed,
 * its high word xored with the offset's high word. Counter words: j / 4, low word of the offset, i, b * heads + h. So
 * the mask depends neither on layout nor on maximum lengths, and another offset gives other bits everywhere. All numbers
 * are those of the whole, of which the problem may have some sequences, queries, keys and heads. */
struct AttentionDropout {
  float probability = 0;
  uint64_t seed = 0;
  uint64_t offset = 0;
  int64_t heads = 0; /* of the whole; 0: those of the problem */
  int64_t first_head = 0;
};

/* A dense tensor with an element for each score; steps of 0 where sequences or heads share elements. */
struct ScoreTensor {
  const void *data = nullptr; /* null: none */
  NVTEDType dtype = kNVTEByte;
  int64_t sequence = 0, head = 0, query = 0; /* elements from one to the next */

  int64_t offset(int64_t b, int64_t h, int64_t row) const { return b * sequence + h * head + row * query; }
};

/* Modifications of scores before the softmax, in this order: soft cap, ALiBi, bias, mask. */
struct AttentionScores {
  float softcap = 0;                  /* 0: none */
  const float *alibi_slopes = nullptr;
  int64_t alibi_sequence = 0;         /* slopes from one sequence to the next */
  bool alibi_bottom_right = false;
  float bias_factor = 0;              /* of a bias before the scale: the scale. 0: bias comes behind soft cap and ALiBi */
  ScoreTensor bias, mask;             /* mask: Byte, not 0 where a query does not see a key */
  float *dbias = nullptr;             /* backward adds to it; it has the layout of bias. Null: none */

  bool any() const { return softcap > 0 || alibi_slopes != nullptr || bias.data != nullptr || mask.data != nullptr; }
};

struct AttentionProblem {
  int64_t heads = 0, kv_heads = 0;
  int64_t dim_qk = 0, dim_v = 0;
  std::vector<AttentionLength> lengths;
  AttentionBand band;
  float scale = 1;
  AttentionDropout dropout;
  AttentionScores scores;
  AttentionTensor q, k, v, o;
  AttentionTensor stats;           /* Float32, one column */
  const float *sink = nullptr;     /* [heads], null for the vanilla softmax */
  AttentionTensor d_o, dq, dk, dv; /* backward */
  float *dsink = nullptr;          /* [heads], may be null */
};

/* The scales of tensors in eight bits, and the amaxes before scaling, which the calls raise. */
struct AttentionScales {
  float q_inverse = 1, k_inverse = 1, v_inverse = 1; /* read by both calls */
  float s = 1, s_inverse = 1;
  float o = 1;                                        /* forward */
  float o_inverse = 1, d_o_inverse = 1;               /* backward */
  float dp = 1, dp_inverse = 1, dq = 1, dk = 1, dv = 1;
  NVTEDType dp_dtype = kNVTEFloat8E5M2;
  float amax_s = 0, amax_o = 0, amax_dp = 0, amax_dq = 0, amax_dk = 0, amax_dv = 0;
};

/* The same of tensors in eight bits: without dropout, sinks and changed scores. Writes o, stats and amaxes. */
void attention_forward_fp8(const AttentionProblem &problem, AttentionScales &scales);

/* Writes dq, dk, dv and amaxes. */
void attention_backward_fp8(const AttentionProblem &problem, AttentionScales &scales);

/* Writes o and stats. Rows of dense formats past a sequence's length get o = 0 and stats = -infinity. */
void attention_forward(const AttentionProblem &problem);

/* Reads o and stats of the forward pass; writes dq, dk, dv, dsink. Rows of dense formats past a sequence's length get
 * 0. */
void attention_backward(const AttentionProblem &problem);

}  // namespace chagres::reference

#endif /* CHAGRES_REFERENCE_ATTENTION_H */

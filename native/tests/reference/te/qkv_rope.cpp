/* Joint rotation of interleaved queries, keys and values against complex rotation in double; refusals. */
#include <complex>

#include "check.h"

using namespace chagres::reference;
using check::Array;
using check::Unset;

namespace {

constexpr size_t kBatch = 3, kLength = 4, kGroups = 2, kPositions = 12;

struct Case {
  NVTE_QKV_Format format;
  bool interleaved;
  NVTEDType dtype;
  size_t d, d2;
  std::vector<size_t> heads; /* of q, k and v in a group */
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const NVTE_QKV_Format format : {NVTE_SBHD, NVTE_BSHD}) {
    for (const bool interleaved : {false, true}) {
      for (const NVTEDType dtype : {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16}) {
        all.push_back({format, interleaved, dtype, 8, 8, {1, 1, 1}});
        all.push_back({format, interleaved, dtype, 11, 6, {3, 1, 2}});
      }
    }
  }
  return all;
}

/* Angles position * factor * (i + 1), those of a pair alike. */
void set_angles(Array &freqs, const Case &c, double factor) {
  for (size_t p = 0; p < kPositions; ++p) {
    for (size_t i = 0; i < c.d2 / 2; ++i) {
      const double angle = static_cast<double>(p * (i + 1)) * factor;
      freqs.set(p * c.d2 + (c.interleaved ? 2 * i : i), angle);
      freqs.set(p * c.d2 + (c.interleaved ? 2 * i + 1 : i + c.d2 / 2), angle);
    }
  }
}

std::vector<double> rotate(const Case &c, std::vector<double> x, const Array *freqs, size_t position, int direction) {
  for (size_t i = 0; freqs != nullptr && i < c.d2 / 2; ++i) {
    const size_t a = c.interleaved ? 2 * i : i, b = c.interleaved ? 2 * i + 1 : i + c.d2 / 2;
    const std::complex<double> turned =
        std::complex<double>(x[a], x[b]) * std::polar(1.0, direction * freqs->get(position * c.d2 + a));
    x[a] = turned.real();
    x[b] = turned.imag();
  }
  return x;
}

std::vector<double> head_of(const Array &array, size_t start, size_t d) {
  std::vector<double> head(d);
  for (size_t i = 0; i < d; ++i) head[i] = array.get(start + i);
  return head;
}

}  // namespace

TEST(both_directions) {
  for (const Case &c : cases()) {
    const size_t tokens = kBatch * kLength, width = (c.heads[0] + c.heads[1] + c.heads[2]) * c.d;
    Array qkv({tokens, kGroups, width}, c.dtype), gradient({tokens, kGroups, width}, c.dtype);
    Array q({tokens, kGroups * c.heads[0], c.d}, c.dtype), k({tokens, kGroups * c.heads[1], c.d}, c.dtype),
        v({tokens, kGroups * c.heads[2], c.d}, c.dtype), q_freqs({kPositions, 1, 1, c.d2}, kNVTEFloat32),
        k_freqs({kPositions, 1, 1, c.d2}, kNVTEFloat32), starts({kBatch}, kNVTEInt32);
    qkv.normal();
    set_angles(q_freqs, c, 0.1);
    set_angles(k_freqs, c, -0.3);
    const std::vector<size_t> start_values = {2, 0, 7};
    for (size_t b = 0; b < kBatch; ++b) starts.set(b, static_cast<double>(start_values[b]));
    const auto elements = [&](size_t part) { return static_cast<int>(c.heads[part] * c.d); };
    const int d = static_cast<int>(c.d), d2 = static_cast<int>(c.d2);
    nvte_fused_qkv_rope_forward(qkv, q_freqs, k_freqs, starts, q, k, v, c.format, c.interleaved, 1, 0, kLength, kBatch,
                                kGroups, d, d2, elements(0), elements(1), elements(2), nullptr);
    const Array *const parts[] = {&q, &k, &v}, *const freqs[] = {&q_freqs, &k_freqs, nullptr};
    const auto each_head = [&](auto compare) {
      for (size_t t = 0; t < tokens; ++t) {
        for (size_t group = 0; group < kGroups; ++group) {
          size_t joint = (t * kGroups + group) * width;
          for (size_t part = 0; part < 3; ++part) {
            for (size_t head = 0; head < c.heads[part]; ++head, joint += c.d) {
              compare(t, part, joint, ((t * kGroups + group) * c.heads[part] + head) * c.d);
            }
          }
        }
      }
    };
    const auto place = [&](size_t t) { return c.format == NVTE_SBHD ? t / kBatch : t % kLength; };
    each_head([&](size_t t, size_t part, size_t joint, size_t own) {
      const size_t position = place(t) + start_values[c.format == NVTE_SBHD ? t % kBatch : t / kLength];
      EXPECT_CLOSE(head_of(*parts[part], own, c.d), rotate(c, head_of(qkv, joint, c.d), freqs[part], position, 1),
                   check::rounding(c.dtype), 1e-6);
    });
    q.normal(), k.normal(), v.normal();
    nvte_fused_qkv_rope_backward(q, k, v, q_freqs, k_freqs, gradient, c.format, c.interleaved, 1, 0, kLength, kBatch,
                                 kGroups, d, d2, elements(0), elements(1), elements(2), nullptr);
    each_head([&](size_t t, size_t part, size_t joint, size_t own) {
      EXPECT_CLOSE(head_of(gradient, joint, c.d), rotate(c, head_of(*parts[part], own, c.d), freqs[part], place(t), -1),
                   check::rounding(c.dtype), 1e-6);
    });
  }
}

/* Rank r has chunks r and 3 - r of four, here of a token each. */
TEST(context_parallel_ranks_take_their_chunks) {
  const Case c{NVTE_BSHD, true, kNVTEFloat32, 4, 4, {1, 1, 1}};
  Array qkv({1, 2, 1, 12}, kNVTEFloat32), q({1, 2, 1, 4}, kNVTEFloat32), k({1, 2, 1, 4}, kNVTEFloat32),
      v({1, 2, 1, 4}, kNVTEFloat32), freqs({kPositions, 1, 1, 4}, kNVTEFloat32);
  Unset none;
  qkv.normal();
  set_angles(freqs, c, 0.2);
  for (const size_t rank : {0, 1}) {
    nvte_fused_qkv_rope_forward(qkv, freqs, freqs, none, q, k, v, NVTE_BSHD, true, 2, static_cast<int>(rank), 2, 1, 1, 4, 4,
                                4, 4, 4, nullptr);
    for (size_t t = 0; t < 2; ++t) {
      EXPECT_CLOSE(head_of(q, 4 * t, 4), rotate(c, head_of(qkv, 12 * t, 4), &freqs, t == 0 ? rank : 3 - rank, 1), 1e-6, 1e-6);
    }
  }
}

TEST(refusals) {
  Array qkv({2, 5, 1, 12}, kNVTEBFloat16), q({2, 5, 1, 4}, kNVTEBFloat16), k({2, 5, 1, 4}, kNVTEBFloat16),
      v({2, 5, 1, 4}, kNVTEBFloat16), floats({2, 5, 1, 4}, kNVTEFloat32), freqs({5, 1, 1, 4}, kNVTEFloat32),
      few({4, 1, 1, 4}, kNVTEFloat32), odd({7}, kNVTEFloat32), starts({2}, kNVTEInt32);
  Unset none;
  starts.set(0, 0), starts.set(1, 1);
  const auto call = [&](NVTETensor k_freqs, NVTETensor offsets, NVTETensor k_out, NVTE_QKV_Format format, int d2, int split) {
    nvte_fused_qkv_rope_forward(qkv, freqs, k_freqs, offsets, q, k_out, v, format, false, 1, 0, 5, 2, 1, 4, d2, 4, split, 4,
                                nullptr);
  };
  EXPECT_THROWS(call(freqs, none, k, NVTE_THD, 4, 4), "nvte_fused_qkv_rope_forward", "\"qkv_format\"", "SBHD or BSHD");
  EXPECT_THROWS(call(freqs, none, k, NVTE_BSHD, 3, 4), "\"d2\"", "even", "3");
  EXPECT_THROWS(call(freqs, none, k, NVTE_BSHD, 6, 4), "\"d\"", "d2", "4");
  EXPECT_THROWS(call(freqs, none, k, NVTE_BSHD, 4, 6), "\"qkv_split_arg_list_*\"", "whole heads", "6");
  EXPECT_THROWS(call(freqs, none, k, NVTE_BSHD, 4, 8), "\"qkv_input\"", "160 elements", "120");
  EXPECT_THROWS(call(freqs, none, floats, NVTE_BSHD, 4, 4), "\"k_out\"", "BFloat16", "Float32");
  EXPECT_THROWS(call(few, none, k, NVTE_BSHD, 4, 4), "\"k_freqs\"", "4 positions", "position 4");
  EXPECT_THROWS(call(odd, none, k, NVTE_BSHD, 4, 4), "\"k_freqs\"", "d2 = 4", "(7)");
  EXPECT_THROWS(call(freqs, starts, k, NVTE_BSHD, 4, 4), "\"q_freqs\"", "token 4 of sequence 1", "position 5");
  EXPECT_THROWS(nvte_fused_qkv_rope_backward(q, k, v, freqs, freqs, qkv, NVTE_BSHD, false, 2, 0, 5, 2, 1, 4, 4, 4, 4, 4, nullptr),
                "nvte_fused_qkv_rope_backward", "\"s\"", "even", "5");
}

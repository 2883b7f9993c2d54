/* Rotary position embedding against complex rotation in double, its backward as the transposed map, error texts. */
#include <complex>

#include "check.h"

using namespace chagres::reference;
using check::Array;
using check::Unset;

namespace {

struct Case {
  NVTE_QKV_Format format;
  bool interleaved;
  NVTEDType dtype;
  size_t d, d2;
};

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const NVTE_QKV_Format format : {NVTE_SBHD, NVTE_BSHD, NVTE_THD}) {
    for (const bool interleaved : {false, true}) {
      for (const NVTEDType dtype : {kNVTEFloat32, kNVTEFloat16, kNVTEBFloat16}) {
        all.push_back({format, interleaved, dtype, 8, 8});
        all.push_back({format, interleaved, dtype, 11, 6});
      }
    }
  }
  return all;
}

constexpr size_t kBatch = 3, kLength = 5, kHeads = 2, kPositions = 12;
const std::vector<int> kOffsets = {0, 5, 5, 9}; /* THD: sequences of 5, 0 and 4 of 10 tokens */

/* TE's angles: position * frequency, each twice, as halves or side by side. */
void set_angles(Array &freqs, const Case &c) {
  for (size_t p = 0; p < kPositions; ++p) {
    for (size_t i = 0; i < c.d2 / 2; ++i) {
      const double angle = static_cast<double>(p) * std::pow(100.0, -2.0 * static_cast<double>(i) / static_cast<double>(c.d2));
      freqs.set(p * c.d2 + (c.interleaved ? 2 * i : i), angle);
      freqs.set(p * c.d2 + (c.interleaved ? 2 * i + 1 : i + c.d2 / 2), angle);
    }
  }
}

/* x of one head rotated by the angles of its position; direction -1 rotates back. */
std::vector<double> rotate(const Case &c, std::vector<double> x, const Array &freqs, size_t position, int direction) {
  for (size_t i = 0; i < c.d2 / 2; ++i) {
    const size_t a = c.interleaved ? 2 * i : i, b = c.interleaved ? 2 * i + 1 : i + c.d2 / 2;
    const std::complex<double> turned =
        std::complex<double>(x[a], x[b]) * std::polar(1.0, direction * freqs.get(position * c.d2 + a));
    x[a] = turned.real();
    x[b] = turned.imag();
  }
  return x;
}

struct Place {
  bool used;
  size_t position;
};

/* Sequence position of token `t` of the buffer. */
Place place_of(const Case &c, size_t t, const std::vector<int> &starts) {
  if (c.format == NVTE_THD) {
    for (size_t b = 0; b < kBatch; ++b) {
      if (static_cast<int>(t) >= kOffsets[b] && static_cast<int>(t) < kOffsets[b + 1]) return {true, t - kOffsets[b] + starts[b]};
    }
    return {false, 0};
  }
  const size_t s = c.format == NVTE_SBHD ? t / kBatch : t % kLength, b = c.format == NVTE_SBHD ? t % kBatch : t / kLength;
  return {true, s + starts[b]};
}

}  // namespace

TEST(both_directions) {
  for (const Case &c : cases()) {
    for (const bool with_starts : {false, true}) {
      const size_t tokens = c.format == NVTE_THD ? 10 : kBatch * kLength;
      /* The input is the middle third of a wider row, as in a packed projection. */
      Array wide({tokens, 3, kHeads, c.d}, c.dtype), y({tokens, kHeads, c.d}, c.dtype), dx({tokens, kHeads, c.d}, c.dtype),
          freqs({kPositions, 1, 1, c.d2}, kNVTEFloat32), starts({kBatch}, kNVTEInt32), cu({kBatch + 1}, kNVTEInt32);
      Unset none, x;
      wide.normal();
      y.fill(9);
      set_angles(freqs, c);
      std::vector<int> start_values = with_starts ? std::vector<int>{2, 0, 7} : std::vector<int>(kBatch, 0);
      for (size_t b = 0; b < kBatch; ++b) starts.set(b, start_values[b]);
      for (size_t b = 0; b <= kBatch; ++b) cu.set(b, kOffsets[b]);
      const size_t width = 3 * kHeads * c.d, third = kHeads * c.d;
      const NVTEBasicTensor view{element(wide.data(), static_cast<int64_t>(third), c.dtype), c.dtype, make_shape({tokens, kHeads, c.d})};
      nvte_set_tensor_param_v2(x, kNVTERowwiseData, &view, sizeof(view));
      const int token_stride = static_cast<int>(c.format == NVTE_SBHD ? width * kBatch : width);
      const int batch_stride = static_cast<int>(c.format == NVTE_THD ? 0 : c.format == NVTE_SBHD ? width : width * kLength);
      const NVTETensor cu_handle = c.format == NVTE_THD ? cu.handle() : none.handle(), starts_handle = with_starts ? starts.handle() : none.handle();
      const int d = static_cast<int>(c.d), d2 = static_cast<int>(c.d2);
      nvte_fused_rope_forward(x, cu_handle, freqs, starts_handle, y, c.format, c.interleaved, 1, 0, kLength, kBatch, kHeads, d, d2,
                              token_stride, batch_stride, d, 1, nullptr);
      nvte_fused_rope_backward(x, cu_handle, freqs, starts_handle, dx, c.format, c.interleaved, 1, 0, kLength, kBatch, kHeads, d, d2,
                               token_stride, batch_stride, d, 1, nullptr);
      for (size_t t = 0; t < tokens; ++t) {
        const Place place = place_of(c, t, start_values);
        for (size_t head = 0; head < kHeads; ++head) {
          std::vector<double> in(c.d), forward(c.d), backward(c.d);
          for (size_t i = 0; i < c.d; ++i) {
            in[i] = wide.get(t * width + third + head * c.d + i);
            forward[i] = y.get((t * kHeads + head) * c.d + i);
            backward[i] = dx.get((t * kHeads + head) * c.d + i);
          }
          if (!place.used) {
            EXPECT(forward == std::vector<double>(c.d, 9)); /* behind the last sequence: left alone */
            continue;
          }
          EXPECT_CLOSE(forward, rotate(c, in, freqs, place.position, 1), check::rounding(c.dtype), 1e-6);
          EXPECT_CLOSE(backward, rotate(c, in, freqs, place.position, -1), check::rounding(c.dtype), 1e-6);
        }
      }
    }
  }
}

TEST(element_stride) {
  const Case c{NVTE_BSHD, false, kNVTEFloat32, 4, 4};
  Array x({1, 4, 1, 4}, kNVTEFloat32), y({1, 4, 1, 4}, kNVTEFloat32), freqs({kPositions, 1, 1, 4}, kNVTEFloat32);
  Unset none;
  x.normal();
  set_angles(freqs, c);
  /* Tokens and elements swapped. */
  nvte_fused_rope_forward(x, none, freqs, none, y, NVTE_BSHD, false, 1, 0, 4, 1, 1, 4, 4, 1, 16, 4, 4, nullptr);
  for (size_t t = 0; t < 4; ++t) {
    const std::vector<double> in = {x.get(t), x.get(4 + t), x.get(8 + t), x.get(12 + t)};
    EXPECT_CLOSE((std::vector<double>{y.get(4 * t), y.get(4 * t + 1), y.get(4 * t + 2), y.get(4 * t + 3)}), rotate(c, in, freqs, t, 1), 1e-6, 1e-6);
  }
}

/* Two ranks together hold what one rank holds: rank r has chunks r and 3 - r of four. */
TEST(context_parallel_ranks_take_their_chunks) {
  const Case c{NVTE_BSHD, true, kNVTEFloat32, 4, 4};
  Array x({1, 4, 1, 4}, kNVTEFloat32), y({1, 4, 1, 4}, kNVTEFloat32), freqs({kPositions, 1, 1, 4}, kNVTEFloat32);
  Unset none;
  x.normal();
  set_angles(freqs, c);
  for (const int rank : {0, 1}) {
    nvte_fused_rope_forward(x, none, freqs, none, y, NVTE_BSHD, true, 2, rank, 4, 1, 1, 4, 4, 4, 16, 4, 1, nullptr);
    const size_t positions[] = {rank == 0 ? 0u : 2u, rank == 0 ? 1u : 3u, rank == 0 ? 6u : 4u, rank == 0 ? 7u : 5u};
    for (size_t t = 0; t < 4; ++t) {
      const std::vector<double> in = {x.get(4 * t), x.get(4 * t + 1), x.get(4 * t + 2), x.get(4 * t + 3)};
      EXPECT_CLOSE((std::vector<double>{y.get(4 * t), y.get(4 * t + 1), y.get(4 * t + 2), y.get(4 * t + 3)}), rotate(c, in, freqs, positions[t], 1), 1e-6, 1e-6);
    }
  }
}

TEST(refusals) {
  Array x({10, 1, 4}, kNVTEBFloat16), y({10, 1, 4}, kNVTEBFloat16), floats({10, 1, 4}, kNVTEFloat32), freqs({5, 1, 1, 4}, kNVTEFloat32),
      cu({3}, kNVTEInt32), longer({4}, kNVTEInt32), half_freqs({5, 1, 1, 4}, kNVTEBFloat16), odd_freqs({7}, kNVTEFloat32);
  Unset none;
  const auto call = [&](NVTETensor input, NVTETensor offsets, NVTETensor angles, NVTETensor output, NVTE_QKV_Format format, int d, int d2, int s) {
    nvte_fused_rope_forward(input, offsets, angles, none, output, format, false, 1, 0, s, 2, 1, d, d2, 4, 0, 4, 1, nullptr);
  };
  const auto set = [&](int a, int b, int c) { cu.set(0, a), cu.set(1, b), cu.set(2, c); };
  set(0, 5, 10);
  EXPECT_THROWS(call(x, none, freqs, y, NVTE_THD, 4, 4, 5), "nvte_fused_rope_forward", "\"cu_seqlens\"", "THD");
  EXPECT_THROWS(call(x, longer, freqs, y, NVTE_THD, 4, 4, 5), "\"cu_seqlens\"", "3 elements", "4");
  EXPECT_THROWS(call(x, cu, freqs, y, NVTE_BSHD, 4, 4, 5), "\"cu_seqlens\"", "unset");
  EXPECT_THROWS(call(x, cu, freqs, floats, NVTE_THD, 4, 4, 5), "\"output\"", "BFloat16", "Float32");
  EXPECT_THROWS(call(x, cu, half_freqs, y, NVTE_THD, 4, 4, 5), "\"freqs\"", "Float32", "BFloat16");
  EXPECT_THROWS(call(x, cu, odd_freqs, y, NVTE_THD, 4, 4, 5), "\"freqs\"", "d2 = 4", "(7)");
  EXPECT_THROWS(call(x, cu, freqs, y, NVTE_THD, 4, 3, 5), "\"d2\"", "even", "3");
  EXPECT_THROWS(call(x, cu, freqs, y, NVTE_THD, 2, 4, 5), "\"d\"", "got 2");
  EXPECT_THROWS(call(x, none, freqs, y, NVTE_BSHD, 4, 4, 7), "\"output\"", "56 elements", "40");
  EXPECT_THROWS(call(x, cu, freqs, y, static_cast<NVTE_QKV_Format>(5), 4, 4, 5), "\"qkv_format\"", "got 5");
  set(0, 4, 10);
  EXPECT_THROWS(call(x, cu, freqs, y, NVTE_THD, 4, 4, 6), "\"freqs\"", "5 positions", "position 5");
  set(0, 6, 5);
  EXPECT_THROWS(call(x, cu, freqs, y, NVTE_THD, 4, 4, 5), "\"cu_seqlens\"", "decrease", "from 6 to 5");
  set(0, 5, 11);
  EXPECT_THROWS(call(x, cu, freqs, y, NVTE_THD, 4, 4, 5), "\"cu_seqlens\"", "10", "to 11");
  EXPECT_THROWS(nvte_fused_rope_backward(x, none, freqs, none, y, NVTE_BSHD, false, 2, 2, 5, 2, 1, 4, 4, 4, 0, 4, 1, nullptr),
                "nvte_fused_rope_backward", "\"cp_rank\"", "got 2");
  set(0, 5, 10);
  EXPECT_THROWS(nvte_fused_rope_forward(x, cu, freqs, none, y, NVTE_THD, false, 1, 0, 5, 2, 1, 4, 4, 5, 0, 4, 1, nullptr),
                "\"input\" (with its strides) must be 98 bytes of device memory, got a pointer to 80 bytes");
  EXPECT_THROWS(nvte_fused_rope_backward(x, cu, freqs, none, y, NVTE_THD, false, 1, 0, 5, 2, 1, 4, 4, 4, 0, 4, -1, nullptr),
                "The strides 4 (s or t), 0 (b), 4 (h) and -1 (d) lead to element -3 of \"output_grads\"; expected 0 or more");
}

/* Layouts for FlashAttention, element by element; refusals. */
#include "check.h"

using namespace chagres::reference;
using check::Array;

namespace {

constexpr size_t kLength = 3, kBatch = 2, kHeads = 2, kDim = 128;

/* Element of [S, B, h, 3, 128], and of one of three [B, S, h, 128]. */
size_t joint(size_t s, size_t b, size_t head, size_t part, size_t d) {
  return (((s * kBatch + b) * kHeads + head) * 3 + part) * kDim + d;
}
size_t own(size_t b, size_t s, size_t head, size_t d) { return ((b * kLength + s) * kHeads + head) * kDim + d; }

template <class F>
void for_elements(const F &f) {
  for (size_t s = 0; s < kLength; ++s) {
    for (size_t b = 0; b < kBatch; ++b) {
      for (size_t head = 0; head < kHeads; ++head) {
        for (size_t part = 0; part < 3; ++part) {
          for (size_t d = 0; d < kDim; ++d) f(s, b, head, part, d);
        }
      }
    }
  }
}

}  // namespace

TEST(prepared_forward_and_backward) {
  const size_t each = kBatch * kLength * kHeads * kDim;
  Array qkvi({kLength, kBatch, kHeads, 3 * kDim}, kNVTEBFloat16), qkv({3, kBatch, kLength, kHeads, kDim}, kNVTEBFloat16),
      q({kBatch, kLength, kHeads, kDim}, kNVTEBFloat16), k({kBatch, kLength, kHeads, kDim}, kNVTEBFloat16),
      v({kBatch, kLength, kHeads, kDim}, kNVTEBFloat16), back({kLength, kBatch, kHeads, 3 * kDim}, kNVTEBFloat16);
  qkvi.normal();
  check::Unset queries;
  const NVTEBasicTensor first{qkvi.data(), kNVTEBFloat16, make_shape({kLength, kBatch, kHeads, kDim})};
  nvte_set_tensor_param_v2(queries, kNVTERowwiseData, &first, sizeof(first));
  nvte_prepare_flash_attn_fwd(queries, qkv, nullptr);
  for_elements([&](size_t s, size_t b, size_t head, size_t part, size_t d) {
    EXPECT(qkv.get(part * each + own(b, s, head, d)) == qkvi.get(joint(s, b, head, part, d)));
  });
  for (size_t i = 0; i < each; ++i) q.set(i, qkv.get(i)), k.set(i, qkv.get(each + i)), v.set(i, qkv.get(2 * each + i));
  nvte_prepare_flash_attn_bwd(q, k, v, back, nullptr);
  EXPECT(back.values() == qkvi.values());
}

TEST(transposed_and_padded) {
  for (const NVTE_QKV_Format format : {NVTE_BSHD, NVTE_SBHD}) {
    const bool batch_first = format == NVTE_BSHD;
    std::vector<std::unique_ptr<Array>> arrays;
    std::vector<NVTETensor> inputs, outputs;
    const std::vector<std::vector<size_t>> sizes = {{3, 2, 4, 4}, {5, 1, 2, 6}, {1, 3, 3, 4}}; /* S, H, D, D of output */
    for (const auto &n : sizes) {
      arrays.push_back(std::make_unique<Array>(batch_first ? std::vector<size_t>{2, n[0], n[1], n[2]}
                                                           : std::vector<size_t>{n[0], 2, n[1], n[2]}, kNVTEFloat16));
      arrays.back()->normal();
      inputs.push_back(*arrays.back());
      arrays.push_back(std::make_unique<Array>(std::vector<size_t>{2, n[1], n[0], n[3]}, kNVTEFloat16));
      arrays.back()->fill(9);
      outputs.push_back(*arrays.back());
    }
    nvte_multi_tensor_transpose_to_bhsd(inputs.data(), outputs.data(), inputs.size(), format, nullptr);
    for (size_t i = 0; i < sizes.size(); ++i) {
      const size_t S = sizes[i][0], H = sizes[i][1], D = sizes[i][2], wide = sizes[i][3];
      for (size_t at = 0; at < 2 * H * S * wide; ++at) {
        const size_t d = at % wide, s = at / wide % S, h = at / wide / S % H, b = at / wide / S / H;
        const size_t token = batch_first ? b * S + s : s * 2 + b;
        EXPECT(arrays[2 * i + 1]->get(at) == (d < D ? arrays[2 * i]->get((token * H + h) * D + d) : 0));
      }
    }
  }
}

TEST(last_dimension_padded) {
  Array x({3, 5}, kNVTEBFloat16), y({3, 8}, kNVTEBFloat16), same({2, 3}, kNVTEByte), copy({2, 3}, kNVTEByte);
  x.normal(), y.fill(9);
  for (size_t i = 0; i < 6; ++i) same.set(i, static_cast<double>(i + 1));
  NVTETensor inputs[] = {x, same}, outputs[] = {y, copy};
  nvte_multi_tensor_pad_last_dim(inputs, outputs, 2, nullptr);
  for (size_t i = 0; i < 24; ++i) EXPECT(y.get(i) == (i % 8 < 5 ? x.get(i / 8 * 5 + i % 8) : 0));
  EXPECT(copy.values() == same.values());
}

TEST(refusals) {
  Array x({2, 3, 1, 128}, kNVTEBFloat16), y({2, 3, 1, 64}, kNVTEBFloat16), joint_x({3, 3, 2, 1, 128}, kNVTEBFloat16),
      matrix({2, 5}, kNVTEBFloat16), odd({2, 7}, kNVTEBFloat16), narrow({2, 4}, kNVTEBFloat16), other({3, 2, 1, 128}, kNVTEBFloat16);
  EXPECT_THROWS(nvte_prepare_flash_attn_fwd(y, joint_x, nullptr), "nvte_prepare_flash_attn_fwd", "\"qkvi\"", "128", "(2, 3, 1, 64)");
  EXPECT_THROWS(nvte_prepare_flash_attn_fwd(x, joint_x, nullptr), "\"qkvi\" (with keys and values)", "4608 bytes", "1536 bytes");
  EXPECT_THROWS(nvte_prepare_flash_attn_fwd(x, x, nullptr), "\"qkv\"", "2304 elements", "768");
  EXPECT_THROWS(nvte_prepare_flash_attn_bwd(x, other, x, joint_x, nullptr), "\"k\"", "(2, 3, 1, 128)", "(3, 2, 1, 128)");
  NVTETensor inputs[] = {matrix}, wide[] = {odd}, less[] = {narrow}, four[] = {x}, wrong[] = {y};
  EXPECT_THROWS(nvte_multi_tensor_pad_last_dim(inputs, wide, 1, nullptr), "\"outputs\"", "multiple of 4 bytes", "14");
  EXPECT_THROWS(nvte_multi_tensor_pad_last_dim(inputs, less, 1, nullptr), "\"outputs\"", "at least its columns", "(2, 4)");
  EXPECT_THROWS(nvte_multi_tensor_transpose_to_bhsd(four, wrong, 1, NVTE_BSHD, nullptr), "\"outputs\"", "[B, S, H, D]");
  EXPECT_THROWS(nvte_multi_tensor_transpose_to_bhsd(four, wrong, 1, NVTE_THD, nullptr), "\"original_format\"", "BSHD or SBHD");
}

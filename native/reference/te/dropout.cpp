/*
 * Dropout with Transformer Engine's random bits: the same seed and offset drop the same elements on every provider.
 *
 * A chunk of 16 elements draws four words from Philox with the chunk's number as subsequence. Each of their 16 bytes
 * decides one element: dropped when the byte is below floor(256 p). Kept elements are multiplied by 1 / (1 - p). The
 * mask has one bit an element, least significant first, 1 for kept. Forward also reads FP8 with one scale.
 */
#include <cmath>

#include "te/recorded.h"
#include "te/quantized.h"

namespace chagres::reference {

namespace {

constexpr int64_t kChunk = 16;

/* The element of a chunk that byte `byte` of word `word` decides: the low halves of the words fill the odd bits. */
constexpr int element_of(int word, int byte) { return 2 * word + (byte & 1) * 8 + (byte < 2 ? 1 : 0); }

/* Four words from any offset, counted in words: an offset that is no multiple of four straddles two counters. */
Philox4 draw(uint64_t seed, uint64_t subsequence, uint64_t offset) {
  const Philox4 first = philox(seed, subsequence, offset / 4);
  const int skipped = static_cast<int>(offset % 4);
  if (skipped == 0) return first;
  const Philox4 second = philox(seed, subsequence, offset / 4 + 1);
  Philox4 words;
  for (int i = 0; i < 4; ++i) words.word[i] = i + skipped < 4 ? first.word[i + skipped] : second.word[i + skipped - 4];
  return words;
}

uint16_t keep_bits(uint64_t seed, uint64_t chunk, uint64_t offset, uint32_t threshold) {
  const Philox4 words = draw(seed, chunk, offset);
  uint32_t kept = 0;
  for (int word = 0; word < 4; ++word) {
    for (int byte = 0; byte < 4; ++byte) {
      const uint32_t value = (words.word[word] >> (8 * byte)) & 0xffu;
      if (value >= threshold) kept |= 1u << element_of(word, byte);
    }
  }
  return static_cast<uint16_t>(kept);
}

/* run[i] = kept ? run[i] * scale : 0 */
void apply(float *run, const uint8_t *mask, int64_t count, float scale) {
  for (int64_t i = 0; i < count; ++i) run[i] = (mask[i / 8] >> (i % 8)) & 1 ? run[i] * scale : 0.0f;
}

void check_probability(float probability, const Caller &caller) {
  if (!(probability >= 0 && probability < 1)) {
    fail(caller, text("Argument \"dropout_probability\" must be at least 0 and below 1, got ", probability));
  }
}

void check_elements(const View &x, const char *argument, const View &y, const char *other, const View &mask,
                    const Caller &caller) {
  if (!is_fp8(x.dtype)) expect_dtype(y, other, x.dtype, caller);
  expect_count(y, other, x.count(), caller);
  if (x.count() % kChunk != 0) {
    fail(caller, text("Tensor \"", argument, "\" must have a multiple of ", kChunk, " elements, got ", x.count(),
                      " of shape ", shape_text(x.shape)));
  }
  if (mask.count() * static_cast<int64_t>(element_bits(mask.dtype)) != x.count()) {
    fail(caller, text("Tensor \"mask\" must have one bit an element, ", x.count() / 8, " bytes, got ",
                      dtype_name(mask.dtype), " ", shape_text(mask.shape)));
  }
}

constexpr std::initializer_list<NVTEDType> kHalves = {kNVTEFloat16, kNVTEBFloat16};
constexpr std::initializer_list<NVTEDType> kInputs = {kNVTEFloat16, kNVTEBFloat16, kNVTEFloat8E4M3, kNVTEFloat8E5M2};
constexpr std::initializer_list<NVTEDType> kMasks = {kNVTEByte, kNVTEInt16, kNVTEInt32, kNVTEInt64};

}  // namespace

}  // namespace chagres::reference

using namespace chagres::reference;

void nvte_dropout_fwd(NVTETensor input, NVTETensor output, NVTETensor mask, NVTETensor rng_state,
                      float dropout_probability, cudaStream_t stream) {
  if (recorded(nvte_dropout_fwd, input, output, mask, rng_state, dropout_probability, stream)) return;
  const Caller caller = Caller::here();
  const View x = view(input, "input", kInputs);
  const float inverse = is_fp8(x.dtype) ? fp8_input(input, "input").scale_inv : 1.0f;
  const View y = view(output, "output", kHalves);
  const View bits = view(mask, "mask", kMasks);
  const View state = view(rng_state, "rng_state", {kNVTEInt64});
  check_elements(x, "input", y, "output", bits, caller);
  expect_count(state, "rng_state", 2);
  check_probability(dropout_probability, caller);
  const auto *rng = static_cast<const int64_t *>(state.data);
  const auto seed = static_cast<uint64_t>(rng[0]), offset = static_cast<uint64_t>(rng[1]);
  const auto threshold = static_cast<uint32_t>(std::floor(dropout_probability * 256));
  const float scale = 1 / (1 - dropout_probability);
  auto *kept = static_cast<uint8_t *>(bits.data);
  parallel_for(0, x.count(), kPointwisePiece, [&](int64_t first, int64_t last) {
    Scratch run(last - first);
    for (int64_t i = first; i < last; i += kChunk) {
      const uint16_t chunk = keep_bits(seed, static_cast<uint64_t>(i / kChunk), offset, threshold);
      std::memcpy(kept + i / 8, &chunk, sizeof(chunk));
    }
    to_float(run.data(), element(x.data, first, x.dtype), x.dtype, last - first);
    if (is_fp8(x.dtype)) rescale(run.data(), inverse, last - first);
    apply(run.data(), kept + first / 8, last - first, scale);
    from_float(element(y.data, first, y.dtype), run.data(), y.dtype, last - first);
  });
}

void nvte_dropout_bwd(NVTETensor grad_output, NVTETensor mask, NVTETensor grad_input, float dropout_probability,
                      cudaStream_t stream) {
  if (recorded(nvte_dropout_bwd, grad_output, mask, grad_input, dropout_probability, stream)) return;
  const Caller caller = Caller::here();
  const View dy = view(grad_output, "grad_output", kHalves);
  const View bits = view(mask, "mask", kMasks);
  const View dx = view(grad_input, "grad_input", kHalves);
  check_elements(dy, "grad_output", dx, "grad_input", bits, caller);
  check_probability(dropout_probability, caller);
  const float scale = 1 / (1 - dropout_probability);
  const auto *kept = static_cast<const uint8_t *>(bits.data);
  parallel_for(0, dy.count(), kPointwisePiece, [&](int64_t first, int64_t last) {
    Scratch run(last - first);
    to_float(run.data(), element(dy.data, first, dy.dtype), dy.dtype, last - first);
    apply(run.data(), kept + first / 8, last - first, scale);
    from_float(element(dx.data, first, dx.dtype), run.data(), dx.dtype, last - first);
  });
}

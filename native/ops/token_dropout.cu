/* Token dropout: the factor of each token, by the share of its sequence that is masked. */
#include <token_layout.cuh>

namespace {

/* The place of a sequence, of which the first `length` tokens are its own. */
struct Place {
  int64_t start, size, length;
};

__device__ inline int64_t within(int64_t value, int64_t low, int64_t high) {
  return value < low ? low : value > high ? high : value;
}

__device__ inline Place place_of(int64_t b, const int32_t *cu_seqlens, const int32_t *starts, int layout, int64_t tokens,
                                 int64_t sequences) {
  Place place = {0, divide(tokens, sequences), cu_seqlens[b + 1] - cu_seqlens[b]};
  if (layout == kThd) {
    /* The last place goes on to the last token, and the first one begins with the first: those of no sequence get 0, too. */
    place.start = within(starts[b], 0, tokens);
    place.size = (b + 1 < sequences ? within(starts[b + 1], place.start, tokens) : tokens) - place.start;
  } else if (layout == kBshd) {
    place.start = b * place.size;
  } else {
    place.start = b;
  }
  place.length = within(place.length, 0, place.size);
  return place;
}

}  // namespace

/* A warp owns a sequence. */
KERNEL(token_dropout_factors, const int32_t *ids, const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded,
       float *factors, float kept, int32_t mask, int layout, int64_t tokens, int64_t sequences) {
  const int32_t *const starts = cu_seqlens_padded != nullptr ? cu_seqlens_padded : cu_seqlens;
  const int64_t step = layout == kSbhd ? sequences : 1;
  const int64_t lane = threadIdx.x % 32;
  for (int64_t b = thread_index() / 32; b < sequences; b += thread_total() / 32) {
    const Place place = place_of(b, cu_seqlens, starts, layout, tokens, sequences);
    int32_t masked = 0;
    for (int64_t i = lane; i < place.length; i += 32) masked += ids[place.start + i * step] == mask ? 1 : 0;
    for (int distance = 16; distance > 0; distance /= 2) masked += __shfl_xor_sync(0xffffffffu, masked, distance);
    const float factor =
        kept * (static_cast<float>(place.length) / static_cast<float>(place.length - masked)); /* unused where all are masked */
    for (int64_t i = lane; i < place.size; i += 32) {
      const int64_t t = place.start + i * step;
      factors[t] = i < place.length && ids[t] != mask ? factor : 0.0f;
    }
    if (layout == kThd && b == 0)
      for (int64_t t = lane; t < place.start; t += 32) factors[t] = 0.0f;
  }
}

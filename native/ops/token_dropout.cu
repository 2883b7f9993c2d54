/* Token dropout: the factor of each token, by the share of its sequence that is masked. */
#include <token_layout.cuh>

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

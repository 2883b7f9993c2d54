/* To which sequence a token belongs, by OpsTokenLayout. */
#pragma once

#include <common.cuh>

enum Layout { kThd = 0, kBshd = 1, kSbhd = 2 };

/* The packed sequence of token t, -1 when it belongs to none. */
__device__ inline int64_t packed_sequence_of(int64_t t, const int32_t *cu_seqlens, int64_t sequences) {
  if (t < cu_seqlens[0] || t >= cu_seqlens[sequences]) return -1;
  int64_t low = 0, high = sequences; /* cu_seqlens[low] <= t < cu_seqlens[high] */
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    if (cu_seqlens[middle] <= t) low = middle;
    else high = middle;
  }
  return low;
}

/* The sequence of token t, -1 when it belongs to none. */
__device__ inline int64_t sequence_of(int64_t t, const int32_t *cu_seqlens, int layout, int64_t extent) {
  if (layout == kThd) return packed_sequence_of(t, cu_seqlens, extent);
  const int64_t quotient = divide(t, extent);
  return layout == kBshd ? quotient : t - quotient * extent;
}

/* Position of token t in its sequence, -1 when it belongs to none. */
__device__ inline int64_t position_of(int64_t t, const int32_t *cu_seqlens, int layout, int64_t extent) {
  if (layout == kThd) {
    const int64_t sequence = packed_sequence_of(t, cu_seqlens, extent);
    return sequence < 0 ? -1 : t - cu_seqlens[sequence];
  }
  const int64_t quotient = divide(t, extent);
  return layout == kSbhd ? quotient : t - quotient * extent;
}

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

/* To which sequence a token belongs, by OpsTokenLayout. */
#ifndef CHAGRES_REFERENCE_TOKEN_LAYOUT_H
#define CHAGRES_REFERENCE_TOKEN_LAYOUT_H

#include <algorithm>
#include <cstdint>

#include "chagres/ops.h"

namespace chagres::reference {

struct TokenLayout {
  const int32_t *cu_seqlens;
  int layout;
  int64_t extent;

  /* The sequence of token t, -1 when it belongs to none. */
  int64_t sequence(int64_t t) const {
    if (layout == OPS_BSHD) return t / extent;
    if (layout == OPS_SBHD) return t % extent;
    if (t < cu_seqlens[0] || t >= cu_seqlens[extent]) return -1;
    /* From the second on: there is one before it, whatever the numbers are. */
    return std::upper_bound(cu_seqlens + 1, cu_seqlens + extent + 1, t) - 1 - cu_seqlens;
  }

  /* Position of token t in its sequence, -1 when it belongs to none. */
  int64_t position(int64_t t) const {
    if (layout == OPS_BSHD) return t % extent;
    if (layout == OPS_SBHD) return t / extent;
    const int64_t packed = sequence(t);
    return packed < 0 ? -1 : t - cu_seqlens[packed];
  }
};

/* Where the tokens of each sequence are, of which the first `length` are its own. */
struct TokenPlaces {
  const int32_t *cu_seqlens;
  const int32_t *starts;
  int layout;
  int64_t tokens, count;

  int64_t start(int64_t b) const {
    if (layout == OPS_THD) return b == count ? tokens : std::clamp<int64_t>(starts[b], 0, tokens);
    return layout == OPS_BSHD ? b * (tokens / count) : b;
  }
  int64_t size(int64_t b) const {
    return layout == OPS_THD ? std::max<int64_t>(start(b + 1) - start(b), 0) : tokens / count;
  }
  int64_t length(int64_t b) const {
    return std::clamp<int64_t>(int64_t{cu_seqlens[b + 1]} - cu_seqlens[b], 0, size(b));
  }
  int64_t step() const { return layout == OPS_SBHD ? count : 1; }
};

}  // namespace chagres::reference

#endif /* CHAGRES_REFERENCE_TOKEN_LAYOUT_H */

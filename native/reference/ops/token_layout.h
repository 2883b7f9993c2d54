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

}  // namespace chagres::reference

#endif /* CHAGRES_REFERENCE_TOKEN_LAYOUT_H */

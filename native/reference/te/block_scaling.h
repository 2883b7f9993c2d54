/* FP8 with a scale for each block: 1 x 128 (scaling mode 2) or 128 x 128 elements (3). */
#ifndef CHAGRES_BLOCK_SCALING_H
#define CHAGRES_BLOCK_SCALING_H

#include "te/config.h"

namespace chagres::reference {

constexpr int64_t kBlock = 128;

inline int64_t blocks_of(int64_t count) { return (count + kBlock - 1) / kBlock; }

/* Quantizes to an output of scaling mode 2 or 3, rowwise, columnwise or both. */
void quantize_blocks(NVTETensor input, NVTETensor output, const QuantizationConfig &config, const Caller &caller);

}  // namespace chagres::reference

#endif /* CHAGRES_BLOCK_SCALING_H */

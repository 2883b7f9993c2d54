/* Operations that map each element on its own: run over floats, piece by piece, with the largest magnitude kept. */
#ifndef CHAGRES_POINTWISE_H
#define CHAGRES_POINTWISE_H

#include "runtime/reference.h"

namespace chagres::reference {

constexpr int64_t kPointwisePiece = 8192; /* elements; a multiple of eight, so that pieces begin at whole mask bytes */

/* max(|values[i]|), ignoring NaN as the GPU's fmax does. */
float largest_magnitude(const float *values, int64_t count);

/* Calls run(first, count) for pieces of 0 .. count - 1; run answers the largest magnitude that it wrote. The largest of
 * all goes into the amax cell of `output`. */
template <class Run>
void pointwise(int64_t count, NVTETensor output, const char *argument, Run &&run, Caller caller = Caller::here()) {
  const int64_t pieces = (count + kPointwisePiece - 1) / kPointwisePiece;
  Scratch largest(pieces);
  parallel_for(0, count, kPointwisePiece,
               [&](int64_t first, int64_t last) { largest[first / kPointwisePiece] = run(first, last - first); });
  merge_amax(tensor(output, argument, caller), largest_magnitude(largest.data(), pieces));
}

}  // namespace chagres::reference

#endif /* CHAGRES_POINTWISE_H */

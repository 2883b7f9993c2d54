/* The rotation of one head, which the functions of rope.cpp and qkv_rope.cpp share. */
#ifndef CHAGRES_ROPE_H
#define CHAGRES_ROPE_H

#include <cstdint>

namespace chagres::reference {

/* Of a head's d elements the first d2 are rotated. Pairs are i and i + d2/2, or, interleaved, 2i and 2i + 1. */
struct Rotation {
  int64_t d, d2;
  bool interleaved, backward;
};

/* cosines and sines are those of d2 angles. */
void find_angles(const Rotation &rotation, const float *angles, float *cosines, float *sines);

void rotate_head(const Rotation &rotation, const float *head, const float *cosines, const float *sines, float *rotated);

}  // namespace chagres::reference

#endif /* CHAGRES_ROPE_H */

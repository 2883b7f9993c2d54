/* How cross-entropy adds up the losses of pieces of the tokens, whether a rank has all classes or a part of them. */
#ifndef CHAGRES_REFERENCE_PARTIAL_LOSS_H
#define CHAGRES_REFERENCE_PARTIAL_LOSS_H

#include <cstdint>
#include <vector>

namespace chagres::reference {

struct PartialLoss {
  float sum = 0;
  int32_t counted = 0;
};

/* Adds the pieces up in their order, so that the sum has the same bits on every machine. Without a divisor the
 * loss is divided by the tokens counted. */
inline void store_loss(const std::vector<PartialLoss> &partials, const int32_t *divisor, float *loss,
                       int32_t *counted) {
  PartialLoss total;
  for (const PartialLoss &partial : partials) {
    total.sum += partial.sum;
    total.counted += partial.counted;
  }
  const int32_t divided_by = divisor != nullptr ? *divisor : total.counted;
  *loss = divided_by > 0 ? total.sum / static_cast<float>(divided_by) : 0.0f;
  *counted = total.counted;
}

}  // namespace chagres::reference

#endif /* CHAGRES_REFERENCE_PARTIAL_LOSS_H */

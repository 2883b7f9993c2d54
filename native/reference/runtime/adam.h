/* Adam's arithmetic, which Transformer Engine's optimizers and ops_adam share. */
#ifndef CHAGRES_ADAM_H
#define CHAGRES_ADAM_H

#include <cstdint>

namespace chagres::reference {

struct AdamStep {
  float lr, beta1, beta2, epsilon, decay;
  float correction1, correction2;
  bool decoupled; /* weight decay */
};

/* correction = 1 - beta^number, both 1 without bias correction. */
void set_corrections(AdamStep &step, int number, bool bias_correction);

/* Moves parameters and moments of `count` elements. */
void adam_run(float *g, float *p, float *m, float *v, const AdamStep &by, int64_t count);

/* A float as BFloat16 rounded to nearest (ties away from zero) and the low 16 bits; a negative remainder says that the
 * upper half was rounded up. */
float join(uint16_t upper, int16_t remainder);
void split(float value, uint16_t *upper, int16_t *remainder);

}  // namespace chagres::reference

#endif /* CHAGRES_ADAM_H */

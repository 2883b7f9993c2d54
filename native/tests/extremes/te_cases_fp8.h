/* FP8 tensors for cases, and the cases of functions that quantize. */
#ifndef CHAGRES_TESTS_EXTREMES_TE_CASES_FP8_H
#define CHAGRES_TESTS_EXTREMES_TE_CASES_FP8_H

#include "cases.h"

namespace extremes {

/* FP8 [rows, columns] in scaling mode 0 with scale 1, scale_inv, amax, and the transpose. */
NVTETensor fp8(Fixture &f, size_t rows, size_t columns, NVTEDType dtype = kNVTEFloat8E4M3);
/* The same with rowwise data alone. */
NVTETensor fp8_rowwise(Fixture &f, size_t rows, size_t columns, NVTEDType dtype = kNVTEFloat8E4M3);

std::vector<Case> fp8_cases();

}  // namespace extremes

#endif /* CHAGRES_TESTS_EXTREMES_TE_CASES_FP8_H */

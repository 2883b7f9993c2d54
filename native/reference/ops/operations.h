/*
 * What the reference's operations (the other files of this folder) share. Arguments are checked by the functions that
 * the GPU library uses, so equal mistakes give equal texts. `stream` is not looked at: work is done when a call returns.
 */
#ifndef CHAGRES_REFERENCE_OPERATIONS_H
#define CHAGRES_REFERENCE_OPERATIONS_H

#include <algorithm>
#include <exception>

#include "../../ops/checks.h"
#include "runtime/reference.h"

namespace chagres::reference {

/* Runs an operation whose arguments are good. An exception, such as memory that is gone, becomes a status. */
template <class Body>
int run(const char *function, Body &&body) {
  try {
    body();
    return OPS_SUCCESS;
  } catch (const std::exception &exception) {
    return ops::fail(OPS_CUDA_ERROR, std::string(function) + ": " + exception.what());
  }
}

/* Elements that an elementwise operation converts to float at a time; whole bytes of a mask. */
constexpr int64_t kBlock = 1024;

/* Calls f(first, count) for runs of at most kBlock elements, in parallel. */
template <class F>
void for_each_block(int64_t count, F &&f) {
  parallel_for(0, count, 32 * kBlock, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; i += kBlock) f(i, std::min(kBlock, last - i));
  });
}

void add_floats(float *sum, const float *x, int64_t count); /* sum[i] += x[i] */
void scale_floats(float *y, const float *x, float factor, int64_t count); /* y[i] = factor * x[i]; y may be x */

/* out = beta * out + sum; beta 0 does not read out. */
void finish_sum(float *out, float beta, const float *sum, int64_t count);

constexpr int64_t kColumns = 64; /* columns of a piece: every sum is one thread's, in the order of the rows */

inline NVTEDType as_dtype(int dtype) { return static_cast<NVTEDType>(dtype); }

}  // namespace chagres::reference

#endif /* CHAGRES_REFERENCE_OPERATIONS_H */

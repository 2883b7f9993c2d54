/* Rows moved by index: embedding forward is a gather from the table. */
#ifndef CHAGRES_OPS_ROWS_H
#define CHAGRES_OPS_ROWS_H

#include <cstdint>

#include "error.h"

namespace chagres::ops {

/* y[r, :] = x[index[r] - first, :], zero where there is no such row of x; rows of `columns` elements of element_size
 * bytes. */
int gather_rows(const char *function, const void *x, const int32_t *index, void *y, int64_t first, int64_t rows,
                int64_t columns, int64_t x_rows, int64_t element_size, OpsStream stream);

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_ROWS_H */

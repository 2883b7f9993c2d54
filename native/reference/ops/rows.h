/* Rows moved by index: embedding forward is a gather from the table. */
#ifndef CHAGRES_REFERENCE_ROWS_H
#define CHAGRES_REFERENCE_ROWS_H

#include <cstdint>

namespace chagres::reference {

/* y[r, :] = x[index[r] - first, :] for rows of row_bytes; zeros where x has no such row. */
void gather(const void *x, const int32_t *index, void *y, int64_t first, int64_t rows, int64_t row_bytes,
            int64_t x_rows);

}  // namespace chagres::reference

#endif /* CHAGRES_REFERENCE_ROWS_H */

/* Cases of a gather: gather_rows, and embedding_forward, which gathers from a table. */
#ifndef CHAGRES_TESTS_OPS_ROWS_H
#define CHAGRES_TESTS_OPS_ROWS_H

#include <functional>

#include "harness/report.h"

namespace chagres::tests {

struct Rows {
  int dtype;
  int64_t rows; /* of the index */
  int64_t columns;
  int64_t indexed; /* rows of the tensor that the index points into */
  int64_t offset;
};

/* All shapes, in each dtype that moves (2 is INT32), aligned and not. */
std::vector<Rows> row_shapes(const Session &session);

/* `first` is the index of row 0 of x. */
using Gather = std::function<int(const void *x, const int32_t *index, void *y)>;
void gather_case(Session &session, const char *operation, const Rows &shape, int32_t first, const Gather &gather);

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_ROWS_H */

/*
 * Gather and scatter of rows: bits are moved, so the kernels know units of 16, 4 or 2 bytes and no dtype. A warp moves
 * a segment of up to kSegment units of one row: all its loads are under way before the first store.
 */
#include <common.cuh>

constexpr int kLoads = 4;
constexpr int kSegment = 32 * kLoads;

/* Copies units first .. first + kSegment - 1 (below `units`) of a row; a null source means zeros. */
template <class Unit>
__device__ inline void copy_segment(const Unit *source, Unit *destination, int64_t first, int64_t units) {
  Unit unit[kLoads] = {};
  for (int j = 0; j < kLoads; ++j) {
    const int64_t i = first + 32 * j;
    if (source != nullptr && i < units) unit[j] = source[i];
  }
  for (int j = 0; j < kLoads; ++j) {
    const int64_t i = first + 32 * j;
    if (i < units) destination[i] = unit[j];
  }
}

/* units: of one row. first_row: the index of row 0 of the indexed matrix. */
template <class Unit, bool Gather>
__device__ void copy_rows(const Unit *x, const int32_t *index, Unit *y, int64_t first_row, int64_t rows, int64_t units,
                          int64_t indexed) {
  const int64_t segments = (units + kSegment - 1) / kSegment;
  const int64_t lane = threadIdx.x % 32;
  for (int64_t item = thread_index() / 32; item < rows * segments; item += thread_total() / 32) {
    const int64_t row = divide(item, segments);
    const int64_t first = (item - row * segments) * kSegment + lane;
    const int64_t other = index[row] - first_row;
    const bool inside = other >= 0 && other < indexed;
    if (Gather) copy_segment(inside ? x + other * units : nullptr, y + row * units, first, units);
    else if (inside) copy_segment(x + row * units, y + other * units, first, units);
  }
}

struct alignas(16) Unit16 {
  uint32_t value[4];
};

#define ROWS(size, Unit)                                                                                      \
  KERNEL(gather_rows_##size, const Unit *x, const int32_t *index, Unit *y, int64_t first_row, int64_t rows,   \
         int64_t units, int64_t indexed) {                                                                    \
    copy_rows<Unit, true>(x, index, y, first_row, rows, units, indexed);                                      \
  }                                                                                                           \
  KERNEL(scatter_rows_##size, const Unit *x, const int32_t *index, Unit *y, int64_t first_row, int64_t rows,  \
         int64_t units, int64_t indexed) {                                                                    \
    copy_rows<Unit, false>(x, index, y, first_row, rows, units, indexed);                                     \
  }

ROWS(16, Unit16)
ROWS(4, uint32_t)
ROWS(2, uint16_t)

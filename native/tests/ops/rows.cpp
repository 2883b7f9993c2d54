/* gather_rows, scatter_rows: bits are moved, so NaN and everything else comes through unchanged. */
#include "rows.h"

#include <algorithm>
#include <climits>
#include <numeric>

namespace chagres::tests {

namespace {

std::string rows_text(const Rows &shape) {
  return shape_text(
      {{"rows", shape.rows}, {"columns", shape.columns}, {"indexed", shape.indexed}, {"offset", shape.offset}});
}

Bytes random_bytes(Session &session, int64_t size) {
  Bytes bytes(static_cast<size_t>(size));
  for (unsigned char &byte : bytes) byte = static_cast<unsigned char>(session.random.below(256));
  return bytes;
}

/* Mostly inside 0..bound-1, with numbers outside on both sides. */
std::vector<int32_t> random_index(Session &session, int64_t count, int64_t bound) {
  const int32_t outside[] = {-1, static_cast<int32_t>(bound), INT_MIN, INT_MAX};
  std::vector<int32_t> index(static_cast<size_t>(count));
  for (int32_t &i : index)
    i = bound == 0 || session.random.below(8) == 0 ? outside[session.random.below(4)]
                                                   : static_cast<int32_t>(session.random.below(bound));
  return index;
}

/* dtype of the pattern: int32 moves as float32 does. */
int64_t size_of(int dtype) { return dtype == 2 ? 4 : format_of(dtype).size; }

void scatter_case(Session &session, const Rows &shape) {
  Case test(session, "scatter_rows", shape.dtype == 2 ? 4 : shape.dtype, rows_text(shape));
  const int64_t size = size_of(shape.dtype), row_bytes = shape.columns * size;
  const auto offset = static_cast<size_t>(shape.offset * size);
  const Bytes x = random_bytes(session, shape.rows * row_bytes);
  const Bytes y = random_bytes(session, shape.indexed * row_bytes);
  /* Distinct: a shuffled run of numbers, those past the end outside. */
  std::vector<int32_t> index(static_cast<size_t>(shape.rows));
  std::iota(index.begin(), index.end(), -2);
  for (size_t i = index.size(); i > 1; --i)
    std::swap(index[i - 1], index[static_cast<size_t>(session.random.below(static_cast<int64_t>(i)))]);
  Bytes wanted = y;
  for (size_t r = 0; r < index.size(); ++r)
    if (index[r] >= 0 && index[r] < shape.indexed)
      std::copy_n(x.begin() + static_cast<int64_t>(r) * row_bytes, row_bytes, wanted.begin() + index[r] * row_bytes);
  Buffer in(session.memory, x, offset), ids = session.raw(index), out(session.memory, y, offset);
  if (test.run({&out}, [&] {
        return session.ops.scatter_rows(in.data(), ids.data<int32_t>(), out.data(), shape.rows, shape.columns,
                                        shape.indexed, shape.dtype, session.memory.stream());
      }))
    test.equal_bytes(test.output(0), wanted, "y");
}

}  // namespace

void gather_case(Session &session, const char *operation, const Rows &shape, int32_t first, const Gather &gather) {
  Case test(session, operation, shape.dtype == 2 ? 4 : shape.dtype, rows_text(shape));
  const int64_t size = size_of(shape.dtype), row_bytes = shape.columns * size;
  const auto offset = static_cast<size_t>(shape.offset * size);
  const Bytes x = random_bytes(session, shape.indexed * row_bytes);
  std::vector<int32_t> index = random_index(session, shape.rows, shape.indexed);
  Bytes wanted(static_cast<size_t>(shape.rows * row_bytes), 0);
  for (size_t r = 0; r < index.size(); ++r)
    if (index[r] >= 0 && index[r] < shape.indexed)
      std::copy_n(x.begin() + index[r] * row_bytes, row_bytes, wanted.begin() + static_cast<int64_t>(r) * row_bytes);
  for (int32_t &i : index) i = i > INT_MAX - first ? i : i + first; /* INT_MAX stays outside */
  Buffer in(session.memory, x, offset), ids = session.raw(index);
  Buffer out(session.memory, Bytes(wanted.size(), 0x77), offset);
  /* An address of no rows is not looked at. */
  const void *const source = shape.indexed == 0 ? reinterpret_cast<const void *>(uintptr_t{0x1001}) : in.data();
  if (test.run({&out}, [&] { return gather(source, ids.data<int32_t>(), out.data()); }))
    test.equal_bytes(test.output(0), wanted, "y");
}

std::vector<Rows> row_shapes(const Session &session) {
  const int64_t shapes[][3] = {{0, 8, 5},    {1, 1, 1},        {5, 0, 3},      {3, 7, 0},     {9, 8, 33},
                               {64, 40, 64}, {65, 2, 9},       {33, 130, 7},   {17, 320, 64}, {4, 1032, 5},
                               {2, 4111, 3}, {40000, 320, 64}, {20, 50001, 20}};
  std::vector<Rows> all;
  for (const auto &[rows, columns, indexed] : shapes) {
    if (rows * columns > 100000 && !session.large) continue;
    for (int64_t offset : {0, 1, 2})
      for (int dtype : {2, 4, 5, 6}) all.push_back({dtype, rows, columns, indexed, offset});
  }
  return all;
}

void rows_cases(Session &session) {
  for (const Rows &shape : row_shapes(session)) {
    gather_case(session, "gather_rows", shape, 0, [&](const void *x, const int32_t *index, void *y) {
      return session.ops.gather_rows(x, index, y, shape.rows, shape.columns, shape.indexed, shape.dtype,
                                     session.memory.stream());
    });
    scatter_case(session, shape);
  }
}

}  // namespace chagres::tests

/* Matrix products C[…, M, N] = A[…, M, K] B[…, K, N]; the dimensions before are those of C, or divide them: as heads of
 * attention do that share keys. */
#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

constexpr int kA = 1520, kB = 1521, kC = 1522, kDescription = 1523, kM = 1525, kN = 1526, kK = 1527, kComputeType = 1500,
              kPadding = 1503;

Dims batch_of(const Dims &dims) { return Dims(dims.begin(), dims.end() - 2); }

/* Which of the matrices `of` belongs to one of C's: neighbours share it where `of` has fewer. */
int64_t shared(const Dims &of, const Dims &batch, int64_t matrix) {
  int64_t at = 0, stride = 1;
  for (size_t d = batch.size(); d-- > 0; matrix /= batch[d]) {
    at += matrix % batch[d] * of[d] / batch[d] * stride;
    stride *= of[d];
  }
  return at;
}

/* The first rows, columns or products of a matrix that are computed: all of them, or as many as a tensor says. */
int64_t limit(Evaluation &values, const Descriptor &operation, int name, int64_t matrix, int64_t all) {
  if (!operation.has(name)) return all;
  const Array &numbers = values.read(operation, name);
  const int64_t at = shared(batch_of(numbers.dims), batch_of(operation.spec(kC).dims), matrix);
  const double number = numbers.values[static_cast<size_t>(at)];
  return number > 0 ? static_cast<int64_t>(std::min(number, static_cast<double>(all))) : 0;
}

}  // namespace

void check_matmul(const Descriptor &operation) {
  const TensorSpec &a = operation.spec(kA), &b = operation.spec(kB), &c = operation.spec(kC);
  const size_t rank = c.dims.size();
  CHAGRES_REQUIRE(rank >= 2 && a.dims.size() == rank && b.dims.size() == rank, kShapeMismatch,
                  "CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: expected tensors of as many dimensions, at least 2, got ",
                  a.text(), ", ", b.text(), ", ", c.text());
  CHAGRES_REQUIRE(a.dims[rank - 2] == c.dims[rank - 2] && b.dims[rank - 1] == c.dims[rank - 1] &&
                      a.dims[rank - 1] == b.dims[rank - 2] && divides(batch_of(a.dims), batch_of(c.dims)) &&
                      divides(batch_of(b.dims), batch_of(c.dims)),
                  kShapeMismatch,
                  "CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR: expected A[…, M, K], B[…, K, N], C[…, M, N], got ",
                  a.text(), ", ", b.text(), ", ", c.text());
  for (const int name : {kM, kN, kK}) {
    if (!operation.has(name)) continue;
    const Dims &dims = operation.spec(name).dims;
    CHAGRES_REQUIRE(dims.size() == rank && dims[rank - 2] == 1 && dims[rank - 1] == 1 &&
                        broadcasts(batch_of(dims), batch_of(c.dims)),
                    kShapeMismatch, attribute(kMatmulOperation, name).text, ": expected [batch, …, 1, 1], got ",
                    operation.spec(name).text());
  }
}

void compute_matmul(Evaluation &values, const Descriptor &operation) {
  const Array &a = values.read(operation, kA), &b = values.read(operation, kB);
  const int math = static_cast<int>(operation.descriptor(kDescription).integer(kComputeType));
  Array c(operation.spec(kC).dims);
  const size_t rank = c.dims.size();
  const int64_t m = c.dims[rank - 2], n = c.dims[rank - 1], k = a.dims[rank - 1];
  const Dims batch = batch_of(c.dims);
  std::vector<std::array<int64_t, 2>> starts(static_cast<size_t>(count_of(batch)));
  for (size_t i = 0; i < starts.size(); ++i)
    starts[i] = {shared(batch_of(a.dims), batch, static_cast<int64_t>(i)),
                 shared(batch_of(b.dims), batch, static_cast<int64_t>(i))};
  std::vector<std::array<int64_t, 3>> limits(starts.size());
  for (size_t i = 0; i < limits.size(); ++i) {
    const int64_t matrix = static_cast<int64_t>(i);
    limits[i] = {limit(values, operation, kM, matrix, m), limit(values, operation, kN, matrix, n),
                 limit(values, operation, kK, matrix, k)};
  }
  const double padding = operation.descriptor(kDescription).number(kPadding, 0);
  parallel_for(0, static_cast<int64_t>(starts.size()) * m, grain_for(n * k), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const std::array<int64_t, 2> &start = starts[static_cast<size_t>(row / m)];
      const double *left = a.values.data() + (start[0] * m + row % m) * k;
      const std::array<int64_t, 3> &most = limits[static_cast<size_t>(row / m)];
      const int64_t columns = row % m < most[0] ? most[1] : 0;
      double *sum = c.values.data() + row * n;
      for (int64_t i = 0; i < most[2]; ++i) {
        const double *right = b.values.data() + (start[1] * k + i) * n;
        for (int64_t j = 0; j < columns; ++j) sum[j] += left[i] * right[j];
      }
      for (int64_t j = 0; j < n; ++j) sum[j] = rounded(j < columns ? sum[j] : padding, math);
    }
  });
  values.write(operation, kC, std::move(c));
}

}  // namespace chagres::reference::cudnn

/* Keys and values that lie in pages: a page table says which block of a container holds which tokens of a sequence. */
#include <cmath>

#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

namespace {

constexpr int kContainer = 1950, kY = 1951, kLengths = 1952, kTable = 1953;

/* Whether y is [B, H, D, S], as the keys of a product are. */
bool is_transposed(const TensorSpec &y) { return y.strides[2] == 1 && y.strides[3] != 1; }

}  // namespace

void check_paged_cache_load(const Descriptor &operation) {
  const TensorSpec &container = operation.spec(kContainer), &y = operation.spec(kY), &table = operation.spec(kTable);
  CHAGRES_REQUIRE(container.dims.size() == 4 && y.dims.size() == 4 && table.dims.size() == 4, kShapeMismatch,
                  "CUDNN_BACKEND_OPERATION_PAGED_CACHE_LOAD_DESCRIPTOR: expected tensors of 4 dimensions, got ",
                  container.text(), ", ", y.text(), ", ", table.text());
  const bool transposed = is_transposed(y);
  const int64_t tokens = y.dims[transposed ? 3 : 2], width = y.dims[transposed ? 2 : 3];
  CHAGRES_REQUIRE(container.dims[1] == y.dims[1] && container.dims[3] == width, kShapeMismatch,
                  "CUDNN_ATTR_OPERATION_PAGED_CACHE_LOAD_CONTAINER_DESC: expected [blocks, H, tokens, D] of ",
                  y.text(), ", got ", container.text());
  require_dims(operation, kTable,
               {y.dims[0], 1, (tokens + container.dims[2] - 1) / container.dims[2], 1});
  require_dims(operation, kLengths, {y.dims[0], 1, 1, 1});
}

void compute_paged_cache_load(Evaluation &values, const Descriptor &operation) {
  const Array &container = values.read(operation, kContainer), &table = values.read(operation, kTable);
  const Array &lengths = values.read(operation, kLengths);
  const TensorSpec &spec = operation.spec(kY);
  const bool transposed = is_transposed(spec);
  const int64_t tokens = spec.dims[transposed ? 3 : 2], width = spec.dims[transposed ? 2 : 3];
  const int64_t heads = spec.dims[1], size = container.dims[2], pages = table.dims[2];
  Array y(spec.dims);
  for (int64_t b = 0; b < spec.dims[0]; ++b) {
    const double length = lengths.values[static_cast<size_t>(b)];
    for (int64_t s = 0; s < tokens && static_cast<double>(s) < length; ++s) {
      const double page = table.values[static_cast<size_t>(b * pages + s / size)];
      /* The descriptors were checked when there were no numbers: a page that is none reads as 0. */
      if (!(page >= 0 && page < static_cast<double>(container.dims[0]))) continue;
      for (int64_t h = 0; h < heads; ++h)
        for (int64_t d = 0; d < width; ++d) {
          const int64_t from = ((static_cast<int64_t>(page) * heads + h) * size + s % size) * width + d;
          const int64_t to = transposed ? ((b * heads + h) * width + d) * tokens + s
                                        : ((b * heads + h) * tokens + s) * width + d;
          y.values[static_cast<size_t>(to)] = container.values[static_cast<size_t>(from)];
        }
    }
  }
  values.write(operation, kY, std::move(y));
}

}  // namespace chagres::reference::cudnn

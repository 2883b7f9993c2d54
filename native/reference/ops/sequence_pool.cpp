/* Operations: pooling by sequence. */
#include <cmath>

#include "cuda/capture.h"
#include "ops/operations.h"
#include "ops/token_layout.h"

using namespace chagres;
using namespace chagres::reference;

namespace {

/* The rows of a sequence's tokens, one after the other, into `value`; `at`: the token of the largest. */
void pool_sequence(const TokenPlaces &places, int64_t b, const void *x, NVTEDType type, int pool, int64_t columns,
                   float *value, int32_t *at) {
  const int64_t all = places.length(b), length = pool == OPS_POOL_FIRST ? std::min<int64_t>(all, 1) : all;
  std::fill(value, value + columns, 0.0f);
  if (at != nullptr) std::fill(at, at + columns, -1);
  Scratch row(columns);
  for (int64_t i = 0; i < length; ++i) {
    const int64_t t = places.start(b) + i * places.step();
    to_float(row.data(), element(x, t * columns, type), type, columns);
    if (at == nullptr) {
      add_floats(value, row.data(), columns);
      continue;
    }
    for (int64_t c = 0; c < columns; ++c) {
      const float next = row.data()[c];
      if (at[c] >= 0 && !(next > value[c]) && !(std::isnan(next) && !std::isnan(value[c]))) continue;
      value[c] = next;
      at[c] = static_cast<int32_t>(t);
    }
  }
  if (pool == OPS_POOL_MEAN && length > 0)
    for (int64_t c = 0; c < columns; ++c) value[c] /= static_cast<float>(length);
}

}  // namespace

int ops_sequence_pool_forward(const void *x, const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded, void *y,
                              int32_t *argument, int pool, int layout, int64_t tokens, int64_t sequences, int64_t columns,
                              int dtype, OpsStream stream) try {
  const char *function = "ops_sequence_pool_forward";
  const int status = ops::check_sequence_pool(function, "x", x, "y", y, argument, cu_seqlens, cu_seqlens_padded, pool,
                                              layout, tokens, sequences, columns, dtype);
  if (status != OPS_SUCCESS || columns == 0) return status;
  if (recorded_by_value(ops_sequence_pool_forward, x, cu_seqlens, cu_seqlens_padded, y, argument, pool, layout, tokens,
                        sequences, columns, dtype, stream)) return OPS_SUCCESS;
  const NVTEDType type = as_dtype(dtype);
  const TokenPlaces places = {cu_seqlens, cu_seqlens_padded == nullptr ? cu_seqlens : cu_seqlens_padded, layout, tokens,
                              sequences};
  return run(function, [&] {
    parallel_for(0, sequences, 1, [&](int64_t begin, int64_t end) {
      Scratch value(columns);
      for (int64_t b = begin; b < end; ++b) {
        pool_sequence(places, b, x, type, pool, columns, value.data(),
                      argument == nullptr ? nullptr : argument + b * columns);
        from_float(element(y, b * columns, type), value.data(), type, columns);
      }
    });
  });
} OPS_CATCH

int ops_sequence_pool_backward(const void *dy, const int32_t *cu_seqlens, const int32_t *cu_seqlens_padded,
                               const int32_t *argument, void *dx, int pool, int layout, int64_t tokens, int64_t sequences,
                               int64_t columns, int dtype, OpsStream stream) try {
  const char *function = "ops_sequence_pool_backward";
  const int status = ops::check_sequence_pool(function, "dx", dx, "dy", dy, argument, cu_seqlens, cu_seqlens_padded, pool,
                                              layout, tokens, sequences, columns, dtype);
  if (status != OPS_SUCCESS || tokens == 0 || columns == 0) return status;
  if (recorded_by_value(ops_sequence_pool_backward, dy, cu_seqlens, cu_seqlens_padded, argument, dx, pool, layout, tokens,
                        sequences, columns, dtype, stream)) return OPS_SUCCESS;
  const NVTEDType type = as_dtype(dtype);
  const TokenPlaces places = {cu_seqlens, cu_seqlens_padded == nullptr ? cu_seqlens : cu_seqlens_padded, layout, tokens,
                              sequences};
  return run(function, [&] {
    std::memset(dx, 0, static_cast<size_t>(tokens * columns * ops::size_of(dtype)));
    parallel_for(0, sequences, 1, [&](int64_t begin, int64_t end) {
      Scratch gradient(columns), row(columns);
      for (int64_t b = begin; b < end; ++b) {
        const int64_t all = places.length(b), length = pool == OPS_POOL_FIRST ? std::min<int64_t>(all, 1) : all;
        to_float(gradient.data(), element(dy, b * columns, type), type, columns);
        for (int64_t i = 0; i < length; ++i) {
          const int64_t t = places.start(b) + i * places.step();
          for (int64_t c = 0; c < columns; ++c) {
            const bool taken = pool != OPS_POOL_MAX || argument[b * columns + c] == t;
            row.data()[c] = !taken ? 0.0f : gradient.data()[c] / (pool == OPS_POOL_MEAN ? static_cast<float>(all) : 1.0f);
          }
          from_float(element(dx, t * columns, type), row.data(), type, columns);
        }
      }
    });
  });
} OPS_CATCH

/* Reductions over ranks, element by element, in rank order. */
#include <algorithm>
#include <cmath>
#include <cstdint>

#include "nccl/world.h"

namespace chagres::reference {

namespace {

template <class T>
T combine(int op, T a, T b) {
  if constexpr (std::is_floating_point<T>::value) {
    switch (op) {
      case kNcclProd:
        return a * b;
      case kNcclMax:
        return std::fmax(a, b);
      case kNcclMin:
        return std::fmin(a, b);
      default:
        return a + b;
    }
  } else {
    /* Overflow wraps, as on the GPU: computed without sign, and wide enough that no promotion brings it back. */
    switch (op) {
      case kNcclProd:
        return static_cast<T>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
      case kNcclMax:
        return std::max(a, b);
      case kNcclMin:
        return std::min(a, b);
      default:
        return static_cast<T>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
    }
  }
}

template <class T>
void reduce_typed(int op, const std::vector<const void *> &sources, int64_t first, int64_t count, T *out) {
  std::memcpy(out, static_cast<const T *>(sources[0]) + first, static_cast<size_t>(count) * sizeof(T));
  for (size_t rank = 1; rank < sources.size(); ++rank) {
    const T *source = static_cast<const T *>(sources[rank]) + first;
    for (int64_t i = 0; i < count; ++i) out[i] = combine(op, out[i], source[i]);
  }
  if (op != kNcclAvg) return;
  const auto ranks = static_cast<T>(sources.size());
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(out[i] / ranks);
}

void reduce_halves(NVTEDType dtype, int op, const std::vector<const void *> &sources, int64_t first, int64_t count,
                   void *out) {
  Scratch sum(count), values(count);
  to_float(sum.data(), element(sources[0], first, dtype), dtype, count);
  for (size_t rank = 1; rank < sources.size(); ++rank) {
    to_float(values.data(), element(sources[rank], first, dtype), dtype, count);
    for (int64_t i = 0; i < count; ++i) sum[i] = combine(op, sum[i], values[i]);
  }
  const auto ranks = static_cast<float>(sources.size());
  for (int64_t i = 0; op == kNcclAvg && i < count; ++i) sum[i] /= ranks;
  from_float(out, sum.data(), dtype, count);
}

}  // namespace

size_t nccl_dtype_size(int dtype) {
  static constexpr size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[dtype];
}

bool is_reducible(int dtype) { return dtype != kNcclFloat8e4m3 && dtype != kNcclFloat8e5m2; }

void reduce_elements(int dtype, int op, const std::vector<const void *> &sources, int64_t first, int64_t count,
                     void *out) {
  switch (dtype) {
    case kNcclInt8:
      return reduce_typed(op, sources, first, count, static_cast<int8_t *>(out));
    case kNcclUint8:
      return reduce_typed(op, sources, first, count, static_cast<uint8_t *>(out));
    case kNcclInt32:
      return reduce_typed(op, sources, first, count, static_cast<int32_t *>(out));
    case kNcclUint32:
      return reduce_typed(op, sources, first, count, static_cast<uint32_t *>(out));
    case kNcclInt64:
      return reduce_typed(op, sources, first, count, static_cast<int64_t *>(out));
    case kNcclUint64:
      return reduce_typed(op, sources, first, count, static_cast<uint64_t *>(out));
    case kNcclFloat32:
      return reduce_typed(op, sources, first, count, static_cast<float *>(out));
    case kNcclFloat64:
      return reduce_typed(op, sources, first, count, static_cast<double *>(out));
    case kNcclFloat16:
      return reduce_halves(kNVTEFloat16, op, sources, first, count, out);
    case kNcclBfloat16:
      return reduce_halves(kNVTEBFloat16, op, sources, first, count, out);
    default:
      return;
  }
}

}  // namespace chagres::reference

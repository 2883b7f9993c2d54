/* Reductions over ranks, element by element, in rank order. */
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "nccl/nccl.h"

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

/* What each rank's values are multiplied by before they are added. NCCL averages floats this way, by 1 / N rounded to
 * their type: the values' sum may overflow where their average does not. */
float multiplier(int op, const Source &source, size_t ranks, NVTEDType dtype) {
  Factor bytes = source.factor;
  if (op == kNcclAvg) store(bytes.bytes, 0, dtype, static_cast<float>(1.0 / static_cast<double>(ranks)));
  return load(bytes.bytes, 0, dtype);
}

template <class T>
T multiplier(int op, const Source &source, size_t ranks) {
  if (op == kNcclAvg) return static_cast<T>(1.0 / static_cast<double>(ranks));
  T factor;
  std::memcpy(&factor, source.factor.bytes, sizeof(T));
  return factor;
}

/* Whether the operation multiplies before it adds. */
bool multiplies(int op, bool floats) { return op == kNcclPreMulSum || (op == kNcclAvg && floats); }

template <class T>
void reduce_typed(int op, const std::vector<Source> &sources, int64_t first, int64_t count, T *out) {
  constexpr bool kFloats = std::is_floating_point<T>::value;
  for (size_t rank = 0; rank < sources.size(); ++rank) {
    const T *source = static_cast<const T *>(sources[rank].values) + first;
    const bool multiplied = multiplies(op, kFloats);
    const T factor = multiplied ? multiplier<T>(op, sources[rank], sources.size()) : T{1};
    for (int64_t i = 0; i < count; ++i) {
      const T value = multiplied ? combine<T>(kNcclProd, source[i], factor) : source[i];
      out[i] = rank == 0 ? value : combine(op, out[i], value);
    }
  }
  if (op != kNcclAvg || kFloats) return;
  /* Wide: the number of ranks may not fit into T. */
  using Wide = std::conditional_t<std::is_signed<T>::value, int64_t, uint64_t>;
  const auto ranks = static_cast<Wide>(sources.size());
  for (int64_t i = 0; i < count; ++i) out[i] = static_cast<T>(static_cast<Wide>(out[i]) / ranks);
}

/* Floats of 16 or 8 bits. */
void reduce_short_floats(NVTEDType dtype, int op, const std::vector<Source> &sources, int64_t first, int64_t count,
                         void *out) {
  Scratch sum(count), values(count);
  for (size_t rank = 0; rank < sources.size(); ++rank) {
    Scratch &into = rank == 0 ? sum : values;
    to_float(into.data(), element(sources[rank].values, first, dtype), dtype, count);
    if (multiplies(op, true)) {
      const float factor = multiplier(op, sources[rank], sources.size(), dtype);
      for (int64_t i = 0; i < count; ++i) into[i] *= factor;
    }
    for (int64_t i = 0; rank > 0 && i < count; ++i) sum[i] = combine(op, sum[i], values[i]);
  }
  from_float(out, sum.data(), dtype, count);
}

}  // namespace

size_t nccl_dtype_size(int dtype) {
  static constexpr size_t sizes[] = {1, 1, 4, 4, 8, 8, 2, 4, 8, 2, 1, 1};
  return sizes[dtype];
}

void reduce_elements(int dtype, int op, const std::vector<Source> &sources, int64_t first, int64_t count,
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
      return reduce_short_floats(kNVTEFloat16, op, sources, first, count, out);
    case kNcclBfloat16:
      return reduce_short_floats(kNVTEBFloat16, op, sources, first, count, out);
    case kNcclFloat8e4m3:
      return reduce_short_floats(kNVTEFloat8E4M3, op, sources, first, count, out);
    case kNcclFloat8e5m2:
      return reduce_short_floats(kNVTEFloat8E5M2, op, sources, first, count, out);
    default:
      return;
  }
}

}  // namespace chagres::reference

using namespace chagres::reference;

CHAGRES_EXPORT ncclResult_t ncclRedOpCreatePreMulSum(int *op, const void *scalar, int dtype, int residence,
                                                     const void *handle) try {
  constexpr const char *kFunction = "ncclRedOpCreatePreMulSum";
  Comm *comm = comms().find(handle);
  if (comm == nullptr) return refuse(kNcclInvalidArgument, kFunction, ": argument \"comm\" is no living communicator");
  const Outcome ready = check_ready(*comm);
  if (ready.code != kNcclSuccess) return refuse(ready.code, kFunction, ": ", ready.text);
  if (op == nullptr || scalar == nullptr) {
    return refuse(kNcclInvalidArgument, kFunction, ": argument \"", op == nullptr ? "op" : "scalar", "\" is NULL");
  }
  if (dtype < 0 || dtype >= kNcclDtypes) {
    return refuse(kNcclInvalidArgument, kFunction, ": argument \"datatype\" must be 0 to ", kNcclDtypes - 1, ", got ", dtype);
  }
  const bool on_device = residence == kNcclScalarDevice;
  if (!on_device && residence != kNcclScalarHostImmediate) {
    return refuse(kNcclInvalidArgument, kFunction, ": argument \"residence\" must be 0 or 1, got ", residence);
  }
  if (on_device && accessible_bytes(scalar) < nccl_dtype_size(dtype)) {
    return refuse(kNcclInvalidArgument, kFunction, ": argument \"scalar\" must be device memory");
  }
  PreMulSum sum{dtype, {}, on_device ? scalar : nullptr};
  if (!on_device) std::memcpy(sum.factor.bytes, scalar, nccl_dtype_size(dtype));
  comm->ops.emplace(comm->next_op, sum);
  *op = comm->next_op++;
  return kNcclSuccess;
} CHAGRES_NCCL_CATCH

CHAGRES_EXPORT ncclResult_t ncclRedOpDestroy(int op, const void *handle) try {
  Comm *comm = comms().find(handle);
  if (comm == nullptr) {
    return refuse(kNcclInvalidArgument, "ncclRedOpDestroy: argument \"comm\" is no living communicator");
  }
  if (comm->ops.erase(op) == 0) {
    return refuse(kNcclInvalidArgument, "ncclRedOpDestroy: argument \"op\" is no operation that was made for this "
                                        "communicator and lives, got ", op);
  }
  return kNcclSuccess;
} CHAGRES_NCCL_CATCH

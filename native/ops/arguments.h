/*
 * Checks of arguments, shared by both libraries that export ops.h: equal mistakes give equal texts. The first mistake
 * stands: "ops_add: count is -1; expected 0 or more".
 */
#ifndef CHAGRES_OPS_ARGUMENTS_H
#define CHAGRES_OPS_ARGUMENTS_H

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <initializer_list>

#include "error.h"

namespace chagres::ops {

/* The values of NVTEDType that operations take. */
enum DType { kInt32 = 2, kFloat32 = 4, kFloat16 = 5, kBFloat16 = 6 };

/* Bytes of an element; 0 for a dtype that no operation takes. */
inline int64_t size_of(int dtype) {
  if (dtype == kInt32 || dtype == kFloat32) return 4;
  return dtype == kFloat16 || dtype == kBFloat16 ? 2 : 0;
}

inline int64_t divide_up(int64_t a, int64_t b) { return a / b + (a % b != 0); }

/* The product of sizes in bytes; the largest number where it is larger. */
inline int64_t bytes_of(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product)) return INT64_MAX;
  return product;
}

/* Bytes of device memory from the address on, as far as this library can tell: the one for GPUs cannot and says
 * INT64_MAX, for there a wrong pointer ends the CUDA context; on the CPU it would end the process. */
int64_t known_bytes(const void *address);

inline bool overflows(std::initializer_list<int64_t> factors) {
  int64_t product = 1;
  for (int64_t factor : factors)
    if (__builtin_mul_overflow(product, factor, &product)) return true;
  return false;
}

class Arguments {
 public:
  explicit Arguments(const char *function) : function_(function) {}

  /* What is wrong about an argument itself comes before what is wrong about the memory that it points to. */
  int status() const { return wrong() || shortage_.empty() ? status_ : fail(OPS_INVALID_ARGUMENT, shortage_); }
  bool wrong() const { return status_ != OPS_SUCCESS; }

  Arguments &float_dtype(const char *name, int value) {
    if (value >= kFloat32 && value <= kBFloat16) return *this;
    return refuse(name, format("%d", value), "4 (float32), 5 (float16) or 6 (bfloat16)");
  }

  Arguments &dtype(const char *name, int value) {
    if (size_of(value) != 0) return *this;
    return refuse(name, format("%d", value), "2 (int32), 4 (float32), 5 (float16) or 6 (bfloat16)");
  }

  Arguments &between(const char *name, int64_t value, int64_t least, int64_t most = INT64_MAX) {
    if (value >= least && value <= most) return *this;
    const std::string expected =
        most == INT64_MAX ? format("%lld or more", static_cast<long long>(least))
                          : format("%lld to %lld", static_cast<long long>(least), static_cast<long long>(most));
    return refuse(name, format("%lld", static_cast<long long>(value)), expected);
  }

  /* The bytes of a tensor must be countable in 63 bits. */
  Arguments &countable(const char *names, std::initializer_list<int64_t> factors) {
    return overflows(factors) ? refuse(names, "too large", "a product of sizes in bytes below 2^63") : *this;
  }

  /* Not null, and a multiple of the element's size: a kernel that reads a misaligned pointer ends its CUDA context. Where
   * the library knows its memory, `bytes` of it must lie there. */
  Arguments &pointer(const char *name, const void *value, int64_t element_size, int64_t bytes = 0) {
    if (wrong()) return *this;
    if (value == nullptr) return refuse(name, "null", "a device pointer");
    if (reinterpret_cast<uintptr_t>(value) % static_cast<uintptr_t>(element_size) != 0)
      return refuse(name, format("%p", value), format("a multiple of %d bytes", static_cast<int>(element_size)));
    const int64_t known = bytes == 0 || !shortage_.empty() ? bytes : known_bytes(value);
    if (bytes > known)
      shortage_ = sentence(name, known == 0 ? "no device memory" : format("a pointer to %lld bytes", static_cast<long long>(known)),
                           format("%lld bytes of device memory", static_cast<long long>(bytes)));
    return *this;
  }

  Arguments &probability(const char *name, float value) {
    return value >= 0 && value < 1 ? *this : refuse(name, format("%g", value), "at least 0 and below 1");
  }

  /* "`function`: `name` is `actual`; expected `expected`", unless an earlier check failed. */
  Arguments &refuse(const char *name, const std::string &actual, const std::string &expected) {
    if (!wrong()) status_ = fail(OPS_INVALID_ARGUMENT, sentence(name, actual, expected));
    return *this;
  }

 private:
  std::string sentence(const char *name, const std::string &actual, const std::string &expected) const {
    return std::string(function_) + ": " + name + " is " + actual + "; expected " + expected;
  }

  const char *function_;
  int status_ = OPS_SUCCESS;
  std::string shortage_;
};

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_ARGUMENTS_H */

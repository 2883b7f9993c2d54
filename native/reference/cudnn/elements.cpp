/* Elements of the types that tensors of a graph may have, as double. */
#include <cmath>
#include <limits>

#include "cudnn/backend.h"
#include "runtime/fp8.h"

namespace chagres::reference::cudnn {

namespace {

template <class T>
T element(const void *data, int64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char *>(data) + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void put(void *data, int64_t index, T value) {
  std::memcpy(static_cast<char *>(data) + index * static_cast<int64_t>(sizeof(T)), &value, sizeof(T));
}

/* To the nearest whole number, ties to even, the largest and least for what lies beyond; NaN becomes 0. */
double whole(double value, double least, double most) {
  if (std::isnan(value)) return 0;
  return std::min(std::max(std::nearbyint(value), least), most);
}

/* Rounds to odd, so that rounding the float once more rounds the double correctly. */
float odd_float(double value) {
  const float near = static_cast<float>(value);
  if (std::isnan(value) || std::isinf(near) || static_cast<double>(near) == value) return near;
  const bool away = std::fabs(static_cast<double>(near)) > std::fabs(value);
  uint32_t bits = bit_cast<uint32_t>(near);
  if (away) --bits;
  return bit_cast<float>(bits | 1u);
}

/* The exponent of the next power of two that is not below, of those that a byte has; 255 for what is no number. */
uint8_t power_of_two(double value) {
  if (!(value >= 0) || std::isinf(value)) return 255;
  if (value == 0) return 0;
  int exponent = 0;
  const double half = std::frexp(value, &exponent);
  return static_cast<uint8_t>(std::clamp((half == 0.5 ? exponent - 1 : exponent) + 127, 0, 254));
}

}  // namespace

size_t data_type_size(int type) {
  switch (type) {
    case kDouble:
    case kInt64:
      return 8;
    case kFloat:
    case kInt32:
      return 4;
    case kHalf:
    case kBfloat16:
      return 2;
    case kInt8:
    case kUint8:
    case kBoolean:
    case kE4m3:
    case kE5m2:
    case kE8m0:
      return 1;
    default:
      return 0;
  }
}

const char *data_type_name(int type) {
  constexpr const char *names[] = {"FLOAT",        "DOUBLE",      "HALF",     "INT8",     "INT32",
                                   "INT8x4",       "UINT8",       "UINT8x4",  "INT8x32",  "BFLOAT16",
                                   "INT64",        "BOOLEAN",     "FP8_E4M3", "FP8_E5M2", "FAST_FLOAT_FOR_FP8",
                                   "FP8_E8M0",     "FP4_E2M1",    "INT4",     "UINT4",    "UINT32",
                                   "COMPLEX_FP32", "COMPLEX_FP64"};
  return type >= 0 && type < static_cast<int>(sizeof(names) / sizeof(names[0])) ? names[type] : "an unknown type";
}

double load_element(const void *data, int64_t index, int type) {
  switch (type) {
    case kFloat:
      return static_cast<double>(element<float>(data, index));
    case kDouble:
      return element<double>(data, index);
    case kHalf:
      return static_cast<double>(fp16_to_float(element<uint16_t>(data, index)));
    case kBfloat16:
      return static_cast<double>(bf16_to_float(element<uint16_t>(data, index)));
    case kInt8:
      return element<int8_t>(data, index);
    case kUint8:
      return element<uint8_t>(data, index);
    case kBoolean:
      return element<uint8_t>(data, index) != 0;
    case kInt32:
      return element<int32_t>(data, index);
    case kInt64:
      return static_cast<double>(element<int64_t>(data, index));
    case kE4m3:
      return static_cast<double>(e4m3_to_float(element<uint8_t>(data, index)));
    case kE5m2:
      return static_cast<double>(e5m2_to_float(element<uint8_t>(data, index)));
    case kE8m0: {
      const int exponent = element<uint8_t>(data, index);
      return exponent == 255 ? std::numeric_limits<double>::quiet_NaN() : std::ldexp(1.0, exponent - 127);
    }
    default:
      refuse(kUnsupportedDataType, data_type_name(type), " is not computed by the CPU reference");
  }
}

void store_element(void *data, int64_t index, int type, double value) {
  switch (type) {
    case kFloat:
      return put(data, index, static_cast<float>(value));
    case kDouble:
      return put(data, index, value);
    case kHalf:
      return put(data, index, float_to_fp16(odd_float(value)));
    case kBfloat16:
      return put(data, index, float_to_bf16(odd_float(value)));
    case kInt8:
      return put(data, index, static_cast<int8_t>(whole(value, -128, 127)));
    case kUint8:
      return put(data, index, static_cast<uint8_t>(whole(value, 0, 255)));
    case kBoolean:
      return put(data, index, static_cast<uint8_t>(value != 0));
    case kInt32:
      return put(data, index, static_cast<int32_t>(whole(value, -2147483648.0, 2147483647.0)));
    case kInt64:
      return put(data, index, static_cast<int64_t>(whole(value, -0x1p63, 0x1.fffffffffffffp62)));
    case kE4m3:
      return put(data, index, float_to_e4m3(odd_float(value)));
    case kE5m2:
      return put(data, index, float_to_e5m2(odd_float(value)));
    case kE8m0:
      return put(data, index, power_of_two(value));
    default:
      refuse(kUnsupportedDataType, data_type_name(type), " is not computed by the CPU reference");
  }
}

double rounded(double value, int type) {
  if (type == kFloat) return static_cast<double>(static_cast<float>(value));
  if (type == kDouble) return value;
  int64_t place = 0;
  store_element(&place, 0, type, value);
  return load_element(&place, 0, type);
}

}  // namespace chagres::reference::cudnn

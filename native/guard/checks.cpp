#include <cstdarg>
#include <cstdio>
#include <string>

#include "guard.hpp"
#include "text.hpp"

namespace chagres::guard {

bool Check::refuse(const char *argument, const char *format, ...) const {
  char reason[512];
  va_list values;
  va_start(values, format);
  std::vsnprintf(reason, sizeof(reason), format, values);
  va_end(values);
  store("te_%s: argument %s: %s", entries[function].name, argument, reason);
  return false;
}

bool Check::dead(const char *argument, Kind kind, const void *value) const {
  if (value == nullptr) return refuse(argument, "expected a live %s, got 0", name_of(kind));
  return refuse(argument, "expected a live %s, got %p, which te_ has not made or was destroyed", name_of(kind), value);
}

bool Check::null(const char *argument, const void *value) const {
  if (value == nullptr) return refuse(argument, "expected an address, got null");
  return refuse(argument, "expected an address, got %p, where no memory can be", value);
}

bool Check::not_a_stream(const char *argument, const void *value) const {
  return refuse(argument, "expected a CUDA stream, got %p", value);
}

bool Check::wild_count(const char *argument, std::uint64_t value) const {
  return refuse(argument, "expected a count up to %llu, got %llu", static_cast<unsigned long long>(largest_count),
                static_cast<unsigned long long>(value));
}

bool Check::too_small(const char *argument, std::int64_t value, std::int64_t least) const {
  return refuse(argument, "expected at least %lld, got %lld", static_cast<long long>(least),
                static_cast<long long>(value));
}

bool Check::too_large(const char *argument, std::uint64_t value, std::int64_t most) const {
  return refuse(argument, "expected at most %lld, got %llu", static_cast<long long>(most),
                static_cast<unsigned long long>(value));
}

bool Check::no_enumerator(const char *argument, const char *type, std::int64_t value) const {
  return refuse(argument, "expected a value of %s, got %lld", type, static_cast<long long>(value));
}

bool Check::handle_list(const char *argument, const NVTETensor *values, std::uint64_t count, bool or_none) const {
  if (count > largest_count) return wild_count(argument, count);
  if (!pointer(argument, values)) return false;
  for (std::uint64_t i = 0; i < count; ++i) {
    if ((or_none && values[i] == nullptr) || is_live(Kind::tensor, values[i])) continue;
    const std::string element = std::string(argument) + "[" + std::to_string(i) + "]";
    return dead(element.c_str(), Kind::tensor, values[i]);
  }
  return true;
}

bool Check::lists(const char *argument, NVTETensor *const *values, std::size_t list_count, std::size_t count) const {
  if (list_count > largest_count) return wild_count(argument, list_count);
  if (list_count > 0 && !pointer(argument, values)) return false;
  for (std::size_t i = 0; i < list_count; ++i) {
    const std::string list = std::string(argument) + "[" + std::to_string(i) + "]";
    if (!handles(list.c_str(), values[i], count)) return false;
  }
  return true;
}

bool Check::shape(const char *argument, const NVTEShape &value) const {
  constexpr std::size_t most = sizeof(value.data) / sizeof(value.data[0]);
  return value.ndim <= most || refuse(argument, "expected at most %zu dimensions, got %zu", most, value.ndim);
}

bool Check::basic_tensor(const char *argument, const NVTEBasicTensor *value) const {
  if (!shape(argument, value->shape)) return false;
  const int dtype = value->dtype;
  return (dtype >= 0 && dtype < kNVTENumTypes) || no_enumerator(argument, "NVTEDType", dtype);
}

bool Check::pack(const char *argument, const NVTETensorPack *value) const {
  if (value->size > NVTETensorPack_MAX_SIZE) {
    return refuse(argument, "expected a size up to %d, got %zu", NVTETensorPack_MAX_SIZE, value->size);
  }
  return handles(argument, value->tensors, value->size);
}

bool take(int function, const char *argument, Kind kind, void *const *handles, std::size_t count) {
  if (count > largest_count) return Check(function).wild_count(argument, count);
  for (std::size_t i = 0; i < count; ++i) {
    if (handles[i] == nullptr || remove(kind, handles[i])) continue;
    for (std::size_t taken = 0; taken < i; ++taken) {
      if (handles[taken] != nullptr) add(kind, handles[taken]);
    }
    return Check(function).refuse(argument, "expected a live %s, got %p, which te_ has not made or was destroyed",
                                  name_of(kind), handles[i]);
  }
  return true;
}

}  // namespace chagres::guard

/*
 * What the generated te_guard.cpp calls: the opened library, the last error, and one check for each kind of argument.
 */
#ifndef CHAGRES_GUARD_GUARD_HPP
#define CHAGRES_GUARD_GUARD_HPP

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "chagres/guard.h"
#include "chagres/nvte.h"
#include "handles.hpp"

#define TE_EXPORT extern "C" __attribute__((visibility("default")))

namespace chagres::guard {

/* Written by the generator: each function's name without prefix, and a symbol that it cannot do without (or null). */
struct Entry {
  const char *name;
  const char *needs;
};
extern const Entry entries[];
extern const int entry_count;

/* Addresses of the nvte_ functions, in the order of `entries`; null where te_open has not found one. */
extern void *functions[];

/* Address of nvte_`name` in the library, or null. */
void *find(void *library, const char *name);

/* Each stores this thread's text and returns the status that goes with it. */
int unavailable(int function);      // TE_NOT_OPEN, TE_MISSING or, for a symbol that is needed, TE_REFUSED
int caught(int function) noexcept;  // TE_ERROR; to be called inside catch

/* Addresses below are no memory of a process on Linux (vm.mmap_min_addr): null, or a number taken for a pointer. */
constexpr std::uintptr_t lowest_address = 65536;
/* More elements than any call passes; a larger count is a negative or wild number. */
constexpr std::uint64_t largest_count = std::uint64_t{1} << 24;

/* Checks of one call's arguments: true when the argument may go on, else false with this thread's text stored. */
class Check {
 public:
  explicit Check(int function) : function(function) {}

  bool handle(const char *argument, Kind kind, const void *value) const {
    return is_live(kind, value) || dead(argument, kind, value);
  }
  bool handle_or_none(const char *argument, Kind kind, const void *value) const {
    return value == nullptr || is_live(kind, value) || dead(argument, kind, value);
  }
  bool cell(const char *argument, const NVTETensor *value) const {
    return pointer(argument, value) && handle(argument, Kind::tensor, *value);
  }
  bool pointer(const char *argument, const void *value) const {
    return reinterpret_cast<std::uintptr_t>(value) >= lowest_address || null(argument, value);
  }
  bool pointer_or_null(const char *argument, const void *value) const {
    return value == nullptr || pointer(argument, value);
  }
  bool stream(const char *argument, cudaStream_t value) const {
    const auto number = reinterpret_cast<std::uintptr_t>(value);
    return number <= 2 || number >= lowest_address || not_a_stream(argument, value);
  }
  template <typename Count>
  bool pointer_if(const char *argument, const void *value, Count count) const {
    return count <= 0 || pointer(argument, value);
  }
  template <typename Count>
  bool handles(const char *argument, const NVTETensor *values, Count count) const {
    return count <= 0 || handle_list(argument, values, static_cast<std::uint64_t>(count), false);
  }
  template <typename Count>
  bool handles_or_none(const char *argument, const NVTETensor *values, Count count) const {
    return count <= 0 || handle_list(argument, values, static_cast<std::uint64_t>(count), true);
  }
  template <typename Number>
  bool at_least(const char *argument, Number value, std::int64_t least) const {
    if constexpr (std::is_unsigned_v<Number>) {
      return value >= static_cast<std::uint64_t>(least) || too_small(argument, value, least);
    } else {
      return value >= least || too_small(argument, value, least);
    }
  }
  template <typename Number>
  bool at_most(const char *argument, Number value, std::int64_t most) const {
    return value <= static_cast<Number>(most) || too_large(argument, static_cast<std::uint64_t>(value), most);
  }
  bool equal(const char *argument, std::size_t value, std::size_t expected) const {
    return value == expected || refuse(argument, "expected %zu, got %zu", expected, value);
  }
  bool enumerator(const char *argument, const char *type, std::int64_t value, bool is_known) const {
    return is_known || no_enumerator(argument, type, value);
  }

  bool lists(const char *argument, NVTETensor *const *values, std::size_t list_count, std::size_t count) const;
  bool shape(const char *argument, const NVTEShape &value) const;
  bool basic_tensor(const char *argument, const NVTEBasicTensor *value) const;
  bool pack(const char *argument, const NVTETensorPack *value) const;

  bool wild_count(const char *argument, std::uint64_t value) const __attribute__((cold));
  bool refuse(const char *argument, const char *format, ...) const __attribute__((format(printf, 3, 4), cold));

 private:
  bool handle_list(const char *argument, const NVTETensor *values, std::uint64_t count, bool or_none) const;
  bool dead(const char *argument, Kind kind, const void *value) const __attribute__((cold));
  bool null(const char *argument, const void *value) const __attribute__((cold));
  bool not_a_stream(const char *argument, const void *value) const __attribute__((cold));
  bool too_small(const char *argument, std::int64_t value, std::int64_t least) const __attribute__((cold));
  bool too_large(const char *argument, std::uint64_t value, std::int64_t most) const __attribute__((cold));
  bool no_enumerator(const char *argument, const char *type, std::int64_t value) const __attribute__((cold));

  int function;
};

/* Takes handles out of the live ones before the library destroys them: false, with nothing taken, when one is not live
 * (then destroying it would corrupt the library's list of free ones). A handle 0 is left alone. */
bool take(int function, const char *argument, Kind kind, void *const *handles, std::size_t count);

}  // namespace chagres::guard

#endif

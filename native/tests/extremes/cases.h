/*
 * Cases of extremes.cpp: one function each, with arguments on which it succeeds, and a way to put one of them to an
 * extreme.
 * A case is `CASE(te_gelu, f.tensor(…), f.tensor(…), nullptr)`; `f` is the Fixture that owns what the arguments point to.
 */
#ifndef CHAGRES_TESTS_EXTREMES_CASES_H
#define CHAGRES_TESTS_EXTREMES_CASES_H

#include <cmath>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "chagres/ops.h"
#include "chagres/te.h"
#include "fixture.h"

namespace extremes {

/* What to do to the arguments: nothing, or put the one at `argument` to its extreme number `extreme`. */
struct Change {
  int argument = -1;
  int extreme = 0;
  bool is_nothing = false; /* told by the case: the argument was put to null, or to a whole number of 0 */
};

enum class Made { Called, NoSuchExtreme, NoSuchArgument };

/* Told what is about to be called; false leaves the call out. */
using Begin = std::function<bool(const std::string &description)>;

struct Case {
  const char *name;
  /* Makes the arguments, changes them and calls: the status goes to *status. */
  std::function<Made(Fixture &, Change &, const Begin &, int *status)> make;
};

/* ---- Extremes of a type: the `index`-th goes into value; false where there is no such. ---- */

template <class T>
bool pick(T &value, int index, std::initializer_list<T> choices) {
  if (index >= static_cast<int>(choices.size())) return false;
  value = choices.begin()[index];
  return true;
}

bool vary(NVTEShape &value, int index);
bool vary(const NVTEBasicTensor *&value, int index);
bool vary(const OpsAdamRange *&value, int index);
bool vary(const OpsAttention *&value, int index);
bool vary(const OpsMatrixProduct *&value, int index);
bool vary(const OpsResidualNorm *&value, int index);
bool vary(const OpsRotary *&value, int index);
bool vary(UniqueId &value, int index);

template <class T>
bool vary(T &value, int index) {
  using Limits = std::numeric_limits<T>;
  if constexpr (std::is_same_v<T, bool>) {
    return pick(value, index, {false, true});
  } else if constexpr (std::is_enum_v<T>) {
    static_assert(sizeof(T) == sizeof(int), "an enumeration of C");
    int number = 0;
    if (!vary(number, index)) return false;
    std::memcpy(&value, &number, sizeof(number)); /* a number that the enumeration may lack */
    return true;
  } else if constexpr (std::is_floating_point_v<T>) {
    return pick(value, index,
                {Limits::lowest(), T(-1), T(0), Limits::max(), Limits::infinity(), -Limits::infinity(),
                 Limits::quiet_NaN()});
  } else if constexpr (std::is_unsigned_v<T>) {
    constexpr T half = Limits::max() / 2;
    return pick(value, index, {T(0), Limits::max(), half, static_cast<T>(half + 1)});
  } else if constexpr (std::is_integral_v<T>) {
    return pick(value, index, {Limits::min(), T(-1), T(0), Limits::max()});
  } else {
    static_assert(std::is_pointer_v<T>, "a type without extremes: write a vary() for it");
    return pick(value, index, {T(nullptr)});
  }
}

/* What a struct's fields are put to, one field at a time. */
class Fields {
 public:
  explicit Fields(int index) : index_(index) {}

  template <class T>
  void field(T &value) {
    for (int extreme = 0; !done_; ++extreme) {
      T changed = value;
      if (!vary(changed, extreme)) return;
      if (index_-- > 0) continue;
      value = changed;
      done_ = true;
    }
  }
  bool done() const { return done_; }

 private:
  int index_;
  bool done_ = false;
};

/* ---- Words for a change ---- */

template <class T>
std::string words(const T &value) {
  if constexpr (std::is_enum_v<T>) {
    int number;
    std::memcpy(&number, &value, sizeof(number));
    return std::to_string(number);
  } else if constexpr (std::is_arithmetic_v<T>) {
    return std::to_string(value);
  } else if constexpr (std::is_pointer_v<T>) {
    return value == nullptr ? "null" : "a pointer to what was changed";
  } else {
    return "a changed struct";
  }
}

template <class T>
bool is_nothing(const T &value) {
  if constexpr (std::is_pointer_v<T>) return value == nullptr;
  else if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) return value == 0;
  else return false;
}

/* ---- Cases ---- */

template <class Tuple, size_t... I>
Made change(Tuple &arguments, Change &wanted, std::string &description, std::index_sequence<I...>) {
  if (wanted.argument < 0) return Made::Called;
  Made made = Made::NoSuchArgument;
  [[maybe_unused]] const auto one = [&](auto index, auto &value) {
    if (static_cast<int>(index) != wanted.argument) return;
    made = vary(value, wanted.extreme) ? Made::Called : Made::NoSuchExtreme;
    wanted.is_nothing = is_nothing(value);
    description = "argument " + std::to_string(index + 1) + " is " + words(value);
    if (made == Made::Called && words(value)[0] == 'a') description += " (change " + std::to_string(wanted.extreme) + ")";
  };
  (one(I, std::get<I>(arguments)), ...);
  return made;
}

template <class T>
int status_of(T result) {
  if constexpr (std::is_same_v<T, int>) return result;
  else return 0; /* texts, versions, structs: the call itself is what is looked at */
}

template <class Result, class... Arguments, class Valid>
Case case_of(const char *name, Result (*function)(Arguments...), Valid valid) {
  return {name, [=](Fixture &fixture, Change &wanted, const Begin &begin, int *status) {
            std::string description = fixture.description();
            auto arguments = valid(fixture, static_cast<std::tuple<Arguments...> *>(nullptr));
            const Made made = change(arguments, wanted, description, std::index_sequence_for<Arguments...>{});
            if (made != Made::Called || !begin(description)) return made;
            fixture.before_call();
            if constexpr (std::is_void_v<Result>) {
              std::apply(function, arguments);
              *status = 0;
            } else {
              *status = status_of(std::apply(function, arguments));
            }
            fixture.after_call();
            return made;
          }};
}

/* The arguments as the function takes them. */
template <class... Arguments, class... Values>
std::tuple<Arguments...> convert(std::tuple<Arguments...> *, Values &&...values) {
  return std::tuple<Arguments...>(static_cast<Arguments>(values)...);
}

#define CASE_OF(name, function, ...)                            \
  extremes::case_of(name, function, [](Fixture &f, auto *types) { \
    (void)f;                                                    \
    return extremes::convert(types, ##__VA_ARGS__);             \
  })
#define CASE(function, ...) CASE_OF(#function, &function, ##__VA_ARGS__)
/* For a function without a prototype of ours: CASE_AS(cudaMalloc, int(void **, size_t), f.out<void *>(), 64). */
#define CASE_AS(function, type, ...) CASE_OF(#function, (extremes::symbol<type>(#function)), ##__VA_ARGS__)

/* A function of the reference by name; ends the program where it lacks it. */
void *find_symbol(const char *name);
template <class Type>
Type *symbol(const char *name) {
  return reinterpret_cast<Type *>(find_symbol(name));
}

std::vector<Case> te_cases();
std::vector<Case> te_list_cases();
std::vector<Case> fused_attn_cases();
std::vector<Case> ops_cases();
std::vector<Case> cuda_cases();
std::vector<Case> cudnn_cases();
std::vector<Case> nccl_cases();

}  // namespace extremes

#endif /* CHAGRES_TESTS_EXTREMES_CASES_H */

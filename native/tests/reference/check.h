/*
 * Assertions and tensors for the C tests of the reference. A test is TEST(name) { ... }. All files are one program, so that
 * they are linked once; each runs in a process of its own: `reference_tests FILE`. CHAGRES_SEED replays a run.
 */
#ifndef CHAGRES_CHECK_H
#define CHAGRES_CHECK_H

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/reference.h"

namespace check {

struct Test {
  const char *file, *name;
  void (*body)();
};

inline std::vector<Test> &tests() {
  static std::vector<Test> all;
  return all;
}

inline int &failures() {
  static int count = 0;
  return count;
}

struct Registration {
  Registration(const char *file, const char *name, void (*body)()) { tests().push_back({file, name, body}); }
};

/* What the reference reads once, from the environment, in the process that runs a file's tests. */
struct Variable {
  const char *file, *name, *value;
};

inline std::vector<Variable> &variables() {
  static std::vector<Variable> all;
  return all;
}

struct Setting {
  explicit Setting(const Variable &variable) { variables().push_back(variable); }
};

template <class... Parts>
void report(const char *file, int line, const Parts &...parts) {
  ++failures();
  std::printf("%s:%d: %s\n", file, line, chagres::reference::text(parts...).c_str());
}

inline uint64_t seed() {
  static const uint64_t value = std::getenv("CHAGRES_SEED") ? std::strtoull(std::getenv("CHAGRES_SEED"), nullptr, 10) : 20;
  return value;
}

inline std::mt19937_64 &random() {
  static std::mt19937_64 engine(seed());
  return engine;
}

}  // namespace check

CHAGRES_EXPORT int cudaHostRegister(void *pointer, size_t size, unsigned int flags);
CHAGRES_EXPORT int cudaHostUnregister(void *pointer);

namespace check {

/* Makes a test's memory known to the reference, which follows no other pointers, while this lives. */
class Known {
 public:
  Known(void *pointer, size_t size) : pointer_(size == 0 ? nullptr : pointer) {
    if (pointer_ != nullptr && cudaHostRegister(pointer_, size, 0) != 0) std::abort();
  }
  template <class T>
  explicit Known(std::vector<T> &values) : Known(values.data(), values.size() * sizeof(T)) {}
  template <class T>
  explicit Known(T &value) : Known(&value, sizeof(T)) {}
  Known(const Known &) = delete;
  ~Known() {
    if (pointer_ != nullptr) cudaHostUnregister(pointer_);
  }

 private:
  void *pointer_;
};

/* Tensor memory with a handle, destroyed with it. Values are given and read as double. */
class Array {
 public:
  Array(std::vector<size_t> dimensions, NVTEDType dtype) : dtype_(dtype), dimensions_(dimensions) {
    count_ = 1;
    for (const size_t dimension : dimensions) count_ *= dimension;
    /* Exactly as many bytes as needed, so that the address sanitizer sees every access beyond. */
    bytes_.resize(count_ * chagres::reference::element_size(dtype));
    known_ = std::make_unique<Known>(bytes_);
    handle_ = nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING);
    bind();
  }
  Array(const Array &) = delete;
  ~Array() { nvte_destroy_tensor(handle_); }

  Array &normal(double scale = 1, double mean = 0) {
    std::normal_distribution<double> distribution(mean, scale);
    for (size_t i = 0; i < count_; ++i) set(i, distribution(random()));
    return *this;
  }
  Array &fill(double value) {
    for (size_t i = 0; i < count_; ++i) set(i, value);
    return *this;
  }

  void set(size_t i, double value) {
    switch (dtype_) {
      case kNVTEInt32: as<int32_t>()[i] = static_cast<int32_t>(value); return;
      case kNVTEInt64: as<int64_t>()[i] = static_cast<int64_t>(value); return;
      case kNVTEByte: as<uint8_t>()[i] = static_cast<uint8_t>(value); return;
      default: chagres::reference::store(bytes_.data(), static_cast<int64_t>(i), dtype_, static_cast<float>(value));
    }
  }
  double get(size_t i) const {
    switch (dtype_) {
      case kNVTEInt32: return as<int32_t>()[i];
      case kNVTEInt64: return static_cast<double>(as<int64_t>()[i]);
      case kNVTEByte: return as<uint8_t>()[i];
      default: return chagres::reference::load(bytes_.data(), static_cast<int64_t>(i), dtype_);
    }
  }
  template <class T>
  T *as() { return reinterpret_cast<T *>(bytes_.data()); }
  template <class T>
  const T *as() const { return reinterpret_cast<const T *>(bytes_.data()); }

  std::vector<double> values() const {
    std::vector<double> all(count_);
    for (size_t i = 0; i < count_; ++i) all[i] = get(i);
    return all;
  }
  size_t count() const { return count_; }
  NVTEDType dtype() const { return dtype_; }
  void *data() { return bytes_.data(); }
  NVTETensor handle() const { return handle_; }
  operator NVTETensor() const { return handle_; }

  void record(NVTETensorParam parameter, void *data, NVTEDType dtype, std::vector<size_t> dimensions) {
    const NVTEBasicTensor record{data, dtype, nvte_make_shape(dimensions.data(), dimensions.size())};
    nvte_set_tensor_param_v2(handle_, parameter, &record, sizeof(record));
  }

 private:
  void bind() { record(kNVTERowwiseData, bytes_.data(), dtype_, dimensions_); }

  NVTEDType dtype_;
  std::vector<size_t> dimensions_;
  size_t count_;
  std::vector<uint8_t> bytes_;
  std::unique_ptr<Known> known_;
  NVTETensor handle_;
};

/* A handle without data. */
class Unset {
 public:
  Unset() : handle_(nvte_create_tensor(NVTE_DELAYED_TENSOR_SCALING)) {}
  Unset(const Unset &) = delete;
  ~Unset() { nvte_destroy_tensor(handle_); }
  operator NVTETensor() const { return handle_; }
  NVTETensor handle() const { return handle_; }

 private:
  NVTETensor handle_;
};

/* Runs `call(workspace)` twice, as the two-call protocol wants. */
template <class Call>
void with_workspace(Call &&call) {
  Unset query;
  call(query.handle());
  const NVTEShape shape = nvte_tensor_shape(query);
  Array workspace(std::vector<size_t>(shape.data, shape.data + shape.ndim), nvte_tensor_type(query));
  call(workspace.handle());
}

/* Half a unit in the last place, relative, of what a dtype stores. */
inline double rounding(NVTEDType dtype) {
  return dtype == kNVTEFloat32 ? 0x1p-24 : dtype == kNVTEFloat16 ? 0x1p-11 : 0x1p-8;
}

inline bool close(double actual, double expected, double relative, double absolute) {
  if (std::isnan(expected)) return std::isnan(actual);
  if (std::isinf(expected)) return actual == expected;
  return std::fabs(actual - expected) <= absolute + relative * std::fabs(expected);
}

/* At most five differences are printed. */
inline void expect_close(const char *file, int line, const char *what, const std::vector<double> &actual,
                         const std::vector<double> &expected, double relative, double absolute) {
  if (actual.size() != expected.size()) {
    report(file, line, what, ": ", actual.size(), " values, expected ", expected.size());
    return;
  }
  int printed = 0;
  for (size_t i = 0; i < actual.size() && printed < 5; ++i) {
    if (close(actual[i], expected[i], relative, absolute)) continue;
    report(file, line, what, "[", i, "]: expected ", expected[i], ", got ", actual[i], " (relative ", relative,
           ", absolute ", absolute, ")");
    ++printed;
  }
}

inline std::string thrown_text(const std::function<void()> &call) {
  try {
    call();
  } catch (const std::exception &e) {
    return e.what();
  }
  return "(nothing thrown)";
}

}  // namespace check

#define TEST(name)                                                         \
  static void name();                                                      \
  static check::Registration registration_##name(__FILE__, #name, &name);  \
  static void name()

/* Before the first test of this file. */
#define SET_VARIABLE(name, value) static check::Setting setting_##name(check::Variable{__FILE__, #name, value})

#define EXPECT(condition)                                                 \
  do {                                                                    \
    if (!(condition)) check::report(__FILE__, __LINE__, "expected " #condition); \
  } while (false)

#define EXPECT_EQUAL(actual, expected)                                                                           \
  do {                                                                                                           \
    const auto actual_value = (actual);                                                                          \
    const auto expected_value = (expected);                                                                      \
    if (!(actual_value == expected_value))                                                                       \
      check::report(__FILE__, __LINE__, #actual ": expected ", expected_value, ", got ", actual_value);        \
  } while (false)

#define EXPECT_CLOSE(actual, expected, relative, absolute) \
  check::expect_close(__FILE__, __LINE__, #actual, (actual), (expected), (relative), (absolute))

/* The call throws and its text contains every part. */
#define EXPECT_THROWS(call, ...)                                                                                  \
  do {                                                                                                            \
    const std::string thrown = check::thrown_text([&] { call; });                                                 \
    for (const std::string part : std::initializer_list<std::string>{__VA_ARGS__})                                \
      if (thrown.find(part) == std::string::npos)                                                                 \
        check::report(__FILE__, __LINE__, #call ": expected a text with \"", part, "\", got: ", thrown);          \
  } while (false)

#endif /* CHAGRES_CHECK_H */

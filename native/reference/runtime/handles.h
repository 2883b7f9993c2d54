/*
 * Configuration objects of Transformer Engine's C API: opaque handles with attributes that are read and written by
 * number. A handle is checked against a list of living ones, so a destroyed configuration gives an error, not a crash.
 */
#ifndef CHAGRES_HANDLES_H
#define CHAGRES_HANDLES_H

#include <memory>
#include <mutex>
#include <unordered_map>

#include "runtime/reference.h"

namespace chagres::reference {

/* Living objects of one kind, by address. Thread-safe; using one object on two threads at once is the caller's matter. */
template <class Object>
class Handles {
 public:
  explicit Handles(const char *kind) : kind_(kind) {}

  void *create() {
    auto object = std::make_unique<Object>();
    void *handle = object.get();
    std::lock_guard<std::mutex> lock(mutex_);
    living_.emplace(handle, std::move(object));
    return handle;
  }

  Object &at(const void *handle, Caller caller = Caller::here()) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = living_.find(handle);
    if (found == living_.end()) refuse(handle, caller);
    return *found->second;
  }

  bool lives(const void *handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    return living_.count(handle) != 0;
  }

  void remove(const void *handle) {
    std::lock_guard<std::mutex> lock(mutex_);
    living_.erase(handle);
  }

  /* Throws for a handle that is not alive, also when it was destroyed before. */
  void destroy(const void *handle, Caller caller = Caller::here()) {
    std::lock_guard<std::mutex> lock(mutex_);
    if (living_.erase(handle) == 0) refuse(handle, caller);
  }

 private:
  [[noreturn]] void refuse(const void *handle, const Caller &caller) const {
    fail(caller, text("Invalid ", kind_, handle == nullptr ? " (got NULL)" : ": destroyed already or never created"));
  }

  const char *kind_;
  std::mutex mutex_;
  std::unordered_map<const void *, std::unique_ptr<Object>> living_;
};

/* Where an attribute lies in its object. Flags are one byte, 0 or 1. */
struct Attribute {
  enum Kind { Value, Flag, Ignored };
  size_t offset;
  size_t size;
  Kind kind;
};

/* An object's attributes by number, and how an error names them. */
struct AttributeTable {
  const char *kind; /* such as "NVTEMatmulConfigAttribute" */
  const Attribute *attributes;
  int count;
};

/* Checks number and buffer as Transformer Engine does and copies out of `buffer`. */
void set_attribute(const AttributeTable &table, void *object, int number, const void *buffer, size_t size,
                   Caller caller = Caller::here());

/* Writes the size to *size_written when that is there, then the value unless `buffer` is null. */
void get_attribute(const AttributeTable &table, const void *object, int number, void *buffer, size_t size,
                   size_t *size_written, Caller caller = Caller::here());

/* Only the size: what a getter with a null buffer answers, whatever the handle. */
size_t attribute_size(const AttributeTable &table, int number, Caller caller = Caller::here());

}  // namespace chagres::reference

#endif /* CHAGRES_HANDLES_H */

/*
 * Calls of Transformer Engine's functions on a stream that captures. Handles are read when they are used, so a recorded call
 * keeps tensors of its own with what the caller's described at the time; of host memory it keeps the contents.
 */
#ifndef CHAGRES_RECORDED_H
#define CHAGRES_RECORDED_H

#include <string>

#include "cuda/capture.h"

namespace chagres::reference {

/* A tensor or configuration with the values of another at this moment; any other pointer, such as null or an address on the
 * device, as it is. Throws where the tensor's memory is not there. */
std::shared_ptr<void> kept_handle(void *handle);

/* While this lives, equal handles are kept as one: some functions want two arguments to be the same tensor. */
class OneCall {
 public:
  OneCall();
  ~OneCall();
  OneCall(const OneCall &) = delete;
};

/* Whether the call only asks how large its workspace must be: it enqueues nothing. */
bool asks(NVTETensor workspace);

/* `count` values in host memory. */
template <class T>
struct List {
  T *first;
  size_t count;
};

template <class T>
List<T> list(T *first, size_t count) {
  return {first, first == nullptr ? 0 : count};
}

/* `lists` lists of `count` handles each. */
struct TensorLists {
  NVTETensor **first;
  size_t lists;
  size_t count;
};

template <class T>
struct KeptCopy : ByValue<T> {
  using ByValue<T>::ByValue;
};

template <>
struct KeptCopy<void *> {
  std::shared_ptr<void> value;
  explicit KeptCopy(void *handle) : value(kept_handle(handle)) {}
  void *get() const { return value.get(); }
};

template <>
struct KeptCopy<const char *> {
  bool given;
  std::string value;
  explicit KeptCopy(const char *name) : given(name != nullptr), value(given ? name : "") {}
  const char *get() const { return given ? value.c_str() : nullptr; }
};

template <class T>
struct KeptCopy<List<T>> {
  using Value = std::remove_const_t<T>;
  bool given;
  std::vector<KeptCopy<Value>> kept;
  std::shared_ptr<std::vector<Value>> values = std::make_shared<std::vector<Value>>();
  explicit KeptCopy(List<T> list) : given(list.first != nullptr) {
    for (size_t i = 0; i < list.count; ++i) {
      kept.emplace_back(list.first[i]);
      values->push_back(kept.back().get());
    }
  }
  T *get() const { return given ? values->data() : nullptr; }
};

template <>
struct KeptCopy<TensorLists> {
  std::vector<KeptCopy<List<NVTETensor>>> kept;
  std::shared_ptr<std::vector<NVTETensor *>> values = std::make_shared<std::vector<NVTETensor *>>();
  explicit KeptCopy(TensorLists lists) {
    for (size_t i = 0; lists.first != nullptr && i < lists.lists; ++i) {
      kept.emplace_back(list(lists.first[i], lists.count));
      values->push_back(kept.back().get());
    }
  }
  NVTETensor **get() const { return values->empty() ? nullptr : values->data(); }
};

template <>
struct KeptCopy<std::vector<NVTETensor>> {
  KeptCopy<List<NVTETensor>> kept;
  explicit KeptCopy(std::vector<NVTETensor> handles) : kept(list(handles.data(), handles.size())) {}
  std::vector<NVTETensor> get() const { return *kept.values; }
};

/* Records the call of `function` when its last argument, the stream, captures; false: the caller works now. */
template <class Result, class... Parameters, class... Arguments>
bool recorded(Result (*function)(Parameters...), Arguments... arguments) {
  if (captures_under_way == 0) return false;
  OneCall call;
  return record_call<KeptCopy>(function, arguments...);
}

}  // namespace chagres::reference

#endif /* CHAGRES_RECORDED_H */

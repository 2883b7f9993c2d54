/* Where a test of attention keeps query, key and value, or their gradients. */
#ifndef CHAGRES_TESTS_OPS_ATTENTION_TRIPLE_H
#define CHAGRES_TESTS_OPS_ATTENTION_TRIPLE_H

#include <array>
#include <memory>

#include "attention_double.h"
#include "harness/report.h"

namespace chagres::tests {

/* Query, key and value, or their gradients, in as many buffers as `together` says. */
class Triple {
 public:
  using Values = std::array<const Doubles *, 3>;

  Triple(Session &session, const AttentionShape &shape, Together together, const Values &values)
      : shape_(shape), together_(together) {
    const Format &format = format_of(shape.dtype);
    for (size_t first = 0; first < 3; first = end_of(first)) {
      buffers.push_back(std::make_unique<Buffer>(session.memory, to_bytes(format, joined(first, values)),
                                                 static_cast<size_t>(shape.offset * format.size)));
      int64_t total = 0, before = 0;
      for (size_t i = first; i < end_of(first); ++i) total += width(i);
      for (size_t i = first; i < end_of(first); before += width(i++)) {
        const int64_t head_width = i == 2 ? shape.value_dim : shape.head_dim;
        strides[i] = side(i).strides(total, head_width);
        data[i] = side(i).length == 0 ? nullptr : buffers.back()->data<char>() + before * format.size;
      }
    }
  }

  /* Compares the contents of all buffers; `outputs` came from Case::run with these buffers. */
  void compare(Case &test, const Values &wanted, const Values &scale, double slack, const char *what) const {
    size_t buffer = 0;
    for (size_t first = 0; first < 3; first = end_of(first), ++buffer)
      test.close(shape_.dtype, test.output(buffer, shape_.dtype), joined(first, wanted), joined(first, scale), slack,
                 what);
  }

  std::vector<std::unique_ptr<Buffer>> buffers;
  void *data[3] = {};
  OpsStrides strides[3] = {};

 private:
  const AttentionSide &side(size_t part) const { return part == 0 ? shape_.queries : shape_.keys; }
  int64_t width(size_t part) const { return side(part).heads * (part == 2 ? shape_.value_dim : shape_.head_dim); }

  /* One past the last part that shares a buffer with part `first`. */
  size_t end_of(size_t first) const {
    if (together_ == Together::kAll || (together_ == Together::kKeyValue && first == 1)) return 3;
    return first + 1;
  }

  Doubles joined(size_t first, const Values &values) const {
    Doubles all;
    for (int64_t t = 0; t < side(first).tokens(); ++t)
      for (size_t i = first; i < end_of(first); ++i)
        all.insert(all.end(), values[i]->begin() + t * width(i), values[i]->begin() + (t + 1) * width(i));
    return all;
  }

  const AttentionShape &shape_;
  const Together together_;
};

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_ATTENTION_TRIPLE_H */

/* Windows that move over the spatial dimensions of a tensor [N, C, …]: of convolutions and of resampling. */
#ifndef CHAGRES_CUDNN_WINDOWS_H
#define CHAGRES_CUDNN_WINDOWS_H

#include "cudnn/backend.h"

namespace chagres::reference::cudnn {

struct Windows {
  Dims image, result, window; /* sizes of the spatial dimensions */
  Dims strides, dilations, pre, post;

  /* What the result's sizes must be; 0 or less where no window fits. */
  Dims result_sizes() const {
    Dims sizes(image.size());
    for (size_t i = 0; i < sizes.size(); ++i) {
      const int64_t room = image[i] + pre[i] + post[i] - (window[i] - 1) * dilations[i] - 1;
      sizes[i] = room < 0 ? 0 : room / strides[i] + 1;
    }
    return sizes;
  }

  /* Calls visit(in, at, from) for each element of each window: whether it lies in the image, its place in the window,
   * and its place in the image. `to` is the window's place in the result. */
  template <class Visit>
  void elements(const Dims &to, Visit &&visit) const {
    const Dims image_strides = row_major(image);
    std::array<int64_t, kMostDims> index{};
    const size_t rank = window.size();
    const int64_t count = count_of(window);
    for (int64_t at = 0; at < count; ++at) {
      int64_t from = 0;
      bool in = true;
      for (size_t i = 0; i < rank; ++i) {
        const int64_t place = to[i] * strides[i] - pre[i] + index[i] * dilations[i];
        in = in && place >= 0 && place < image[i];
        from += place * image_strides[i];
      }
      visit(in, at, from);
      for (size_t i = rank; i-- > 0;) {
        if (++index[i] < window[i]) break;
        index[i] = 0;
      }
    }
  }
};

inline Dims spatial(const Dims &dims) { return Dims(dims.begin() + 2, dims.end()); }

/* The index of each dimension at a row-major position. */
inline Dims index_at(const Dims &dims, int64_t position) {
  Dims index(dims.size());
  for (size_t i = dims.size(); i-- > 0; position /= dims[i]) index[i] = position % dims[i];
  return index;
}

/* Refuses numbers that no window can have; `what` is the attribute's name. */
inline void require_each(const Dims &numbers, size_t count, int64_t least, const char *what) {
  CHAGRES_REQUIRE(numbers.size() == count, kBadParam, what, ": expected ", count, " elements, got ", numbers.size());
  for (const int64_t number : numbers)
    CHAGRES_REQUIRE(number >= least && number <= (int64_t(1) << 20), kBadParam, what, ": expected at least ", least,
                    ", got ", dims_text(numbers));
}

}  // namespace chagres::reference::cudnn

#endif /* CHAGRES_CUDNN_WINDOWS_H */

/*
 * Buffers of an attention problem: what a case asks for, where its elements lie, and handles on them.
 *
 * Positions come from the letters of a layout's name and masks from a predicate on (i, j): nothing here shares code
 * with the reference.
 */
#ifndef CHAGRES_ATTENTION_BUFFERS_H
#define CHAGRES_ATTENTION_BUFFERS_H

#include <memory>

#include "check.h"

namespace attention {

using check::Array;
using check::Unset;

inline const char *layout_name(int layout) {
  static const char *const names[] = {"sb3hd",
                                      "sbh3d",
                                      "sbhd_sb2hd",
                                      "sbhd_sbh2d",
                                      "sbhd_sbhd_sbhd",
                                      "bs3hd",
                                      "bsh3d",
                                      "bshd_bs2hd",
                                      "bshd_bsh2d",
                                      "bshd_bshd_bshd",
                                      "t3hd",
                                      "th3d",
                                      "thd_t2hd",
                                      "thd_th2d",
                                      "thd_thd_thd",
                                      "sbhd_bshd_bshd",
                                      "bshd_sbhd_sbhd",
                                      "thd_bshd_bshd",
                                      "thd_sbhd_sbhd",
                                      "",
                                      "",
                                      "",
                                      "",
                                      "",
                                      "",
                                      "bhsd_bhsd_bhsd"};
  return names[layout];
}

inline std::vector<std::string> split(const std::string &name) {
  std::vector<std::string> parts(1);
  for (const char letter : name) {
    if (letter == '_')
      parts.emplace_back();
    else
      parts.back() += letter;
  }
  return parts;
}

inline NVTE_QKV_Format format_of(const std::string &letters) {
  return letters[0] == 't'              ? NVTE_THD
         : letters.substr(0, 2) == "sb" ? NVTE_SBHD
         : letters == "bhsd"            ? NVTE_BHSD
                                        : NVTE_BSHD;
}

struct Case {
  NVTE_QKV_Layout layout = NVTE_T3HD;
  NVTE_QKV_Layout gradient_layout = NVTE_QKV_Layout_NOT_SET; /* not set: as layout */
  NVTE_Mask_Type mask = NVTE_PADDING_MASK;
  NVTEDType dtype = kNVTEFloat32;
  std::vector<int> q_lengths = {5}, kv_lengths = {5};
  int gap = 0; /* unused tokens after each THD sequence; padding of dense formats under a padding mask */
  int heads = 2, kv_heads = 2, dim_qk = 8, dim_v = 8;
  int64_t left = -1, right = -1;
  bool bottom_right_diagonal = false;
  NVTE_Softmax_Type softmax = NVTE_VANILLA_SOFTMAX;
  NVTE_Bias_Type bias = NVTE_NO_BIAS;
  bool bias_by_sequence = false, bias_by_head = true; /* whether each has its own */
  float dropout = 0, scale = 0.35f;
  bool training = true;
  int64_t seed = 1234567890123, offset = 48;

  std::string name() const {
    return chagres::reference::text(layout_name(layout), " mask ", mask, " ", chagres::reference::dtype_name(dtype),
                                    " q ", q_lengths[0], " kv ", kv_lengths[0], " gap ", gap, " heads ", heads, "/",
                                    kv_heads, " d ", dim_qk, "/", dim_v, " window ", left, ",", right, " softmax ",
                                    softmax, " bias ", bias, bias_by_sequence ? "b" : "", bias_by_head ? "h" : "", " dropout ", dropout);
  }
  bool biased() const { return bias == NVTE_POST_SCALE_BIAS; }
  bool padded() const {
    return mask == NVTE_PADDING_MASK || mask == NVTE_PADDING_CAUSAL_MASK ||
           mask == NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK;
  }
  /* The mask as TE's documentation words it, for one query and key of sequence b. */
  bool sees(size_t b, int i, int j) const {
    const bool causal = mask == NVTE_CAUSAL_MASK || mask == NVTE_PADDING_CAUSAL_MASK;
    const bool corner = mask == NVTE_CAUSAL_BOTTOM_RIGHT_MASK || mask == NVTE_PADDING_CAUSAL_BOTTOM_RIGHT_MASK;
    const int to_corner = kv_lengths[b] - q_lengths[b];
    if (causal && j > i) return false;
    if (corner && j > i + to_corner) return false;
    const int64_t diagonal = i + (corner || (!causal && bottom_right_diagonal) ? to_corner : 0);
    if (left >= 0 && j < diagonal - left) return false;
    if (right >= 0 && j > diagonal + right) return false;
    return true;
  }
};

/* Where (sequence b, token i, head h, column c) of the `which`-th of `packed` tensors lies, by the letters of a format.
 */
struct Extents {
  int64_t b, s, t, h, d;
};
inline int64_t position(const std::string &letters, const Extents &size, int64_t b, int64_t i, int64_t token, int64_t h,
                        int64_t c, int64_t which) {
  int64_t index = 0;
  for (const char letter : letters) {
    switch (letter) {
      case 'b':
        index = index * size.b + b;
        break;
      case 's':
        index = index * size.s + i;
        break;
      case 't':
        index = index * size.t + token;
        break;
      case 'h':
        index = index * size.h + h;
        break;
      case 'd':
        index = index * size.d + c;
        break;
      default:
        index = index * (letter - '0') + which;
    }
  }
  return index;
}

/* Starts and lengths of one side (queries, or keys and values). */
struct Side {
  std::vector<int> lengths;
  std::vector<int32_t> cu{0}, starts{0};
  int64_t longest = 0;
  Side(const std::vector<int> &all, int gap, bool dense_full) : lengths(all) {
    for (const int length : all) {
      longest = std::max<int64_t>(longest, length);
      cu.push_back(cu.back() + length);
      starts.push_back(starts.back() + length + gap);
    }
    if (!dense_full) longest += gap;
  }
};

/* One logical tensor: a buffer, perhaps shared, and a handle of the unpacked shape. */
class Piece {
 public:
  Piece(std::shared_ptr<Array> buffer, const std::string &letters, const Extents &size, int which, const Side &side)
      : buffer_(std::move(buffer)), letters_(letters), size_(size), which_(which), side_(&side) {
    std::vector<size_t> shape;
    for (const char letter : letters) {
      const int64_t extent = letter == 'b'   ? size.b
                             : letter == 's' ? size.s
                             : letter == 't' ? size.t
                             : letter == 'h' ? size.h
                             : letter == 'd' ? size.d
                                             : 0;
      if (extent > 0 || letter == 't') shape.push_back(static_cast<size_t>(extent));
    }
    const size_t bytes = chagres::reference::element_size(buffer_->dtype());
    auto *data = static_cast<char *>(buffer_->data()) + bytes * static_cast<size_t>(at_raw(0, 0, 0, 0, 0));
    const NVTEBasicTensor record{data, buffer_->dtype(), nvte_make_shape(shape.data(), shape.size())};
    nvte_set_tensor_param_v2(handle_, kNVTERowwiseData, &record, sizeof(record));
  }

  size_t at(size_t b, int i, int h, int c) const {
    return static_cast<size_t>(at_raw(static_cast<int64_t>(b), i, side_->starts[b] + i, h, c));
  }
  double get(size_t b, int i, int h, int c) const { return buffer_->get(at(b, i, h, c)); }
  void set(size_t b, int i, int h, int c, double value) { buffer_->set(at(b, i, h, c), value); }
  Array &buffer() { return *buffer_; }
  const Extents &size() const { return size_; }
  NVTETensor handle() const { return handle_; }
  NVTE_QKV_Format format() const { return format_of(letters_); }

  /* Calls f(b, i, h, c) for every element of a valid token. */
  template <class F>
  void each(F &&f) const {
    for (size_t b = 0; b < side_->lengths.size(); ++b)
      for (int i = 0; i < side_->lengths[b]; ++i)
        for (int h = 0; h < size_.h; ++h)
          for (int c = 0; c < size_.d; ++c) f(b, i, h, c);
  }

 private:
  int64_t at_raw(int64_t b, int64_t i, int64_t token, int64_t h, int64_t c) const {
    return position(letters_, size_, b, i, token, h, c, which_);
  }

  std::shared_ptr<Array> buffer_;
  std::string letters_;
  Extents size_;
  int which_;
  const Side *side_;
  Unset handle_;
};

}  // namespace attention

#endif /* CHAGRES_ATTENTION_BUFFERS_H */

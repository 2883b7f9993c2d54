/* FNV-1a of 128 bits (RFC 9923): names files by content and finds damaged ones; it need not resist forgery. */
#ifndef CHAGRES_OPS_CONTENT_HASH_H
#define CHAGRES_OPS_CONTENT_HASH_H

#include <cstddef>
#include <string>

#include "error.h"

namespace chagres::ops {

class Hash {
 public:
  Hash &add(const void *data, size_t bytes) {
    for (size_t i = 0; i < bytes; ++i) {
      state_ ^= static_cast<const unsigned char *>(data)[i];
      state_ *= kPrime;
    }
    return *this;
  }
  /* With its end marked, so that "ab", "c" and "a", "bc" differ. */
  Hash &add(const std::string &text) { return add(text.c_str(), text.size() + 1); }

  std::string hexadecimal() const {
    return format("%016llx%016llx", static_cast<unsigned long long>(state_ >> 64),
                  static_cast<unsigned long long>(state_));
  }

 private:
  using Word = unsigned __int128;
  static constexpr Word kPrime = (Word{1} << 88) + 0x13b;
  Word state_ = (Word{0x6c62272e07bb0142} << 64) + 0x62b821756295c58d;
};

}  // namespace chagres::ops

#endif /* CHAGRES_OPS_CONTENT_HASH_H */

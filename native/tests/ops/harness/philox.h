/* Philox4x32-10, written after the paper without a look at the libraries under test. */
#ifndef CHAGRES_TESTS_OPS_PHILOX_H
#define CHAGRES_TESTS_OPS_PHILOX_H

#include <array>
#include <cstdint>

namespace chagres::tests {

using Words = std::array<uint32_t, 4>;

/* Salmon et al., SC 2011: a round multiplies two words and mixes in the key, which grows by Weyl constants. */
inline Words philox(Words counter, uint32_t key0, uint32_t key1) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t left = uint64_t{0xD2511F53} * counter[0], right = uint64_t{0xCD9E8D57} * counter[2];
    counter = {static_cast<uint32_t>(right >> 32) ^ counter[1] ^ key0, static_cast<uint32_t>(right),
               static_cast<uint32_t>(left >> 32) ^ counter[3] ^ key1, static_cast<uint32_t>(left)};
    key0 += 0x9E3779B9;
    key1 += 0xBB67AE85;
  }
  return counter;
}

}  // namespace chagres::tests

#endif /* CHAGRES_TESTS_OPS_PHILOX_H */

/* Which weights of attention.cuh's tiles dropout keeps. */
#pragma once

#include <attention.cuh>

/* Words j % 4 of Philox4x32-10 for keys 4 * group .. 4 * group + 3 of one query, the counter being group, low word of
 * the offset, query, sequence * heads + head, all of them indices in the whole. Bit j is set when the key is kept. */
struct Dropout {
  uint32_t key0, key1, offset, pair, threshold;
  uint32_t first_query, first_key; /* the numbers of the sequence's first ones */

  __device__ inline uint32_t keep(uint32_t query, uint32_t group) const {
    uint32_t c0 = group, c1 = offset, c2 = query, c3 = pair, k0 = key0, k1 = key1;
#pragma unroll
    for (int round = 0; round < 10; ++round) {
      const uint64_t first = static_cast<uint64_t>(c0) * 0xD2511F53u;
      const uint64_t second = static_cast<uint64_t>(c2) * 0xCD9E8D57u;
      c0 = static_cast<uint32_t>(second >> 32) ^ c1 ^ k0;
      c2 = static_cast<uint32_t>(first >> 32) ^ c3 ^ k1;
      c1 = static_cast<uint32_t>(second);
      c3 = static_cast<uint32_t>(first);
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    return (c0 >= threshold ? 1u : 0u) | (c1 >= threshold ? 2u : 0u) | (c2 >= threshold ? 4u : 0u) |
           (c3 >= threshold ? 8u : 0u);
  }

  /* Of the sequence's keys from `key` on, a multiple of 4, for one of its queries. */
  __device__ inline uint32_t keep_four(uint32_t query, uint32_t key) const {
    const uint32_t number = first_key + key, past = number % 4;
    uint32_t bits = 0;
#pragma unroll 1
    for (uint32_t next = 0; next <= (past + 3) / 4; ++next) /* two draws at one place need fewer registers than at two */
      bits |= keep(first_query + query, number / 4 + next) << 4 * next;
    return bits >> past & 15u;
  }
};

static_assert(sizeof(Dropout) == 7 * sizeof(float), "attention.cpp's kDropoutFloats");

__device__ inline Dropout dropout_of(const AttentionArguments &a, const Place &place) {
  const uint64_t seed = static_cast<uint64_t>(a.rng_state[0]), offset = static_cast<uint64_t>(a.rng_state[1]);
  const int sequence = a.place.sequences == nullptr ? place.sequence : a.place.sequences[place.sequence];
  return {static_cast<uint32_t>(seed),
          static_cast<uint32_t>(seed >> 32) ^ static_cast<uint32_t>(offset >> 32),
          static_cast<uint32_t>(offset),
          static_cast<uint32_t>(sequence) * static_cast<uint32_t>(a.place.heads) +
              static_cast<uint32_t>(a.place.first_head + place.head),
          a.threshold,
          static_cast<uint32_t>(first_number(a.place.first_queries, place.sequence)),
          static_cast<uint32_t>(first_number(a.place.first_keys, place.sequence))};
}

/* Which weights dropout keeps; own rows are queries, tile rows keys. */
template <class S>
__device__ inline uint32_t kept_of_queries(int query, int key, const Place &place, const AttentionArguments &a) {
  if (a.threshold == 0) return 0xffffffffu;
  const Dropout dropout = dropout_of(a, place);
  uint32_t bits = 0;
#pragma unroll 1
  for (int r = 0; r < S::kOwn; ++r) bits |= dropout.keep_four(query + row_of(r), key + 4 * lane()) << 4 * r;
  return bits;
}

/* The same where own rows are keys and tile rows queries: a draw is for four own rows, and so is spread. `dropout` lies
 * in shared memory, for registers are scarce; it is not read where nothing is dropped. */
template <class S>
__device__ inline uint32_t kept_of_keys(int key, int query, const Dropout &dropout, const AttentionArguments &a) {
  if (a.threshold == 0) return 0xffffffffu;
  uint32_t bits = 0;
#pragma unroll 1
  for (int i = 0; i < S::kOwn; ++i) { /* as many draws as own rows: a fourth of them, for four queries each */
    const int r = i / 4 * 4, u = i % 4;
    const uint32_t four = dropout.keep_four(query + 4 * lane() + u, key + row_of(r));
    bits |= ((four & 1) | (four & 2) << 3 | (four & 4) << 6 | (four & 8) << 9) << (4 * r + u);
  }
  return bits;
}

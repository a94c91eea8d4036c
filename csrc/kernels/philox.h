// Philox4x32-10, the counter-based random numbers of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
// (2011). One draw is a pure function of what it is for, so it needs no state and no order.
#pragma once

#include <cstdint>

namespace chairlift {

// 64 random bits for one token. key = (seed low, seed high), counter = (position, branch, 0, 0); the result is output
// word 0 | output word 1 << 32.
inline uint64_t philox_u64(uint64_t seed, uint32_t branch, uint32_t position) {
  uint32_t key0 = static_cast<uint32_t>(seed), key1 = static_cast<uint32_t>(seed >> 32);
  uint32_t c0 = position, c1 = branch, c2 = 0, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c0, product1 = uint64_t{0xCD9E8D57u} * c2;
    c0 = static_cast<uint32_t>(product1 >> 32) ^ c1 ^ key0;
    c1 = static_cast<uint32_t>(product1);
    c2 = static_cast<uint32_t>(product0 >> 32) ^ c3 ^ key1;
    c3 = static_cast<uint32_t>(product0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c0 | uint64_t{c1} << 32;
}

}  // namespace chairlift

// Rounding to 8 bits one value at a time: what the versions under arch/ do in vectors.
#pragma once

#include <algorithm>

#include "kernels/quantise.h"

namespace chairlift {

// Bits of the largest |x| of n values.
inline uint32_t largest_magnitude(const float* x, int64_t n) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, float_to_bits(x[i]) & 0x7fffffffu);
  return largest;
}

inline int8_t round_to_int8(float x, float inverse) {
  constexpr float kRound = exp_constants::kRound;  // adding and taking it away rounds to an integer, ties to even
  return static_cast<int8_t>(x * inverse + kRound - kRound);
}

}  // namespace chairlift

// What every version of rounding to 8 bits shares: q = x * (127 / max) to the nearest even, scale = max / 127, where max
// is the largest |x| of a group of activations, or of a token's K or V. `static`: files under arch/ include this, and
// their copy must not be shared with generic code.
//
// The largest |x| is found among the bit patterns: as integers they order NaN above infinity above everything else, and
// the order of the values doesn't matter.
#pragma once

#include "arch/kernel_table.h"
#include "kernels/math.h"

namespace chairlift {

namespace quantise_constants {  // bits of a largest |x|
constexpr uint32_t kInfinity = 0x7f800000u;
constexpr uint32_t kSmallest = 0x0d800000u;  // 2^-100; 127 / anything above is finite
}  // namespace quantise_constants

// Whether values are rounded at all; else all q are 0 and the scale says why.
static inline bool is_rounded(uint32_t largest) {
  return largest >= quantise_constants::kSmallest && largest < quantise_constants::kInfinity;
}

// NaN where a value is not finite, so that it stays visible; 0 where all are next to 0.
static inline float scale_of_zeros(uint32_t largest) {
  return largest < quantise_constants::kInfinity ? 0.0f : __builtin_nanf("");
}

static inline void store_zeros(uint32_t largest, QuantGroup& group) {
  group = {};
  group.scale = group.scaled_sum = scale_of_zeros(largest);
}

// Everything but q, from their sum.
static inline void store_scale(float max, int32_t sum, QuantGroup& group) {
  group.scale = max / 127.0f;
  group.scaled_sum = group.scale * static_cast<float>(sum);
  group.bias = -128 * sum;
  group.unused = 0;
}

}  // namespace chairlift

// Addresses of the rows of a tile.
#pragma once

#include "arch/avx512/lanes.h"

namespace chairlift {
namespace {

// R rows at the same column. A pointer and two strides reach 5 rows through the processor's address forms; the empty
// asm keeps the compiler from spelling out a pointer for each.
template <int R>
struct RowPointers {
  static constexpr int kBases = (R + 4) / 5;
  const char* base[kBases];  // rows 0, 5, 10, ...
  int64_t stride, stride3;   // bytes

  CHAIRLIFT_INLINE RowPointers(const void* x, int64_t row_bytes) : stride(row_bytes), stride3(3 * row_bytes) {
    for (int b = 0; b < kBases; ++b) base[b] = static_cast<const char*>(x) + 5 * b * row_bytes;
    asm("" : "+r"(stride), "+r"(stride3));
  }

  CHAIRLIFT_INLINE const char* at(int r) const {
    const int64_t offset[5] = {0, stride, 2 * stride, stride3, 4 * stride};
    return base[r / 5] + offset[r % 5];
  }

  CHAIRLIFT_INLINE void advance(int64_t bytes) {
#pragma GCC unroll 5
    for (int b = 0; b < kBases; ++b) {
      base[b] += bytes;
      asm("" : "+r"(base[b]));
    }
  }
};

}  // namespace
}  // namespace chairlift

// Linear kernels of the integer layouts for every 64-bit Arm.
#include "arch/neon/integer_tiles.h"
#include "arch/neon/linear.h"

namespace chairlift {
namespace {

// Products of 8 bits in 16, then pairs of adjacent k added into 32.
struct WideningDot {
  static constexpr int kMaxRows = 2;

  struct Sum {
    int32x4_t low, high;  // two partial sums each for outputs 0 and 1, and for 2 and 3
  };

  static CHAIRLIFT_INLINE void add(Sum& sum, int8x16_t w, int8x16_t q) {
    sum.low = vpadalq_s16(sum.low, vmull_s8(vget_low_s8(w), vget_low_s8(q)));
    sum.high = vpadalq_s16(sum.high, vmull_high_s8(w, q));
  }

  static CHAIRLIFT_INLINE int32x4_t total(const Sum& sum) { return vpaddq_s32(sum.low, sum.high); }
};

}  // namespace

namespace neon {

void panels_int4(const PanelTask& task) { integer_panels<WideningDot, Int4>(task); }
void panels_int8(const PanelTask& task) { integer_panels<WideningDot, Int8>(task); }

int64_t int8_peak(int64_t iterations, int32_t* sink) {
  const int8x16_t w = vdupq_n_s8(15), x = vdupq_n_s8(-1);
  WideningDot::Sum sums[8];
  for (int j = 0; j < 8; ++j) sums[j].low = sums[j].high = vdupq_n_s32(0);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) WideningDot::add(sums[j], w, x);
  }
  for (int j = 0; j < 8; ++j) *sink ^= vaddvq_s32(WideningDot::total(sums[j]));
  return iterations * 8 * 16;
}

}  // namespace neon
}  // namespace chairlift

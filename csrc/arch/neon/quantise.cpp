// Rounding activations to 8 bits: the operations of kernels/integer_generic.cpp.
#include "arch/neon/lanes.h"
#include "arch/neon/linear.h"
#include "kernels/quantise.h"

namespace chairlift {
namespace {

constexpr int kGroupVectors = 8;

// Bits of the largest |x|.
CHAIRLIFT_INLINE uint32_t largest_magnitude(const float* x) {
  uint32x4_t largest = vdupq_n_u32(0);
#pragma GCC unroll 8
  for (int v = 0; v < kGroupVectors; ++v) {
    largest = vmaxq_u32(largest, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + 4 * v))));
  }
  return vmaxvq_u32(largest);
}

// q to nearest even; returns their sum.
CHAIRLIFT_INLINE int32_t round_all(const float* x, float inverse, int8_t* q) {
  int32x4_t sum = vdupq_n_s32(0);
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    int16x4_t narrow[4];
#pragma GCC unroll 4
    for (int v = 0; v < 4; ++v) {
      const int32x4_t rounded = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(x + 16 * half + 4 * v), inverse));
      sum = vaddq_s32(sum, rounded);
      narrow[v] = vmovn_s32(rounded);
    }
    vst1_s8(q + 16 * half, vmovn_s16(vcombine_s16(narrow[0], narrow[1])));
    vst1_s8(q + 16 * half + 8, vmovn_s16(vcombine_s16(narrow[2], narrow[3])));
  }
  return vaddvq_s32(sum);
}

void quantise_group(const float* x, QuantGroup& group) {
  const uint32_t largest = largest_magnitude(x);
  if (!is_rounded(largest)) return store_zeros(largest, group);
  const float max = float_from_bits(largest);
  store_scale(max, round_all(x, 127.0f / max, group.q), group);
}

}  // namespace

namespace neon {

void quantise(const float* x, int64_t num_groups, QuantGroup* out) {
  for (int64_t g = 0; g < num_groups; ++g) quantise_group(x + 4 * kGroupVectors * g, out[g]);
}

}  // namespace neon
}  // namespace chairlift

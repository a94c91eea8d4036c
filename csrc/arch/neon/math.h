// exp and the gated activations on 4 lanes: the operations of kernels/math.h in the same order, so the same bits.
#pragma once

#include <arm_neon.h>

#include "kernels/math.h"

namespace chairlift {
namespace {

inline float32x4_t exp_f32x4(float32x4_t x) {
  using namespace exp_constants;
  x = vmaxq_f32(vdupq_n_f32(kLowest), x);  // keeps NaN
  x = vminq_f32(vdupq_n_f32(kHighest), x);
  const float32x4_t round = vdupq_n_f32(kRound);
  const float32x4_t shifted = vfmaq_f32(round, x, vdupq_n_f32(kLog2E));
  const float32x4_t n = vsubq_f32(shifted, round);
  float32x4_t r = vfmaq_f32(x, n, vdupq_n_f32(-kLn2High));
  r = vfmaq_f32(r, n, vdupq_n_f32(-kLn2Low));
  float32x4_t p = vdupq_n_f32(kP[0]);
  for (int i = 1; i < 6; ++i) p = vfmaq_f32(vdupq_n_f32(kP[i]), p, r);
  p = vaddq_f32(vfmaq_f32(r, p, vmulq_f32(r, r)), vdupq_n_f32(1.0f));
  const int32x4_t exponent = vsubq_s32(vreinterpretq_s32_f32(shifted), vreinterpretq_s32_f32(round));
  const int32x4_t half = vshrq_n_s32(exponent, 1);
  const int32x4_t bias = vdupq_n_s32(127);
  const int32x4_t scale1 = vshlq_n_s32(vaddq_s32(half, bias), 23);
  const int32x4_t scale2 = vshlq_n_s32(vaddq_s32(vsubq_s32(exponent, half), bias), 23);
  return vmulq_f32(vmulq_f32(p, vreinterpretq_f32_s32(scale1)), vreinterpretq_f32_s32(scale2));
}

inline float32x4_t silu_f32x4(float32x4_t x) {
  const float32x4_t e = exp_f32x4(vsubq_f32(vdupq_n_f32(0.0f), x));
  return vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0f), e));
}

inline float32x4_t gelu_tanh_f32x4(float32x4_t x) {
  const float32x4_t slope = vfmaq_f32(vdupq_n_f32(gelu_constants::kLinear), vmulq_f32(x, x),
                                      vdupq_n_f32(gelu_constants::kCubic));
  const float32x4_t e = exp_f32x4(vmulq_f32(x, slope));
  return vdivq_f32(x, vaddq_f32(vdupq_n_f32(1.0f), e));
}

}  // namespace
}  // namespace chairlift

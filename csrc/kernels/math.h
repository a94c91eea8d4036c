// exp and the gated activations, the same bits as arch/*/math.h: the same operations in the same order.
// `static`: files under arch/ include this for its constants and their copy must not be shared with generic code.
#pragma once

#include "kernels/half.h"

namespace chairlift {

static inline float fma_f32(float a, float b, float c) { return __builtin_fmaf(a, b, c); }

// exp(x) = 2^n * e^r with n = round(x / ln 2), |r| <= ln(2) / 2; e^r = 1 + r + r^2 * P(r), P of Cephes' expf.
namespace exp_constants {
constexpr float kLowest = -104.0f;  // exp is below half of the smallest subnormal
constexpr float kHighest = 89.0f;   // exp is infinite
constexpr float kLog2E = 1.44269504088896341f;
constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it leaves the rounded integer in the low bits
constexpr float kLn2High = 0.693359375f;
constexpr float kLn2Low = -2.12194440e-4f;
constexpr float kP[6] = {1.9875691500e-4f, 1.3981999507e-3f, 8.3334519073e-3f,
                         4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f};
}  // namespace exp_constants

namespace gelu_constants {  // -2 * sqrt(2 / pi), and that times 0.044715
constexpr float kLinear = -1.5957691216057308f;
constexpr float kCubic = -0.071354816272600242f;
}  // namespace gelu_constants

// -inf -> 0, large -> inf, NaN -> NaN, subnormal results rounded twice at most.
static inline float exp_f32(float x) {
  using namespace exp_constants;
  x = kLowest > x ? kLowest : x;  // keeps NaN
  x = kHighest < x ? kHighest : x;
  const float shifted = fma_f32(x, kLog2E, kRound);
  const float n = shifted - kRound;
  float r = fma_f32(n, -kLn2High, x);
  r = fma_f32(n, -kLn2Low, r);
  float p = kP[0];
  for (int i = 1; i < 6; ++i) p = fma_f32(p, r, kP[i]);
  p = fma_f32(p, r * r, r) + 1.0f;
  // 2^n in two factors: n reaches from below the smallest exponent to above the largest.
  const int32_t exponent = static_cast<int32_t>(float_to_bits(shifted) - float_to_bits(kRound));
  const int32_t half = exponent >> 1;
  const float scale1 = float_from_bits(static_cast<uint32_t>(half + 127) << 23);
  const float scale2 = float_from_bits(static_cast<uint32_t>(exponent - half + 127) << 23);
  return p * scale1 * scale2;
}

// x / (1 + exp(-x))
static inline float silu_f32(float x) { return x / (1.0f + exp_f32(0.0f - x)); }

// 0.5 x (1 + tanh(u)) = x / (1 + exp(-2u)), u = sqrt(2 / pi) * (x + 0.044715 x^3)
static inline float gelu_tanh_f32(float x) {
  const float slope = fma_f32(x * x, gelu_constants::kCubic, gelu_constants::kLinear);
  return x / (1.0f + exp_f32(x * slope));
}

}  // namespace chairlift

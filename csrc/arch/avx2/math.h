// exp and the gated activations on 8 lanes: the operations of kernels/math.h in the same order, so the same bits.
#pragma once

#include <immintrin.h>

#include "kernels/math.h"

namespace chairlift {
namespace {

inline __m256 exp_f32x8(__m256 x) {
  using namespace exp_constants;
  x = _mm256_max_ps(_mm256_set1_ps(kLowest), x);  // keeps NaN: the second operand wins
  x = _mm256_min_ps(_mm256_set1_ps(kHighest), x);
  const __m256 round = _mm256_set1_ps(kRound);
  const __m256 shifted = _mm256_fmadd_ps(x, _mm256_set1_ps(kLog2E), round);
  const __m256 n = _mm256_sub_ps(shifted, round);
  __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2High), x);
  r = _mm256_fmadd_ps(n, _mm256_set1_ps(-kLn2Low), r);
  __m256 p = _mm256_set1_ps(kP[0]);
  for (int i = 1; i < 6; ++i) p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(kP[i]));
  p = _mm256_add_ps(_mm256_fmadd_ps(p, _mm256_mul_ps(r, r), r), _mm256_set1_ps(1.0f));
  const __m256i exponent = _mm256_sub_epi32(_mm256_castps_si256(shifted), _mm256_castps_si256(round));
  const __m256i half = _mm256_srai_epi32(exponent, 1);
  const __m256i bias = _mm256_set1_epi32(127);
  const __m256i scale1 = _mm256_slli_epi32(_mm256_add_epi32(half, bias), 23);
  const __m256i scale2 = _mm256_slli_epi32(_mm256_add_epi32(_mm256_sub_epi32(exponent, half), bias), 23);
  return _mm256_mul_ps(_mm256_mul_ps(p, _mm256_castsi256_ps(scale1)), _mm256_castsi256_ps(scale2));
}

inline __m256 silu_f32x8(__m256 x) {
  const __m256 e = exp_f32x8(_mm256_sub_ps(_mm256_setzero_ps(), x));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

inline __m256 gelu_tanh_f32x8(__m256 x) {
  const __m256 slope = _mm256_fmadd_ps(_mm256_mul_ps(x, x), _mm256_set1_ps(gelu_constants::kCubic),
                                       _mm256_set1_ps(gelu_constants::kLinear));
  const __m256 e = exp_f32x8(_mm256_mul_ps(x, slope));
  return _mm256_div_ps(x, _mm256_add_ps(_mm256_set1_ps(1.0f), e));
}

}  // namespace
}  // namespace chairlift

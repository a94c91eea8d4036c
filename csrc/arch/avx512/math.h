// exp and the gated activations on 16 lanes: the operations of kernels/math.h in the same order, so the same bits.
#pragma once

#include <immintrin.h>

#include "kernels/math.h"

namespace chairlift {
namespace {

inline __m512 exp_f32x16(__m512 x) {
  using namespace exp_constants;
  x = _mm512_max_ps(_mm512_set1_ps(kLowest), x);  // keeps NaN: the second operand wins
  x = _mm512_min_ps(_mm512_set1_ps(kHighest), x);
  const __m512 round = _mm512_set1_ps(kRound);
  const __m512 shifted = _mm512_fmadd_ps(x, _mm512_set1_ps(kLog2E), round);
  const __m512 n = _mm512_sub_ps(shifted, round);
  __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2High), x);
  r = _mm512_fmadd_ps(n, _mm512_set1_ps(-kLn2Low), r);
  __m512 p = _mm512_set1_ps(kP[0]);
  for (int i = 1; i < 6; ++i) p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(kP[i]));
  p = _mm512_add_ps(_mm512_fmadd_ps(p, _mm512_mul_ps(r, r), r), _mm512_set1_ps(1.0f));
  const __m512i exponent = _mm512_sub_epi32(_mm512_castps_si512(shifted), _mm512_castps_si512(round));
  const __m512i half = _mm512_srai_epi32(exponent, 1);
  const __m512i bias = _mm512_set1_epi32(127);
  const __m512i scale1 = _mm512_slli_epi32(_mm512_add_epi32(half, bias), 23);
  const __m512i scale2 = _mm512_slli_epi32(_mm512_add_epi32(_mm512_sub_epi32(exponent, half), bias), 23);
  return _mm512_mul_ps(_mm512_mul_ps(p, _mm512_castsi512_ps(scale1)), _mm512_castsi512_ps(scale2));
}

inline __m512 silu_f32x16(__m512 x) {
  const __m512 e = exp_f32x16(_mm512_sub_ps(_mm512_setzero_ps(), x));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

inline __m512 gelu_tanh_f32x16(__m512 x) {
  const __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(x, x), _mm512_set1_ps(gelu_constants::kCubic),
                                       _mm512_set1_ps(gelu_constants::kLinear));
  const __m512 e = exp_f32x16(_mm512_mul_ps(x, slope));
  return _mm512_div_ps(x, _mm512_add_ps(_mm512_set1_ps(1.0f), e));
}

}  // namespace
}  // namespace chairlift

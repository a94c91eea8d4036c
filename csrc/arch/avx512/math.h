// exp and the gated activations on 16 lanes: the operations of kernels/math.h in the same order, so the same bits.
#pragma once

#include <immintrin.h>

#include "arch/avx512/lanes.h"
#include "kernels/math.h"

namespace chairlift {
namespace {

// exp of N vectors. One is a chain of dependent operations; several step by step side by side keep the units busy.
template <int N>
CHAIRLIFT_INLINE void exp_f32x16(__m512 (&x)[N]) {
  using namespace exp_constants;
  const __m512 round = _mm512_set1_ps(kRound);
  __m512 n[N], r[N], p[N];
  const auto each = [](auto step) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) step(i);
  };
  // Keeps NaN: the second operand wins.
  each([&](int i) { x[i] = _mm512_max_ps(_mm512_set1_ps(kLowest), x[i]); });
  each([&](int i) { x[i] = _mm512_min_ps(_mm512_set1_ps(kHighest), x[i]); });
  each([&](int i) { n[i] = _mm512_sub_ps(_mm512_fmadd_ps(x[i], _mm512_set1_ps(kLog2E), round), round); });
  each([&](int i) { r[i] = _mm512_fmadd_ps(n[i], _mm512_set1_ps(-kLn2High), x[i]); });
  each([&](int i) { r[i] = _mm512_fmadd_ps(n[i], _mm512_set1_ps(-kLn2Low), r[i]); });
  each([&](int i) { p[i] = _mm512_fmadd_ps(_mm512_set1_ps(kP[0]), r[i], _mm512_set1_ps(kP[1])); });
#pragma GCC unroll 4
  for (int k = 2; k < 6; ++k) {
    each([&](int i) { p[i] = _mm512_fmadd_ps(p[i], r[i], _mm512_set1_ps(kP[k])); });
  }
  each([&](int i) { p[i] = _mm512_fmadd_ps(p[i], _mm512_mul_ps(r[i], r[i]), r[i]); });
  each([&](int i) { p[i] = _mm512_add_ps(p[i], _mm512_set1_ps(1.0f)); });
  // p * 2^n, rounded once, as the two products are: the first is exact.
  each([&](int i) { x[i] = _mm512_scalef_ps(p[i], n[i]); });
}

template <int N>
CHAIRLIFT_INLINE void silu_f32x16(__m512 (&x)[N]) {
  __m512 e[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) e[i] = _mm512_sub_ps(_mm512_setzero_ps(), x[i]);
  exp_f32x16(e);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) x[i] = _mm512_div_ps(x[i], _mm512_add_ps(_mm512_set1_ps(1.0f), e[i]));
}

template <int N>
CHAIRLIFT_INLINE void gelu_tanh_f32x16(__m512 (&x)[N]) {
  __m512 e[N];
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) {
    const __m512 slope = _mm512_fmadd_ps(_mm512_mul_ps(x[i], x[i]), _mm512_set1_ps(gelu_constants::kCubic),
                                         _mm512_set1_ps(gelu_constants::kLinear));
    e[i] = _mm512_mul_ps(x[i], slope);
  }
  exp_f32x16(e);
#pragma GCC unroll 4
  for (int i = 0; i < N; ++i) x[i] = _mm512_div_ps(x[i], _mm512_add_ps(_mm512_set1_ps(1.0f), e[i]));
}

}  // namespace
}  // namespace chairlift

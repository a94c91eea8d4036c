// What AVX-512 VNNI does at most.
#include <immintrin.h>

#include "arch/avx512vnni/linear.h"

namespace chairlift::avx512vnni {

int64_t int8_peak(int64_t iterations, int32_t* sink) {
  constexpr int kChains = 12;
  const __m512i w = _mm512_set1_epi8(15), x = _mm512_set1_epi8(-1);
  __m512i acc[kChains];
  for (int j = 0; j < kChains; ++j) acc[j] = _mm512_setzero_si512();
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) acc[j] = _mm512_dpbusd_epi32(acc[j], w, x);
  }
  for (int j = 0; j < kChains; ++j) *sink ^= _mm_cvtsi128_si32(_mm512_castsi512_si128(acc[j]));
  return iterations * kChains * 64;
}

}  // namespace chairlift::avx512vnni

// What AVX2 does at most with 8-bit integers: products of pairs summed in 16 bits, widened after every 8.
#include "arch/avx2/integer_tiles.h"
#include "arch/avx2/linear.h"

namespace chairlift::avx2 {

int64_t int8_peak(int64_t iterations, int32_t* sink) {
  constexpr int kChains = 6;
  const __m256i w = _mm256_set1_epi8(15), x = _mm256_set1_epi8(-1);
  __m256i acc[kChains];
  for (int j = 0; j < kChains; ++j) acc[j] = _mm256_setzero_si256();
  for (int64_t i = 0; i < iterations; ++i) {
    __m256i narrow[kChains];
    for (int j = 0; j < kChains; ++j) {
      narrow[j] = _mm256_setzero_si256();
      asm volatile("" : "+x"(narrow[j]));  // or the compiler sees that all chains are one
    }
#pragma GCC unroll 8
    for (int k = 0; k < 8; ++k) {
#pragma GCC unroll 6
      for (int j = 0; j < kChains; ++j) narrow[j] = PairDot::next(narrow[j], w, x);
    }
#pragma GCC unroll 6
    for (int j = 0; j < kChains; ++j) acc[j] = _mm256_add_epi32(acc[j], PairDot::widen<1>(narrow[j]));
  }
  for (int j = 0; j < kChains; ++j) *sink ^= _mm256_extract_epi32(acc[j], 0);
  return iterations * kChains * 8 * 32;
}

}  // namespace chairlift::avx2

// Sixteen virtual lanes as one register: the 8-4-2-1 tree that sums them, masks, and the fma that holds a broadcast.
#pragma once

#include <immintrin.h>

#include <cstdint>

#define CHAIRLIFT_INLINE inline __attribute__((always_inline))

namespace chairlift {
namespace {

// sum += x * w, in place and with the broadcast inside the instruction: as one of its own it takes time from the fma
// units. Written out because GCC 12 likes the forms of the fma that overwrite a factor, and then moves and spills
// accumulators.
CHAIRLIFT_INLINE void fma_into(__m512& sum, const float& x, __m512 w) {
  asm("vfmadd231ps %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(x));
}

CHAIRLIFT_INLINE __m256 low_lanes(__m512 x) { return _mm512_castps512_ps256(x); }
CHAIRLIFT_INLINE __m256 high_lanes(__m512 x) { return _mm512_extractf32x8_ps(x, 1); }

CHAIRLIFT_INLINE float tree_sum(__m512 lanes) {
  const __m256 eight = _mm256_add_ps(low_lanes(lanes), high_lanes(lanes));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

CHAIRLIFT_INLINE float max_of_lanes(__m512 lanes) {
  const __m256 eight = _mm256_max_ps(low_lanes(lanes), high_lanes(lanes));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

// The first n of 16 lanes, n >= 0.
CHAIRLIFT_INLINE __mmask16 first_lanes(int64_t n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : (1 << n) - 1);
}

}  // namespace
}  // namespace chairlift

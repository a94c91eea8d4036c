// Rounding activations to 8 bits: the operations of kernels/integer_generic.cpp, so the same bits.
#include "arch/avx2/lanes.h"
#include "arch/avx2/linear.h"
#include "kernels/quantise.h"

namespace chairlift {
namespace {

CHAIRLIFT_INLINE __m128i max_of_halves(__m256i x) {
  return _mm_max_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

// Bits of the largest |x|.
CHAIRLIFT_INLINE uint32_t largest_magnitude(const __m256 (&x)[4]) {
  __m256i magnitude[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) magnitude[i] = _mm256_and_si256(_mm256_castps_si256(x[i]), _mm256_set1_epi32(0x7fffffff));
  const __m128i four = max_of_halves(_mm256_max_epi32(_mm256_max_epi32(magnitude[0], magnitude[1]),
                                                      _mm256_max_epi32(magnitude[2], magnitude[3])));
  const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1))));
}

CHAIRLIFT_INLINE int sum_of_bytes(__m256i q) {
  const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), q);
  const __m256i eight = _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

// To nearest even, which is how the processor is set.
CHAIRLIFT_INLINE __m256i round32(const __m256 (&x)[4], __m256 inverse) {
  __m256i q[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(x[i], inverse));
  const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
  return _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));  // packing goes by halves
}

CHAIRLIFT_INLINE void quantise_group(const float* values, QuantGroup& group) {
  __m256 x[4];
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) x[i] = _mm256_loadu_ps(values + 8 * i);
  const uint32_t largest = largest_magnitude(x);
  if (!is_rounded(largest)) return store_zeros(largest, group);
  const float max = float_from_bits(largest);
  const __m256i q = round32(x, _mm256_set1_ps(127.0f / max));
  store_scale(max, sum_of_bytes(q), group);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(group.q), q);
}

}  // namespace

namespace avx2 {

void quantise(const float* x, int64_t num_groups, QuantGroup* out) {
  for (int64_t g = 0; g < num_groups; ++g) quantise_group(x + 32 * g, out[g]);
}

}  // namespace avx2
}  // namespace chairlift

// Rounding activations to 8 bits: the operations of kernels/integer_generic.cpp, so the same bits.
#include <immintrin.h>

#include "arch/avx512/lanes.h"
#include "arch/avx512vnni/linear.h"
#include "kernels/quantise.h"

namespace chairlift {
namespace {

CHAIRLIFT_INLINE uint32_t largest_magnitude(__m512 low, __m512 high) {
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  const __m512i both = _mm512_max_epu32(_mm512_and_si512(_mm512_castps_si512(low), magnitude),
                                        _mm512_and_si512(_mm512_castps_si512(high), magnitude));
  return _mm512_reduce_max_epu32(both);
}

CHAIRLIFT_INLINE int32_t sum_of_bytes(__m256i q) {
  const __m256i dwords = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), q);
  const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(dwords), _mm256_extracti128_si256(dwords, 1));
  const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

CHAIRLIFT_INLINE __m128i round16(__m512 x, __m512 inverse) {
  return _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(_mm512_mul_ps(x, inverse)));
}

CHAIRLIFT_INLINE void quantise_group(const float* x, QuantGroup& group) {
  const __m512 low = _mm512_loadu_ps(x), high = _mm512_loadu_ps(x + 16);
  const uint32_t largest = largest_magnitude(low, high);
  if (!is_rounded(largest)) return store_zeros(largest, group);
  const float max = float_from_bits(largest);
  const __m512 inverse = _mm512_set1_ps(127.0f / max);
  const __m256i q = _mm256_set_m128i(round16(high, inverse), round16(low, inverse));
  store_scale(max, sum_of_bytes(q), group);
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(group.q), q);
}

}  // namespace

namespace avx512vnni {

void quantise(const float* x, int64_t num_groups, QuantGroup* out) {
  for (int64_t g = 0; g < num_groups; ++g) quantise_group(x + 32 * g, out[g]);
}

}  // namespace avx512vnni
}  // namespace chairlift

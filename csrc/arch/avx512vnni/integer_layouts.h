// Reading weights of the integer layouts (kernels/packed_weight.h) as 512-bit vectors. A layout offers
//   kBytes            of a group
//   kHasBias          whether QuantGroup::bias is to be added
//   kHasMin           whether weights have a minimum
//   vector(group, i)  the bytes of vector i: four adjacent k of 16 outputs, unsigned
//   scale(group), min(group)
#pragma once

#include "arch/avx512/lanes.h"

namespace chairlift {
namespace {

CHAIRLIFT_INLINE __m512 load_half16(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}

CHAIRLIFT_INLINE __m512i load_dwords(const uint8_t* p) { return _mm512_loadu_si512(p); }

struct Int4 {
  static constexpr int64_t kBytes = 320;
  static constexpr bool kHasBias = false;
  static constexpr bool kHasMin = true;

  // Low nibbles are an even vector, high ones the next.
  static CHAIRLIFT_INLINE __m512i vector(const uint8_t* group, int i) {
    const __m512i packed = load_dwords(group + i / 2 * 64);
    return _mm512_and_si512(i % 2 == 0 ? packed : _mm512_srli_epi32(packed, 4), _mm512_set1_epi8(15));
  }
  static CHAIRLIFT_INLINE __m512 scale(const uint8_t* group) { return load_half16(group + 256); }
  static CHAIRLIFT_INLINE __m512 min(const uint8_t* group) { return load_half16(group + 288); }
};

struct Int8 {
  static constexpr int64_t kBytes = 544;
  static constexpr bool kHasBias = true;
  static constexpr bool kHasMin = false;

  static CHAIRLIFT_INLINE __m512i vector(const uint8_t* group, int i) { return load_dwords(group + i * 64); }
  static CHAIRLIFT_INLINE __m512 scale(const uint8_t* group) { return load_half16(group + 512); }
  static CHAIRLIFT_INLINE __m512 min(const uint8_t*) { return _mm512_setzero_ps(); }
};

}  // namespace
}  // namespace chairlift

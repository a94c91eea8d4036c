// Where the integer kernels of 256-bit vectors read weights from. A source offers, of a group of 32 k:
//   kBytes                 from group to group
//   kPasses                1, or 2 where the weights are low + 16 * high
//   vector<i>(group, h)    four adjacent k of 8 outputs, unsigned; i in 0 .. 8 * kPasses - 1, h is the half of the panel
//   scale(group, h), min(group, h)
//   kHasBias, kHasMin      whether QuantGroup::bias is to be added, and whether there is a minimum
#pragma once

#include "arch/avx2/lanes.h"

namespace chairlift {
namespace {

constexpr int kVectors = 8;  // of a group and half: 4 k each

CHAIRLIFT_INLINE __m256i load_bytes(const uint8_t* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}

CHAIRLIFT_INLINE __m256 load_halves(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

template <bool high>
CHAIRLIFT_INLINE __m256i nibbles(__m256i packed) {
  return _mm256_and_si256(high ? _mm256_srli_epi32(packed, 4) : packed, _mm256_set1_epi8(15));
}

struct Int4 {
  static constexpr int64_t kBytes = 320;
  static constexpr int kPasses = 1;
  static constexpr bool kHasBias = false, kHasMin = true;

  template <int i>
  static CHAIRLIFT_INLINE __m256i vector(const uint8_t* group, int h) {
    return nibbles<i % 2 == 1>(load_bytes(group + i / 2 * 64 + h * 32));
  }
  static CHAIRLIFT_INLINE __m256 scale(const uint8_t* group, int h) { return load_halves(group + 256 + h * 16); }
  static CHAIRLIFT_INLINE __m256 min(const uint8_t* group, int h) { return load_halves(group + 288 + h * 16); }
};

struct Int8 {
  static constexpr int64_t kBytes = 544;
  static constexpr int kPasses = 1;
  static constexpr bool kHasBias = true, kHasMin = false;

  template <int i>
  static CHAIRLIFT_INLINE __m256i vector(const uint8_t* group, int h) {
    return load_bytes(group + i * 64 + h * 32);
  }
  static CHAIRLIFT_INLINE __m256 scale(const uint8_t* group, int h) { return load_halves(group + 512 + h * 16); }
  static CHAIRLIFT_INLINE __m256 min(const uint8_t*, int) { return _mm256_setzero_ps(); }
};

// Int8 as two sets of 4-bit weights.
struct Int8Halves : Int8 {
  static constexpr int kPasses = 2;

  template <int i>
  static CHAIRLIFT_INLINE __m256i vector(const uint8_t* group, int h) {
    return nibbles<i / kVectors == 1>(load_bytes(group + i % kVectors * 64 + h * 32));
  }
};

}  // namespace
}  // namespace chairlift

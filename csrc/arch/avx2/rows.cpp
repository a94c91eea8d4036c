#include <immintrin.h>

#include "arch/avx2/lanes.h"
#include "kernels/quantise.h"
#include "kernels/step_kernels.h"

namespace chairlift {
namespace {

void widen(const uint16_t* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(x + i))));
  }
}

void narrow(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; i += 8) {
    const __m128i half = _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i), half);
  }
}

void widen_int8(const int8_t* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 8) {
    const __m128i bytes = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(x + i));
    _mm256_storeu_ps(y + i, _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)));
  }
}

uint32_t largest_magnitude(const float* x, int64_t n) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i largest = _mm256_setzero_si256();
  for (int64_t i = 0; i < n; i += 8) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i));
    largest = _mm256_max_epi32(largest, _mm256_and_si256(bits, magnitude));
  }
  __m128i four = _mm_max_epi32(_mm256_castsi256_si128(largest), _mm256_extracti128_si256(largest, 1));
  four = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
  return static_cast<uint32_t>(_mm_cvtsi128_si32(_mm_max_epi32(four, _mm_shuffle_epi32(four, 0xb1))));
}

void quantise(const float* x, int64_t n, int8_t* q, float* scale) {
  const uint32_t largest = largest_magnitude(x, n);
  const bool rounded = is_rounded(largest);
  const float max = float_from_bits(largest);
  *scale = rounded ? max / 127.0f : scale_of_zeros(largest);
  const __m256 inverse = _mm256_set1_ps(127.0f / max);
  for (int64_t i = 0; i < n; i += 8) {
    const __m256i integers = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverse));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(integers), _mm256_extracti128_si256(integers, 1));
    const __m128i bytes = rounded ? _mm_packs_epi16(words, words) : _mm_setzero_si128();
    _mm_storel_epi64(reinterpret_cast<__m128i*>(q + i), bytes);
  }
}

void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; i += 4) {
    const __m128 low = _mm_loadu_ps(x + i), high = _mm_loadu_ps(x + i + half);
    const __m128 c = _mm_loadu_ps(cos + i), s = _mm_loadu_ps(sin + i);
    _mm_storeu_ps(x + i, _mm_sub_ps(_mm_mul_ps(low, c), _mm_mul_ps(high, s)));
    _mm_storeu_ps(x + i + half, _mm_add_ps(_mm_mul_ps(high, c), _mm_mul_ps(low, s)));
  }
}

// Masked loads and stores are slow on some processors, so only the last few elements use them.
float sum_of_squares(const float* x, int64_t n) {
  __m256 low = _mm256_setzero_ps(), high = low;
  int64_t i = 0;
  for (; i + 16 <= n; i += 16) {
    const __m256 a = _mm256_loadu_ps(x + i), b = _mm256_loadu_ps(x + i + 8);
    low = _mm256_fmadd_ps(a, a, low);
    high = _mm256_fmadd_ps(b, b, high);
  }
  const __m256 a = _mm256_maskload_ps(x + i, first_lanes(n - i));  // past the end: zeros, the identity
  const __m256 b = _mm256_maskload_ps(x + i + 8, first_lanes(n - i - 8));
  return tree_sum(_mm256_fmadd_ps(a, a, low), _mm256_fmadd_ps(b, b, high));
}

void rms_norm(const float* x, int64_t n, const float* weight, float eps, float* y) {
  const __m128 mean = _mm_set_ss(sum_of_squares(x, n) / static_cast<float>(n) + eps);
  const float factor = 1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean));
  const __m256 factor8 = _mm256_set1_ps(factor);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + i), factor8);
    _mm256_storeu_ps(y + i, _mm256_mul_ps(scaled, _mm256_loadu_ps(weight + i)));
  }
  for (; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

}  // namespace

void register_avx2_rows(StepKernels& step) { step.row = {"avx2", widen, narrow, widen_int8, quantise, rotate, rms_norm}; }

}  // namespace chairlift

#include <immintrin.h>

#include "arch/avx2/lanes.h"
#include "arch/avx2/math.h"
#include "kernels/step_kernels.h"

namespace chairlift {
namespace {

// A partial last vector is filled with -inf, which changes no max, sum of exp or count.
inline __m256 load_padded(const float* x, int64_t left) {
  if (left >= 8) return _mm256_loadu_ps(x);
  const __m256i live = first_lanes(left);
  return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), _mm256_maskload_ps(x, live), _mm256_castsi256_ps(live));
}

inline void store_partial(float* x, int64_t left, __m256 value) {
  left >= 8 ? _mm256_storeu_ps(x, value) : _mm256_maskstore_ps(x, first_lanes(left), value);
}

inline unsigned bits_of(__m256 mask) { return static_cast<unsigned>(_mm256_movemask_ps(mask)); }

float max_of(const float* x, int64_t n) {
  __m256 max[2] = {_mm256_set1_ps(-__builtin_inff()), _mm256_set1_ps(-__builtin_inff())};
  for (int64_t i = 0; i < n; i += 16) {  // the second operand wins over NaN
    max[0] = _mm256_max_ps(load_padded(x + i, n - i), max[0]);
    max[1] = _mm256_max_ps(load_padded(x + i + 8, n - i - 8), max[1]);
  }
  return max_of_lanes(_mm256_max_ps(max[0], max[1]));
}

int64_t find(const float* x, int64_t n, float value) {
  const __m256 wanted = _mm256_set1_ps(value);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const unsigned equal = bits_of(_mm256_cmp_ps(_mm256_loadu_ps(x + i), wanted, _CMP_EQ_OQ));
    if (equal != 0) return i + __builtin_ctz(equal);
  }
  while (i < n && x[i] != value) ++i;
  return i;
}

int64_t at_least(const float* x, int64_t n, float floor, int32_t* indices) {
  const __m256 floor8 = _mm256_set1_ps(floor);
  int64_t count = 0, i = 0;
  for (; i + 8 <= n; i += 8) {
    unsigned hits = bits_of(_mm256_cmp_ps(_mm256_loadu_ps(x + i), floor8, _CMP_GE_OQ));
    for (; hits != 0; hits &= hits - 1) indices[count++] = static_cast<int32_t>(i + __builtin_ctz(hits));
  }
  for (; i < n; ++i) {
    if (x[i] >= floor) indices[count++] = static_cast<int32_t>(i);
  }
  return count;
}

float divide(const float* x, int64_t n, float divisor, float* y) {
  const __m256 divisor8 = _mm256_set1_ps(divisor), lowest = _mm256_set1_ps(-__builtin_inff());
  __m256 max = lowest;
  for (int64_t i = 0; i < n; i += 8) {
    __m256 q = _mm256_div_ps(load_padded(x + i, n - i), divisor8);
    q = _mm256_blendv_ps(q, lowest, _mm256_cmp_ps(q, q, _CMP_UNORD_Q));
    max = _mm256_max_ps(q, max);
    store_partial(y + i, n - i, q);
  }
  return max_of_lanes(max);
}

inline __m256 exp_or_zero(__m256 x, __m256 max) {
  const __m256 e = exp_f32x8(_mm256_sub_ps(x, max));
  return _mm256_and_ps(e, _mm256_cmp_ps(e, e, _CMP_ORD_Q));
}

inline __m256d add_truncated(__m256d sum, __m128 w) {
  return _mm256_add_pd(sum, _mm256_round_pd(_mm256_cvtps_pd(w), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC));
}

uint64_t weights(const float* x, int64_t n, float max, float* w) {
  constexpr int64_t kBlock = 8 * 4096;  // a lane of f64 holds the sum of 2^12 integers up to 2^40 exactly
  const __m256 max8 = _mm256_set1_ps(max), one = _mm256_set1_ps(kFixedOne);
  uint64_t total = 0;
  for (int64_t begin = 0; begin < n; begin += kBlock) {
    __m256d low = _mm256_setzero_pd(), high = low;
    for (int64_t i = begin; i < begin + kBlock && i < n; i += 8) {
      const __m256 weight = _mm256_mul_ps(exp_or_zero(load_padded(x + i, n - i), max8), one);
      store_partial(w + i, n - i, weight);
      low = add_truncated(low, _mm256_castps256_ps128(weight));
      high = add_truncated(high, _mm256_extractf128_ps(weight, 1));
    }
    double lanes[8];
    _mm256_storeu_pd(lanes, low);
    _mm256_storeu_pd(lanes + 4, high);
    for (const double lane : lanes) total += static_cast<uint64_t>(lane);
  }
  return total;
}

inline void add_wide(__m256 e, __m256d* sum) {
  sum[0] = _mm256_add_pd(sum[0], _mm256_cvtps_pd(_mm256_castps256_ps128(e)));
  sum[1] = _mm256_add_pd(sum[1], _mm256_cvtps_pd(_mm256_extractf128_ps(e, 1)));
}

double sum_exp(const float* x, int64_t n, float max) {
  const __m256 max8 = _mm256_set1_ps(max);
  __m256d sum[4] = {_mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd(), _mm256_setzero_pd()};
  for (int64_t i = 0; i < n; i += 16) {
    add_wide(exp_or_zero(load_padded(x + i, n - i), max8), sum);
    add_wide(exp_or_zero(load_padded(x + i + 8, n - i - 8), max8), sum + 2);
  }
  const __m256d four = _mm256_add_pd(_mm256_add_pd(sum[0], sum[2]), _mm256_add_pd(sum[1], sum[3]));
  const __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
  return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

inline int64_t count_set(__m256 mask) { return __builtin_popcount(bits_of(mask)); }

int64_t count_ahead(const float* x, int64_t n, int64_t token) {
  const float value = x[token];
  const __m256 value8 = _mm256_set1_ps(value);
  int64_t count = 0, i = 0;
  for (; i + 8 <= token; i += 8) count += count_set(_mm256_cmp_ps(_mm256_loadu_ps(x + i), value8, _CMP_GE_OQ));
  for (; i < token; ++i) count += x[i] >= value;
  for (; i + 8 <= n; i += 8) count += count_set(_mm256_cmp_ps(_mm256_loadu_ps(x + i), value8, _CMP_GT_OQ));
  for (; i < n; ++i) count += x[i] > value;
  return count;
}

}  // namespace

void register_avx2_sampling(StepKernels& step) {
  step.sampling = {"avx2", max_of, find, at_least, divide, weights, sum_exp, count_ahead};
}

}  // namespace chairlift

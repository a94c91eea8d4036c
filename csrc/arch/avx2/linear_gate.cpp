// The epilogue of gated linears, and the probes.
#include "arch/avx2/linear.h"
#include "arch/avx2/math.h"

namespace chairlift::avx2 {

void gate_silu(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_mul_ps(silu_f32x8(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
  }
}

void gate_gelu_tanh(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 8) {
    _mm256_storeu_ps(y + i, _mm256_mul_ps(gelu_tanh_f32x8(_mm256_loadu_ps(gate + i)), _mm256_loadu_ps(up + i)));
  }
}

int64_t fma_peak(int64_t iterations, float* sink) {
  const __m256 half = _mm256_set1_ps(0.5f), one = _mm256_set1_ps(1.0f);
  __m256 acc[12];
  for (int j = 0; j < 12; ++j) acc[j] = _mm256_setzero_ps();
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) acc[j] = _mm256_fmadd_ps(acc[j], half, one);
  }
  __m256 total = acc[0];
  for (int j = 1; j < 12; ++j) total = _mm256_add_ps(total, acc[j]);
  float lanes[8];
  _mm256_storeu_ps(lanes, total);
  *sink += lanes[0];
  return iterations * 12 * 8;
}

float stream(const float* data, int64_t n) {
  __m256 acc[8];
  for (int j = 0; j < 8; ++j) acc[j] = _mm256_setzero_ps();
  for (int64_t i = 0; i + 64 <= n; i += 64) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) acc[j] = _mm256_add_ps(acc[j], _mm256_loadu_ps(data + i + 8 * j));
  }
  __m256 total = acc[0];
  for (int j = 1; j < 8; ++j) total = _mm256_add_ps(total, acc[j]);
  float lanes[8];
  _mm256_storeu_ps(lanes, total);
  return lanes[0] + lanes[1] + lanes[2] + lanes[3] + lanes[4] + lanes[5] + lanes[6] + lanes[7];
}

}  // namespace chairlift::avx2

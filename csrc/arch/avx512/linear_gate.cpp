// The epilogue of gated linears, and the probes.
#include "arch/avx512/linear.h"
#include "arch/avx512/math.h"

namespace chairlift {
namespace {

template <typename Activation>
CHAIRLIFT_INLINE void gate_values(const float* gate, const float* up, int64_t n, float* y, Activation activation) {
  constexpr int kAbreast = 4;  // see exp_f32x16
  __m512 x[kAbreast], one[1];
  int64_t i = 0;
  for (; i + 16 * kAbreast <= n; i += 16 * kAbreast) {
#pragma GCC unroll 4
    for (int j = 0; j < kAbreast; ++j) x[j] = _mm512_loadu_ps(gate + i + 16 * j);
    activation(x);
#pragma GCC unroll 4
    for (int j = 0; j < kAbreast; ++j) {
      _mm512_storeu_ps(y + i + 16 * j, _mm512_mul_ps(x[j], _mm512_loadu_ps(up + i + 16 * j)));
    }
  }
  for (; i < n; i += 16) {
    one[0] = _mm512_loadu_ps(gate + i);
    activation(one);
    _mm512_storeu_ps(y + i, _mm512_mul_ps(one[0], _mm512_loadu_ps(up + i)));
  }
}

}  // namespace

namespace avx512 {

void gate_silu(const float* gate, const float* up, int64_t n, float* y) {
  gate_values(gate, up, n, y, [](auto& x) { silu_f32x16(x); });
}

void gate_gelu_tanh(const float* gate, const float* up, int64_t n, float* y) {
  gate_values(gate, up, n, y, [](auto& x) { gelu_tanh_f32x16(x); });
}

int64_t fma_peak(int64_t iterations, float* sink) {
  const __m512 half = _mm512_set1_ps(0.5f), one = _mm512_set1_ps(1.0f);
  __m512 acc[12];
  for (int j = 0; j < 12; ++j) acc[j] = _mm512_setzero_ps();
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < 12; ++j) acc[j] = _mm512_fmadd_ps(acc[j], half, one);
  }
  __m512 total = acc[0];
  for (int j = 1; j < 12; ++j) total = _mm512_add_ps(total, acc[j]);
  *sink += _mm512_cvtss_f32(total);
  return iterations * 12 * 16;
}

float stream(const float* data, int64_t n) {
  __m512 acc[4];
  for (int j = 0; j < 4; ++j) acc[j] = _mm512_setzero_ps();
  for (int64_t i = 0; i + 64 <= n; i += 64) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) acc[j] = _mm512_add_ps(acc[j], _mm512_loadu_ps(data + i + 16 * j));
  }
  return _mm512_reduce_add_ps(_mm512_add_ps(_mm512_add_ps(acc[0], acc[1]), _mm512_add_ps(acc[2], acc[3])));
}

}  // namespace avx512
}  // namespace chairlift

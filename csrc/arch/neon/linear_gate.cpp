// The epilogue of gated linears, and the probes.
#include "arch/neon/linear.h"
#include "arch/neon/math.h"

namespace chairlift::neon {

void gate_silu(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 4) vst1q_f32(y + i, vmulq_f32(silu_f32x4(vld1q_f32(gate + i)), vld1q_f32(up + i)));
}

void gate_gelu_tanh(const float* gate, const float* up, int64_t n, float* y) {
  for (int64_t i = 0; i < n; i += 4) {
    vst1q_f32(y + i, vmulq_f32(gelu_tanh_f32x4(vld1q_f32(gate + i)), vld1q_f32(up + i)));
  }
}

int64_t fma_peak(int64_t iterations, float* sink) {
  const float32x4_t half = vdupq_n_f32(0.5f);
  float32x4_t acc[16];  // 4 cycles of latency on 4 units
  for (int j = 0; j < 16; ++j) acc[j] = vdupq_n_f32(0.0f);
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < 16; ++j) acc[j] = vfmaq_f32(acc[j], half, half);
  }
  for (int j = 1; j < 16; ++j) acc[0] = vaddq_f32(acc[0], acc[j]);
  *sink += vaddvq_f32(acc[0]);
  return iterations * 16 * 4;
}

float stream(const float* data, int64_t n) {
  float32x4_t acc[8];
  for (int j = 0; j < 8; ++j) acc[j] = vdupq_n_f32(0.0f);
  for (int64_t i = 0; i + 32 <= n; i += 32) {
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) acc[j] = vaddq_f32(acc[j], vld1q_f32(data + i + 4 * j));
  }
  for (int j = 1; j < 8; ++j) acc[0] = vaddq_f32(acc[0], acc[j]);
  return vaddvq_f32(acc[0]);
}

}  // namespace chairlift::neon

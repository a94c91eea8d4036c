#include <algorithm>
#include <cmath>

#include "kernels/quantise_generic.h"
#include "kernels/step_kernels.h"

namespace chairlift {
namespace {

void widen(const uint16_t* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = float_from_half(x[i]);
}

void narrow(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = half_from_float(x[i]);
}

void widen_int8(const int8_t* x, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = static_cast<float>(x[i]);
}

void quantise(const float* x, int64_t n, int8_t* q, float* scale) {
  const uint32_t largest = largest_magnitude(x, n);
  if (!is_rounded(largest)) {
    *scale = scale_of_zeros(largest);
    std::fill(q, q + n, int8_t{0});
    return;
  }
  const float max = float_from_bits(largest), inverse = 127.0f / max;
  *scale = max / 127.0f;
  for (int64_t i = 0; i < n; ++i) q[i] = round_to_int8(x[i], inverse);
}

void rotate(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t i = 0; i < half; ++i) {
    const float low = x[i], high = x[i + half];
    x[i] = low * cos[i] - high * sin[i];
    x[i + half] = high * cos[i] + low * sin[i];
  }
}

void rms_norm(const float* x, int64_t n, const float* weight, float eps, float* y) {
  float lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) lanes[i % 16] = fma_f32(x[i], x[i], lanes[i % 16]);
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  const float factor = 1.0f / std::sqrt(lanes[0] / static_cast<float>(n) + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = x[i] * factor * weight[i];
}

}  // namespace

void register_generic_rows(StepKernels& step) { step.row = {"generic", widen, narrow, widen_int8, quantise, rotate, rms_norm}; }

}  // namespace chairlift

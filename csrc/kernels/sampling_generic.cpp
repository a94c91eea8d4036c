#include <limits>

#include "kernels/math.h"
#include "kernels/step_kernels.h"

namespace chairlift {
namespace {

constexpr float kLowest = -std::numeric_limits<float>::infinity();

float max_of(const float* x, int64_t n) {
  float max = kLowest;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] > max) max = x[i];
  }
  return max;
}

int64_t find(const float* x, int64_t n, float value) {
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] == value) return i;
  }
  return n;
}

int64_t at_least(const float* x, int64_t n, float floor, int32_t* indices) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) {
    if (x[i] >= floor) indices[count++] = static_cast<int32_t>(i);
  }
  return count;
}

float divide(const float* x, int64_t n, float divisor, float* y) {
  for (int64_t i = 0; i < n; ++i) {
    const float quotient = x[i] / divisor;
    y[i] = quotient == quotient ? quotient : kLowest;
  }
  return max_of(y, n);
}

uint64_t weights(const float* x, int64_t n, float max, float* w) {
  uint64_t sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const float e = exp_f32(x[i] - max);
    w[i] = e == e ? e * kFixedOne : 0.0f;
    sum += static_cast<uint64_t>(w[i]);
  }
  return sum;
}

double sum_exp(const float* x, int64_t n, float max) {
  double lanes[16] = {};
  for (int64_t i = 0; i < n; ++i) {
    const float e = exp_f32(x[i] - max);
    if (e == e) lanes[i % 16] += static_cast<double>(e);
  }
  for (int width = 8; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lanes[i] += lanes[i + width];
  }
  return lanes[0];
}

int64_t count_ahead(const float* x, int64_t n, int64_t token) {
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) count += x[i] > x[token] || (x[i] == x[token] && i < token);
  return count;
}

}  // namespace

void register_generic_sampling(StepKernels& step) {
  step.sampling = {"generic", max_of, find, at_least, divide, weights, sum_exp, count_ahead};
}

}  // namespace chairlift

// The readable version of the kernels with 8-bit activations: any processor, the same bits as every other version.
#include <algorithm>
#include <limits>

#include "arch/kernel_table.h"
#include "kernels/panel_weight.h"

namespace chairlift {
namespace {

constexpr float kRound = 12582912.0f;         // 1.5 * 2^23: adding and taking it away rounds to an integer, ties to even
constexpr uint32_t kInfinity = 0x7f800000u;   // bits of
constexpr uint32_t kSmallest = 0x0d800000u;   // 2^-100; 127 / anything above is finite

// Bits of the largest |x|. As integers they order NaN above infinity above everything else.
uint32_t largest_magnitude(const float* x) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < kGroupSize; ++i) largest = std::max(largest, float_to_bits(x[i]) & 0x7fffffffu);
  return largest;
}

void quantise_group(const float* x, QuantGroup& group) {
  const uint32_t largest = largest_magnitude(x);
  group = {};
  if (largest >= kInfinity) group.scale = group.scaled_sum = std::numeric_limits<float>::quiet_NaN();
  if (largest >= kInfinity || largest < kSmallest) return;
  const float max = float_from_bits(largest), inverse = 127.0f / max;
  int32_t sum = 0;
  for (int64_t i = 0; i < kGroupSize; ++i) {
    const auto q = static_cast<int32_t>(x[i] * inverse + kRound - kRound);
    group.q[i] = static_cast<int8_t>(q);
    sum += q;
  }
  group.scale = max / 127.0f;
  group.scaled_sum = group.scale * static_cast<float>(sum);
  group.bias = -128 * sum;
}

void quantise(const float* x, int64_t num_groups, QuantGroup* out) {
  for (int64_t g = 0; g < num_groups; ++g) quantise_group(x + g * kGroupSize, out[g]);
}

template <Layout layout>
void integers_of(const uint8_t* panel, int64_t group, int32_t* w) {
  for (int64_t i = 0; i < kGroupSize; ++i) {
    for (int64_t j = 0; j < kPanelWidth; ++j) {
      w[i * kPanelWidth + j] = panel_integer<layout>(panel, group * kGroupSize + i, j);
    }
  }
}

void dot_products(const QuantGroup& x, const int32_t* w, int32_t start, int32_t* dot) {
  for (int64_t j = 0; j < kPanelWidth; ++j) dot[j] = start;
  for (int64_t i = 0; i < kGroupSize; ++i) {
    for (int64_t j = 0; j < kPanelWidth; ++j) dot[j] += x.q[i] * w[i * kPanelWidth + j];
  }
}

// acc[j] gets what one group of one row adds.
template <Layout layout>
void add_group(const QuantGroup& x, const int32_t* w, const uint8_t* scales, float* acc) {
  int32_t dot[kPanelWidth];
  dot_products(x, w, layout == Layout::Int8 ? x.bias : 0, dot);
  for (int64_t j = 0; j < kPanelWidth; ++j) {
    const float scale = float_from_half(load_element<uint16_t>(scales, j)) * x.scale;
    acc[j] = fma_f32(static_cast<float>(dot[j]), scale, acc[j]);
    if (layout == Layout::Int4) {
      const float min = float_from_half(load_element<uint16_t>(scales, kPanelWidth + j));
      acc[j] = fma_f32(min, x.scaled_sum, acc[j]);
    }
  }
}

template <Layout layout>
void panels(const PanelTask& task) {
  constexpr int64_t kBytes = layout == Layout::Int4 ? kGroup4Bytes : kGroup8Bytes;
  constexpr int64_t kScales = layout == Layout::Int4 ? 256 : 512;  // bytes before them
  int32_t w[kGroupSize * kPanelWidth];
  std::fill(task.acc, task.acc + task.num_panels * task.rows * kPanelWidth, 0.0f);
  for (int64_t p = 0; p < task.num_panels; ++p) {
    const uint8_t* panel = task.panels + p * task.panel_bytes;
    for (int64_t g = 0; g < task.in / kGroupSize; ++g) {
      integers_of<layout>(panel, g, w);
      for (int64_t r = 0; r < task.rows; ++r) {
        float* acc = task.acc + (p * task.rows + r) * kPanelWidth;
        add_group<layout>(task.xq[r * task.x_stride + g], w, panel + g * kBytes + kScales, acc);
      }
    }
  }
}

int64_t int8_peak(int64_t iterations, int32_t* sink) {
  uint32_t acc[16] = {};
  for (int64_t i = 0; i < iterations; ++i) {
    for (uint32_t& a : acc) a = a * 77 + 1;
  }
  for (uint32_t a : acc) *sink ^= static_cast<int32_t>(a);
  return iterations * 16;
}

}  // namespace

void register_generic_integer(KernelTable& table) {
  table.linear.integer_origin = "generic";
  table.linear.panels[static_cast<int>(Layout::Int4)] = panels<Layout::Int4>;
  table.linear.panels[static_cast<int>(Layout::Int8)] = panels<Layout::Int8>;
  table.linear.quantise = quantise;
  table.probe.int8_peak = int8_peak;
}

}  // namespace chairlift

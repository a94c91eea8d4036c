// The readable version of the kernels with 8-bit activations: any processor, the same bits as every other version.
#include <algorithm>

#include "arch/kernel_table.h"
#include "kernels/panel_weight.h"
#include "kernels/quantise_generic.h"

namespace chairlift {
namespace {

void quantise_group(const float* x, QuantGroup& group) {
  const uint32_t largest = largest_magnitude(x, kGroupSize);
  if (!is_rounded(largest)) return store_zeros(largest, group);
  const float max = float_from_bits(largest), inverse = 127.0f / max;
  int32_t sum = 0;
  for (int64_t i = 0; i < kGroupSize; ++i) {
    group.q[i] = round_to_int8(x[i], inverse);
    sum += group.q[i];
  }
  store_scale(max, sum, group);
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

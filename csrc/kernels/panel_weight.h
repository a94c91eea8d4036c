// Reading one weight out of a panel: the readable definition of the layouts of packed_weight.h.
#pragma once

#include "kernels/math.h"
#include "kernels/packed_weight.h"

namespace chairlift {

template <typename T>
static inline T load_element(const uint8_t* base, int64_t index) {
  T value;
  std::memcpy(&value, base + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

static inline float group4_weight(const uint8_t* panel, int64_t k, int64_t lane) {
  const uint8_t* group = panel + k / kGroupSize * kGroup4Bytes;
  const int64_t offset = k % kGroupSize, field = offset / 4, row = offset % 4;
  const uint32_t dword = load_element<uint32_t>(group, row * kPanelWidth + lane);
  const float q = static_cast<float>((dword >> (4 * field)) & 0xfu);
  const float scale = float_from_half(load_element<uint16_t>(group + 256, lane));
  const float min = float_from_half(load_element<uint16_t>(group + 288, lane));
  return fma_f32(scale, q, min);
}

static inline float group8_weight(const uint8_t* panel, int64_t k, int64_t lane) {
  const uint8_t* group = panel + k / kGroupSize * kGroup8Bytes;
  const int64_t offset = k % kGroupSize, field = offset / 8, row = offset % 8;
  const uint32_t dword = load_element<uint32_t>(group, row * kPanelWidth + lane);
  const float q = static_cast<float>((dword >> (8 * field)) & 0xffu);
  const float scale = float_from_half(load_element<uint16_t>(group + 512, lane));
  return fma_f32(scale, q, -128.0f * scale);
}

// The weight w[lane, k] of a panel.
template <Layout layout>
static inline float panel_weight(const uint8_t* panel, int64_t k, int64_t lane) {
  const int64_t index = k * kPanelWidth + lane;
  if constexpr (layout == Layout::Group4) return group4_weight(panel, k, lane);
  if constexpr (layout == Layout::Group8) return group8_weight(panel, k, lane);
  if constexpr (layout == Layout::F16) return float_from_half(load_element<uint16_t>(panel, index));
  if constexpr (layout == Layout::BF16) return float_from_bfloat(load_element<uint16_t>(panel, index));
  if constexpr (layout == Layout::F32) return load_element<float>(panel, index);
}

}  // namespace chairlift

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

// The integer of an Int4 or Int8 weight, as it is stored: 0..15 or 1..255.
template <Layout layout>
static inline int32_t panel_integer(const uint8_t* panel, int64_t k, int64_t lane) {
  const int64_t offset = k % kGroupSize;
  if constexpr (layout == Layout::Int4) {
    const uint8_t* dwords = panel + k / kGroupSize * kGroup4Bytes + offset / 8 * kPanelWidth * 4;
    return (dwords[lane * 4 + offset % 4] >> (offset % 8 < 4 ? 0 : 4)) & 15;
  } else {
    const uint8_t* dwords = panel + k / kGroupSize * kGroup8Bytes + offset / 4 * kPanelWidth * 4;
    return dwords[lane * 4 + offset % 4];
  }
}

static inline float int4_weight(const uint8_t* panel, int64_t k, int64_t lane) {
  const uint8_t* scales = panel + k / kGroupSize * kGroup4Bytes + 256;
  const float scale = float_from_half(load_element<uint16_t>(scales, lane));
  const float min = float_from_half(load_element<uint16_t>(scales + 32, lane));
  return fma_f32(scale, static_cast<float>(panel_integer<Layout::Int4>(panel, k, lane)), min);
}

static inline float int8_weight(const uint8_t* panel, int64_t k, int64_t lane) {
  const float scale = float_from_half(load_element<uint16_t>(panel + k / kGroupSize * kGroup8Bytes + 512, lane));
  return scale * static_cast<float>(panel_integer<Layout::Int8>(panel, k, lane) - 128);
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
  if constexpr (layout == Layout::Int4) return int4_weight(panel, k, lane);
  if constexpr (layout == Layout::Int8) return int8_weight(panel, k, lane);
}

}  // namespace chairlift

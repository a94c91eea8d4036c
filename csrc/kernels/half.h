// 16-bit floats, converted exactly as F16C does. `static`: files under arch/ include this, and their copy must not
// be shared with generic code.
#pragma once

#include <cstdint>
#include <cstring>

namespace chairlift {

static inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

static inline uint32_t float_to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

static inline float float_from_half(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = half & 0x7fffu;
  if (magnitude >= 0x7c00u) {  // infinity, or a NaN made quiet
    const uint32_t quiet = magnitude > 0x7c00u ? 0x00400000u : 0u;
    return float_from_bits(sign | 0x7f800000u | ((magnitude & 0x3ffu) << 13) | quiet);
  }
  if (magnitude < 0x0400u) {  // zero or subnormal: magnitude * 2^-24 is exact
    const float value = static_cast<float>(magnitude) * 5.9604644775390625e-8f;
    return float_from_bits(float_to_bits(value) | sign);
  }
  return float_from_bits(sign | ((magnitude << 13) + 0x38000000u));
}

// Round to nearest, ties to even; overflow becomes infinity.
static inline uint16_t half_from_float(float value) {
  const uint32_t bits = float_to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);  // 65520 and above
  if (magnitude < 0x38800000u) {  // a half subnormal or zero: let the adder round at bit 2^-24
    const float rounded = float_from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (float_to_bits(rounded) - 0x3f000000u));
  }
  const uint32_t odd = (magnitude >> 13) & 1u;
  return static_cast<uint16_t>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

static inline float float_from_bfloat(uint16_t bfloat) { return float_from_bits(static_cast<uint32_t>(bfloat) << 16); }

}  // namespace chairlift

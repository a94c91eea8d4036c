// A panel of 16 outputs as four vectors.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#define CHAIRLIFT_INLINE inline __attribute__((always_inline))

namespace chairlift {
namespace {

constexpr int kWidth = 16;              // outputs of a panel
constexpr int kVectors = kWidth / 4;    // that hold them

// No load moves over it: GCC would start on all blocks of a tile at once, and then have to spill sums. Sums stay in
// registers if nobody holds their address, so they are passed by reference and no lambda captures them.
CHAIRLIFT_INLINE void finish_block() { asm volatile("" : : : "memory"); }

struct Panel {
  float32x4_t value[kVectors];
};

CHAIRLIFT_INLINE Panel load_panel(const float* p) {
  return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}

CHAIRLIFT_INLINE void store_panel(float* p, const Panel& panel) {
#pragma GCC unroll 4
  for (int v = 0; v < kVectors; ++v) vst1q_f32(p + 4 * v, panel.value[v]);
}

CHAIRLIFT_INLINE float32x4_t load_half4(const uint8_t* p) {
  return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

CHAIRLIFT_INLINE Panel load_half_panel(const uint8_t* p) {
  return {{load_half4(p), load_half4(p + 8), load_half4(p + 16), load_half4(p + 24)}};
}

}  // namespace
}  // namespace chairlift

// The shape of the NEON kernels with 8-bit activations, for any way to multiply. A tile of rows goes through a panel
// group by group: integer sums of 32 k in registers, float sums in memory.
//
// A way to multiply (Dot) offers
//   Sum           sums of 4 outputs, in the making
//   add(sum, w, q)   adds the products of 4 k of 4 outputs, w's bytes [output][k], with 4 k of a row, q four times
//   total(sum)    the 4 sums
//   kMaxRows      of a tile: 4 sums a row stay in registers
// All sums are exact, so their order is free; rounding begins where a group is added to the float sums.
#pragma once

#include "arch/kernel_table.h"
#include "arch/neon/lanes.h"

namespace chairlift {
namespace {

constexpr int kGroupSize = 32;

// Quarter a panel: the weights of 4 k, [output][k] for outputs 4 v to 4 v + 3 in vector v.
struct Quad {
  int8x16_t value[kVectors];
};

// Bytes of [4][16] dwords: k = 8 * j + b in the low nibble of byte b of dword j, k = 8 * j + 4 + b in the high one.
struct Int4 {
  static constexpr int64_t kScales = 256;
  static constexpr int64_t kBytes = kScales + 64;
  static constexpr bool kHasMin = true;

  template <int Quarter>
  static CHAIRLIFT_INLINE Quad load(const uint8_t* group) {
    Quad w;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const uint8x16_t pairs = vld1q_u8(group + Quarter / 2 * 64 + 16 * v);
      w.value[v] = vreinterpretq_s8_u8(Quarter % 2 == 0 ? vandq_u8(pairs, vdupq_n_u8(15)) : vshrq_n_u8(pairs, 4));
    }
    return w;
  }
};

// Bytes of [8][16] dwords: k = 4 * j + b in byte b of dword j, 128 too much.
struct Int8 {
  static constexpr int64_t kScales = 512;
  static constexpr int64_t kBytes = kScales + 32;
  static constexpr bool kHasMin = false;

  template <int Quarter>
  static CHAIRLIFT_INLINE Quad load(const uint8_t* group) {
    Quad w;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      w.value[v] = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(group + Quarter * 64 + 16 * v), vdupq_n_u8(128)));
    }
    return w;
  }
};

CHAIRLIFT_INLINE int8x16_t four_times(const int8_t* q) {
  return vreinterpretq_s8_s32(vld1q_dup_s32(reinterpret_cast<const int32_t*>(q)));
}

// Integer sums of R rows with a panel over one group.
template <class Dot, class Weights, int R>
struct GroupSums {
  typename Dot::Sum value[R][kVectors] = {};

  template <int Quarter = 0>
  CHAIRLIFT_INLINE void add(const QuantGroup* x, int64_t x_stride, const uint8_t* group) {
    const Quad w = Weights::template load<Quarter>(group);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const int8x16_t q = four_times(x[r * x_stride].q + 4 * Quarter);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) Dot::add(value[r][v], w.value[v], q);
    }
    finish_block();
    if constexpr (Quarter < 7) add<Quarter + 1>(x, x_stride, group);
  }

  // acc = fma(float(dot), scale of w * scale of x, acc), then the mins.
  CHAIRLIFT_INLINE void finish(const QuantGroup* x, int64_t x_stride, const uint8_t* scales, float* acc) const {
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const float32x4_t scale = load_half4(scales + 8 * v);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const QuantGroup& row = x[r * x_stride];
        float* sums = acc + r * kWidth + 4 * v;
        const float32x4_t dot = vcvtq_f32_s32(Dot::total(value[r][v]));
        float32x4_t sum = vfmaq_f32(vld1q_f32(sums), dot, vmulq_n_f32(scale, row.scale));
        if (Weights::kHasMin) sum = vfmaq_n_f32(sum, load_half4(scales + 32 + 8 * v), row.scaled_sum);
        vst1q_f32(sums, sum);
      }
    }
  }
};

template <class Dot, class Weights, int R>
void integer_tile(const QuantGroup* x, int64_t x_stride, int64_t in, const uint8_t* group, float* acc) {
  for (int64_t k = 0; k < in; k += kGroupSize, ++x, group += Weights::kBytes) {
    GroupSums<Dot, Weights, R> sums;
    sums.add(x, x_stride, group);
    sums.finish(x, x_stride, group + Weights::kScales, acc);
  }
}

using IntegerTile = void (*)(const QuantGroup* x, int64_t x_stride, int64_t in, const uint8_t* group, float* acc);

template <class Dot, class Weights, int R>
constexpr IntegerTile tile_of() {
  if constexpr (R <= Dot::kMaxRows) return integer_tile<Dot, Weights, R>;
  return nullptr;
}

template <class Dot, class Weights>
constexpr IntegerTile kIntegerTiles[7] = {nullptr,
                                          tile_of<Dot, Weights, 1>(),
                                          tile_of<Dot, Weights, 2>(),
                                          tile_of<Dot, Weights, 3>(),
                                          tile_of<Dot, Weights, 4>(),
                                          tile_of<Dot, Weights, 5>(),
                                          tile_of<Dot, Weights, 6>()};

// All rows against each panel, in tiles of nearly equal height.
template <class Dot, class Weights>
void integer_panels(const PanelTask& task) {
  float* acc = task.acc;
  for (int64_t i = 0; i < task.num_panels * task.rows * kWidth; i += 4) vst1q_f32(acc + i, vdupq_n_f32(0.0f));
  for (int64_t p = 0; p < task.num_panels; ++p) {
    const QuantGroup* x = task.xq;
    int64_t rows = task.rows;
    for (int64_t left = (rows + Dot::kMaxRows - 1) / Dot::kMaxRows; left > 0; --left) {
      const int64_t height = rows / left;
      kIntegerTiles<Dot, Weights>[height](x, task.x_stride, task.in, task.panels + p * task.panel_bytes, acc);
      x += height * task.x_stride;
      acc += height * kWidth;
      rows -= height;
    }
  }
}

}  // namespace
}  // namespace chairlift

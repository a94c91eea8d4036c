// Linear kernels of the group-quantised layouts (kernels/packed_weight.h).
#include "arch/neon/linear.h"
#include "arch/neon/linear_tiles.h"

namespace chairlift {
namespace {

// Bits = 4 or 8. A group is [Bits][16] dwords of 32 / Bits fields each, k = Bits * field + row, then the scales.
template <int Bits>
struct Group {
  static constexpr int kRows = Bits;
  static constexpr int kFields = 32 / Bits;
  static constexpr int64_t kDwordBytes = kRows * kWidth * 4;
  static constexpr int64_t kBytes = kDwordBytes + (Bits == 4 ? 64 : 32);

  static constexpr int kPanelsOfOneRow = 2;
  static constexpr int64_t offset(int64_t k) { return k / 32 * kBytes; }

  // w = fma(scale, q, offset) for the 16 lanes of a panel.
  struct Affine {
    Panel scale, offset;

    CHAIRLIFT_INLINE void load(const uint8_t* group) {
      scale = load_half_panel(group + kDwordBytes);
      if (Bits == 4) offset = load_half_panel(group + kDwordBytes + 32);
#pragma GCC unroll 4
      for (int v = 0; Bits == 8 && v < kVectors; ++v) offset.value[v] = vmulq_n_f32(scale.value[v], -128.0f);
    }
  };

  template <int P, class Use>
  static CHAIRLIFT_INLINE void for_each(const uint8_t* group, int64_t panel_bytes, int64_t num_k, Use& use) {
    for (int64_t k = 0; k < num_k; k += 32, group += kBytes) {
      Affine affine[P];
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) affine[p].load(group + p * panel_bytes);
      fields_from<0, P>(group, panel_bytes, affine, k, use);
    }
  }

  static const float* floats(const uint8_t* packed, int64_t num_k, float* buffer) {
    return unpack<Group>(packed, num_k, buffer);
  }

 private:
  // The kRows values of k that share a field of the group's dwords, field by field.
  template <int Field, int P, class Use>
  static CHAIRLIFT_INLINE void fields_from(const uint8_t* group, int64_t panel_bytes, const Affine (&affine)[P],
                                           int64_t k, Use& use) {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 2
      for (int p = 0; p < P; ++p) {
        use.take(k + Field * kRows + row, p, weights<Field>(group + p * panel_bytes + row * kWidth * 4, affine[p]));
      }
      finish_block();
    }
    if constexpr (Field + 1 < kFields) fields_from<Field + 1, P>(group, panel_bytes, affine, k, use);
  }

  template <int Field>
  static CHAIRLIFT_INLINE Panel weights(const uint8_t* dwords, const Affine& affine) {
    Panel w;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const float32x4_t q = field_of<Field>(vreinterpretq_u32_u8(vld1q_u8(dwords + 16 * v)));
      w.value[v] = vfmaq_f32(affine.offset.value[v], affine.scale.value[v], q);
    }
    return w;
  }

  // A field is only masked, and the conversion takes what it is too big by as fraction bits: exact.
  template <int Field>
  static CHAIRLIFT_INLINE float32x4_t field_of(uint32x4_t dwords) {
    constexpr uint32_t mask = ((1u << Bits) - 1) << (Bits * Field);
    const uint32x4_t masked = vandq_u32(dwords, vdupq_n_u32(mask));
    if constexpr (Field == 0) return vcvtq_f32_u32(masked);
    else return vcvtq_n_f32_u32(masked, Bits * Field);
  }
};

}  // namespace

namespace neon {

void panels_group4(const PanelTask& task) { panels<Group<4>>(task); }
void panels_group8(const PanelTask& task) { panels<Group<8>>(task); }

}  // namespace neon
}  // namespace chairlift

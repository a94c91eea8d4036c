// Linear kernels of the float layouts: [in][16] values of 2 or 4 bytes.
#include "arch/neon/linear.h"
#include "arch/neon/linear_tiles.h"

namespace chairlift {
namespace {

struct Half {
  static constexpr int64_t kBytes = 2;
  static CHAIRLIFT_INLINE Panel load(const uint8_t* p) { return load_half_panel(p); }
};

struct Bfloat {
  static constexpr int64_t kBytes = 2;
  static CHAIRLIFT_INLINE Panel load(const uint8_t* p) {
    Panel w;
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) {
      const uint16x4_t narrow = vreinterpret_u16_u8(vld1_u8(p + 8 * v));
      w.value[v] = vreinterpretq_f32_u32(vshll_n_u16(narrow, 16));
    }
    return w;
  }
};

struct Single {
  static constexpr int64_t kBytes = 4;
  static CHAIRLIFT_INLINE Panel load(const uint8_t* p) { return load_panel(reinterpret_cast<const float*>(p)); }
};

template <class Element>
struct Plain {
  static constexpr int64_t kRowBytes = kWidth * Element::kBytes;
  static constexpr int kPanelsOfOneRow = 4;
  static constexpr int64_t offset(int64_t k) { return k * kRowBytes; }

  template <int P, class Use>
  static CHAIRLIFT_INLINE void for_each(const uint8_t* packed, int64_t panel_bytes, int64_t num_k, Use& use) {
    for (int64_t k = 0; k < num_k; ++k, packed += kRowBytes) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) use.take(k, p, Element::load(packed + p * panel_bytes));
    }
  }

  static const float* floats(const uint8_t* packed, int64_t num_k, float* buffer) {
    if (Element::kBytes == 4) return reinterpret_cast<const float*>(packed);
    return unpack<Plain>(packed, num_k, buffer);
  }
};

}  // namespace

namespace neon {

void panels_f16(const PanelTask& task) { panels<Plain<Half>>(task); }
void panels_bf16(const PanelTask& task) { panels<Plain<Bfloat>>(task); }
void panels_f32(const PanelTask& task) { panels<Plain<Single>>(task); }

}  // namespace neon
}  // namespace chairlift

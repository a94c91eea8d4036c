// Linear kernels of the group-quantised layouts (kernels/packed_weight.h).
#include "arch/avx512/linear.h"
#include "arch/avx512/linear_tiles.h"

namespace chairlift {
namespace {

CHAIRLIFT_INLINE __m512 load_half16(const uint8_t* p) {
  return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
}

// Bits = 4 or 8. A group is [Bits][16] dwords of 32 / Bits fields each, k = Bits * field + row, then the scales.
//
// A field other than the last is only masked, and so comes out 2^(Bits * field) too big; the scale is made smaller by
// the same power of two, and the product inside the fma is exactly scale * q. The last field is shifted down (it
// would be negative).
template <int Bits>
struct Group {
  static constexpr int kRows = Bits;
  static constexpr int kFields = 32 / Bits;
  static constexpr int64_t kDwordBytes = kRows * kWidth * 4;
  static constexpr int64_t kBytes = kDwordBytes + (Bits == 4 ? 64 : 32);

  static constexpr int kZeroInfinityNaN = 0x01 | 0x02 | 0x04 | 0x08 | 0x10 | 0x80;  // of vfpclassps

  static constexpr bool kFloats = false;
  static constexpr int64_t offset(int64_t k) { return k / 32 * kBytes; }

  // w = fma(scale, q, offset) for the 16 lanes of a panel.
  struct Affine {
    __m512 full_scale, scale, offset;
    __mmask16 scaled;  // lanes whose scale is an ordinary number

    CHAIRLIFT_INLINE void load(const uint8_t* group) {
      scale = full_scale = load_half16(group + kDwordBytes);
      offset = Bits == 4 ? load_half16(group + kDwordBytes + 32) : _mm512_mul_ps(scale, _mm512_set1_ps(-128.0f));
      scaled = static_cast<__mmask16>(~_mm512_fpclass_ps_mask(scale, kZeroInfinityNaN));
    }

    // Divides the scale by 2^Bits. A single row does so with a product; with more, the fma units are busier than
    // the others, and it is done in the exponent. A file's f16 is far from the smallest exponents of f32.
    template <bool product>
    CHAIRLIFT_INLINE void next_field() {
      const __m512i bits = _mm512_castps_si512(scale);
      scale = product ? _mm512_mul_ps(scale, _mm512_set1_ps(1.0f / (1 << Bits)))
                      : _mm512_castsi512_ps(_mm512_mask_sub_epi32(bits, scaled, bits, _mm512_set1_epi32(Bits << 23)));
    }
  };

  template <int R, int P, bool keep>
  static void fused_tile(const TileTask& task) {
    Sums<R, P> sums;
    sums.load(task.acc, task.acc_stride, task.first);
    Rows<R> x(task.x, task.x_stride);
    const uint8_t *group = task.packed, *next = task.next;
    float* buffer = task.buffer;
    const int64_t panel_bytes = task.panel_bytes;
    for (int64_t k = task.num_k; k > 0; k -= 32, group += kBytes, next += kBytes) {
      Affine affine[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) affine[p].load(group + p * panel_bytes);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) prefetch(next + p * panel_bytes);
      __m512i mask = _mm512_set1_epi32((1 << Bits) - 1);
      for (int field = 0; field < kFields - 1; ++field) {
        add_field<R, P, keep, false>(x, group, panel_bytes, affine, mask, buffer, sums);
        mask = _mm512_slli_epi32(mask, Bits);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) affine[p].template next_field<R == 1>();
        buffer += kRows * kWidth;
      }
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) affine[p].scale = affine[p].full_scale;
      add_field<R, P, keep, true>(x, group, panel_bytes, affine, mask, buffer, sums);
      buffer += kRows * kWidth;
    }
    sums.store(task.acc, task.acc_stride);
  }

  // A pair of 4-bit panels fits into the first-level cache beside everything else, of 8-bit ones only into the second.
  static CHAIRLIFT_INLINE void prefetch(const uint8_t* group) {
#pragma GCC unroll 9
    for (int64_t byte = 0; byte < kBytes; byte += 64) {
      _mm_prefetch(reinterpret_cast<const char*>(group + byte), Bits == 4 ? _MM_HINT_T0 : _MM_HINT_T1);
    }
  }

  // The kRows values of k that share a field of the group's dwords.
  template <int R, int P, bool keep, bool last>
  static CHAIRLIFT_INLINE void add_field(Rows<R>& x, const uint8_t* group, int64_t panel_bytes,
                                         const Affine (&affine)[P], const __m512i& mask, float* buffer,
                                         Sums<R, P>& sums) {
    constexpr bool hold = Bits == 4 && R <= 16;
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      __m512 w[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const __m512i field = field_of<hold, last>(group + p * panel_bytes + row * kWidth * 4, mask);
        w[p] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(field), affine[p].scale, affine[p].offset);
        if (keep) _mm512_store_ps(buffer + row * kWidth, w[p]);
      }
      sums.add(x, w);
      x.next();
    }
  }

  // GCC likes to hold the dwords of all rows in registers from field to field. Where there is no room for that beside
  // the sums, instructions written out read them from memory.
  template <bool hold, bool last>
  static CHAIRLIFT_INLINE __m512i field_of(const uint8_t* dwords, __m512i mask) {
    const auto& packed = *reinterpret_cast<const __m512i*>(dwords);
    if (hold) return last ? _mm512_srli_epi32(packed, 32 - Bits) : _mm512_and_si512(packed, mask);
    __m512i field;
    if (last) {
      asm("vpsrld %2, %1, %0" : "=v"(field) : "m"(packed), "i"(32 - Bits));
    } else {
      asm("vpandd %2, %1, %0" : "=v"(field) : "v"(mask), "m"(packed));
    }
    return field;
  }
};

}  // namespace

namespace avx512 {

void panels_group4(const PanelTask& task) { panels<Group<4>>(task); }
void panels_group8(const PanelTask& task) { panels<Group<8>>(task); }

}  // namespace avx512
}  // namespace chairlift

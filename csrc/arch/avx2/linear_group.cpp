// Linear kernels of the group-quantised layouts (kernels/packed_weight.h).
#include "arch/avx2/linear.h"
#include "arch/avx2/linear_tiles.h"

namespace chairlift {
namespace {

CHAIRLIFT_INLINE __m256 load_half8(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
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

  static constexpr bool kFloats = false;
  static constexpr int kPanelsOfOneRow = 2, kPanelsOfTwoRows = 1;
  // More than 4 rows would need more registers than there are. After these, tiles of 6 rows or nearly remain.
  static constexpr int kMaxFusedRows = 4;
  static constexpr int kFusedRows[6] = {0, 3, 3, 3, 4, 0};
  static constexpr int64_t offset(int64_t k) { return k / 32 * kBytes; }

  // w = fma(scale, q, offset) for the 16 lanes of a panel: scale, scale, offset, offset.
  struct Affine {
    __m256 value[4];

    CHAIRLIFT_INLINE void load(const uint8_t* group) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        value[half] = load_half8(group + kDwordBytes + 16 * half);
        value[2 + half] = Bits == 4 ? load_half8(group + kDwordBytes + 32 + 16 * half)
                                    : _mm256_mul_ps(value[half], _mm256_set1_ps(-128.0f));
      }
    }

    CHAIRLIFT_INLINE void next_field() {
      const __m256 unit = _mm256_set1_ps(1.0f / (1 << Bits));
      value[0] = _mm256_mul_ps(value[0], unit);
      value[1] = _mm256_mul_ps(value[1], unit);
    }
  };

  template <int R, int P, bool keep>
  static void fused_tile(const TileTask& task) {
    Sums<R, P> sums;
    sums.load(task.acc, task.first);
    const float* x = task.x;
    const uint8_t *group = task.packed, *next = task.next;
    float* buffer = task.buffer;
    const int64_t x_stride = task.x_stride, panel_bytes = task.panel_bytes;
    for (int64_t k = 0; k < task.num_k; k += 32, group += kBytes, next += kBytes) {
      Affine affine[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) affine[p].load(group + p * panel_bytes);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) prefetch(next + p * panel_bytes);
      __m256i mask = _mm256_set1_epi32((1 << Bits) - 1);
      for (int field = 0; field < kFields - 1; ++field) {
        add_field<R, P, keep, false>(x, x_stride, group, panel_bytes, affine, mask, buffer, sums);
        mask = _mm256_slli_epi32(mask, Bits);
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) affine[p].next_field();
        x += kRows;
        buffer += kRows * kWidth;
      }
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) affine[p].load(group + p * panel_bytes);
      add_field<R, P, keep, true>(x, x_stride, group, panel_bytes, affine, mask, buffer, sums);
      x += kRows;
      buffer += kRows * kWidth;
    }
    sums.store(task.acc);
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
  static CHAIRLIFT_INLINE void add_field(const float* x, int64_t x_stride, const uint8_t* group, int64_t panel_bytes,
                                         const Affine (&affine)[P], const __m256i& mask, float* buffer,
                                         Sums<R, P>& sums) {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const __m256* a = affine[p].value;
        const uint8_t* dwords = group + p * panel_bytes + row * kWidth * 4;
        const __m256 w0 = weight<last>(dwords, mask, a[0], a[2]);
        const __m256 w1 = weight<last>(dwords + 32, mask, a[1], a[3]);
        if (keep) {
          _mm256_store_ps(buffer + row * kWidth, w0);
          _mm256_store_ps(buffer + row * kWidth + 8, w1);
        }
        sums.add(p, x + row, x_stride, w0, w1);
      }
    }
  }

  template <bool last>
  static CHAIRLIFT_INLINE __m256 weight(const uint8_t* dwords, __m256i mask, __m256 scale, __m256 offset) {
    const __m256i packed = _mm256_load_si256(reinterpret_cast<const __m256i*>(dwords));
    const __m256i field = last ? _mm256_srli_epi32(packed, 32 - Bits) : _mm256_and_si256(packed, mask);
    return _mm256_fmadd_ps(_mm256_cvtepi32_ps(field), scale, offset);
  }
};

}  // namespace

namespace avx2 {

void panels_group4(const PanelTask& task) { panels<Group<4>>(task); }
void panels_group8(const PanelTask& task) { panels<Group<8>>(task); }

}  // namespace avx2
}  // namespace chairlift

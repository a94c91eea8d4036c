// Linear kernels of the group-quantised layouts (kernels/packed_weight.h).
#include "arch/avx2/linear.h"
#include "arch/avx2/linear_tiles.h"

namespace chairlift {
namespace {

// Eight lanes' scale and offset in one group: w = fma(scale, q, offset).
struct Affine {
  __m256 scale, offset;
};

CHAIRLIFT_INLINE __m256 load_half8(const uint8_t* p) {
  return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
}

// Bits = 4 or 8. A group is [Bits][16] dwords of 32 / Bits fields each, k = Bits * field + row, then the scales.
template <int Bits>
struct Group {
  static constexpr int kRows = Bits;
  static constexpr int kFields = 32 / Bits;
  static constexpr int64_t kDwordBytes = kRows * kWidth * 4;
  static constexpr int64_t kBytes = kDwordBytes + (Bits == 4 ? 64 : 32);

  static CHAIRLIFT_INLINE Affine load_affine(const uint8_t* group, int half) {
    Affine affine;
    affine.scale = load_half8(group + kDwordBytes + 16 * half);
    if (Bits == 4) {
      affine.offset = load_half8(group + kDwordBytes + 32 + 16 * half);
    } else {
      affine.offset = _mm256_mul_ps(affine.scale, _mm256_set1_ps(-128.0f));
    }
    return affine;
  }

  // Field `field` of 8 dwords as floats. All but the last stay where they are in the dword, 2^(Bits * field) too big.
  static CHAIRLIFT_INLINE __m256 isolate(const uint8_t* dwords, int field) {
    const __m256i packed = _mm256_load_si256(reinterpret_cast<const __m256i*>(dwords));
    if (field == kFields - 1) return _mm256_cvtepi32_ps(_mm256_srli_epi32(packed, 32 - Bits));
    const __m256i mask = _mm256_set1_epi32(((1 << Bits) - 1) << (Bits * field));
    return _mm256_cvtepi32_ps(_mm256_and_si256(packed, mask));
  }

  // What makes up for that: a power of two, so the product in the fma is exactly scale * q.
  static constexpr float field_unit(int field) {
    return field == kFields - 1 ? 1.0f : 1.0f / static_cast<float>(1 << (Bits * field));
  }

  static CHAIRLIFT_INLINE __m256 weight(const uint8_t* dwords, int field, const Affine& affine) {
    return _mm256_fmadd_ps(affine.scale, isolate(dwords, field), affine.offset);
  }

  static CHAIRLIFT_INLINE Affine field_affine(const Affine& affine, int field) {
    return {_mm256_mul_ps(affine.scale, _mm256_set1_ps(field_unit(field))), affine.offset};
  }

  static const float* dequantise(const uint8_t* panel, int64_t first_k, int64_t num_k, float* buffer) {
    const uint8_t* group = panel + first_k / 32 * kBytes;
    for (int64_t k = 0; k < num_k; k += 32, group += kBytes) {
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const Affine affine = load_affine(group, half);
        float* out = buffer + k * kWidth + 8 * half;
#pragma GCC unroll 8
        for (int field = 0; field < kFields; ++field) {
          const Affine scaled = field_affine(affine, field);
#pragma GCC unroll 8
          for (int row = 0; row < kRows; ++row) {
            _mm256_store_ps(out + (field * kRows + row) * kWidth,
                            weight(group + (row * kWidth + 8 * half) * 4, field, scaled));
          }
        }
      }
    }
    return buffer;
  }

  template <int R, int P>
  static void direct(const PanelTask& task, const uint8_t* panel, float* acc) {
    Sums<R, P> sums;
    sums.clear();
    const uint8_t* group = panel;
    for (int64_t k = 0; k < task.in; k += 32, group += kBytes) {
      Affine affine[P][2];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        affine[p][0] = load_affine(group + p * task.panel_bytes, 0);
        affine[p][1] = load_affine(group + p * task.panel_bytes, 1);
      }
#pragma GCC unroll 8
      for (int field = 0; field < kFields; ++field) {
        direct_field<R, P>(task, group, k + field * kRows, field, affine, sums);
      }
    }
    sums.store(acc);
  }

  template <int R, int P>
  static CHAIRLIFT_INLINE void direct_field(const PanelTask& task, const uint8_t* group, int64_t k, int field,
                                            const Affine (&affine)[P][2], Sums<R, P>& sums) {
    Affine scaled[P][2];
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      scaled[p][0] = field_affine(affine[p][0], field);
      scaled[p][1] = field_affine(affine[p][1], field);
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      __m256 x[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) x[r] = _mm256_broadcast_ss(task.x + r * task.x_stride + k + row);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const uint8_t* dwords = group + p * task.panel_bytes + row * kWidth * 4;
        const __m256 w0 = weight(dwords, field, scaled[p][0]);
        const __m256 w1 = weight(dwords + 32, field, scaled[p][1]);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          sums.value[p][r][0] = _mm256_fmadd_ps(x[r], w0, sums.value[p][r][0]);
          sums.value[p][r][1] = _mm256_fmadd_ps(x[r], w1, sums.value[p][r][1]);
        }
      }
    }
  }
};

}  // namespace

namespace avx2 {

void panels_group4(const PanelTask& task) { panels<Group<4>>(task); }
void panels_group8(const PanelTask& task) { panels<Group<8>>(task); }

}  // namespace avx2
}  // namespace chairlift

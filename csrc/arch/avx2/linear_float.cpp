// Linear kernels of the float layouts: [in][16] values of 2 or 4 bytes.
#include "arch/avx2/linear.h"
#include "arch/avx2/linear_tiles.h"

namespace chairlift {
namespace {

struct Half {
  static constexpr int64_t kBytes = 2;
  static CHAIRLIFT_INLINE __m256 load8(const uint8_t* p) {
    return _mm256_cvtph_ps(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
  }
};

struct Bfloat {
  static constexpr int64_t kBytes = 2;
  static CHAIRLIFT_INLINE __m256 load8(const uint8_t* p) {
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_load_si128(reinterpret_cast<const __m128i*>(p)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
  }
};

struct Single {
  static constexpr int64_t kBytes = 4;
  static CHAIRLIFT_INLINE __m256 load8(const uint8_t* p) { return _mm256_load_ps(reinterpret_cast<const float*>(p)); }
};

template <class Element>
struct Plain {
  static constexpr int64_t kRowBytes = kWidth * Element::kBytes;

  static constexpr bool kFloats = Element::kBytes == 4;
  static constexpr int kPanelsOfOneRow = 4, kPanelsOfTwoRows = 2;
  static constexpr int kMaxFusedRows = 6;
  static constexpr int kFusedRows[6] = {6, 4, 4, 3, 4, 5};
  static constexpr int64_t offset(int64_t k) { return k * kRowBytes; }

  template <int R, int P, bool keep>
  static void fused_tile(const TileTask& task) {
    Sums<R, P> sums;
    sums.load(task.acc, task.first);
    const float* x = task.x;
    const uint8_t *packed = task.packed, *next = task.next;
    float* buffer = task.buffer;
    const int64_t x_stride = task.x_stride, panel_bytes = task.panel_bytes, num_k = task.num_k;
#pragma GCC unroll 4
    for (int64_t k = 0; k < num_k; ++k, packed += kRowBytes, next += kRowBytes) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        _mm_prefetch(reinterpret_cast<const char*>(next + p * panel_bytes), _MM_HINT_T1);
        const __m256 w0 = Element::load8(packed + p * panel_bytes);
        const __m256 w1 = Element::load8(packed + p * panel_bytes + 8 * Element::kBytes);
        if (keep && !kFloats) {
          _mm256_store_ps(buffer + k * kWidth, w0);
          _mm256_store_ps(buffer + k * kWidth + 8, w1);
        }
        sums.add(p, x + k, x_stride, w0, w1);
      }
    }
    sums.store(task.acc);
  }
};

}  // namespace

namespace avx2 {

void panels_f16(const PanelTask& task) { panels<Plain<Half>>(task); }
void panels_bf16(const PanelTask& task) { panels<Plain<Bfloat>>(task); }
void panels_f32(const PanelTask& task) { panels<Plain<Single>>(task); }

}  // namespace avx2
}  // namespace chairlift

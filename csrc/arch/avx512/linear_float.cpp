// Linear kernels of the float layouts: [in][16] values of 2 or 4 bytes.
#include "arch/avx512/linear.h"
#include "arch/avx512/linear_tiles.h"

namespace chairlift {
namespace {

struct Half {
  static constexpr int64_t kBytes = 2;
  static CHAIRLIFT_INLINE __m512 load(const uint8_t* p) {
    return _mm512_cvtph_ps(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
  }
};

struct Bfloat {
  static constexpr int64_t kBytes = 2;
  static CHAIRLIFT_INLINE __m512 load(const uint8_t* p) {
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_load_si256(reinterpret_cast<const __m256i*>(p)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
  }
};

struct Single {
  static constexpr int64_t kBytes = 4;
  static CHAIRLIFT_INLINE __m512 load(const uint8_t* p) { return _mm512_load_ps(p); }
};

template <class Element>
struct Plain {
  static constexpr int64_t kRowBytes = kWidth * Element::kBytes;
  static constexpr bool kFloats = Element::kBytes == 4;
  static constexpr int64_t offset(int64_t k) { return k * kRowBytes; }

  template <int R, int P, bool keep>
  static void fused_tile(const TileTask& task) {
    Sums<R, P> sums;
    sums.load(task.acc, task.acc_stride, task.first);
    Rows<R> x(task.x, task.x_stride);
    const uint8_t *packed = task.packed, *next = task.next;
    float* buffer = task.buffer;
    const int64_t panel_bytes = task.panel_bytes;
#pragma GCC unroll 4
    for (int64_t k = task.num_k; k > 0; --k, packed += kRowBytes, next += kRowBytes, buffer += kWidth, x.next()) {
      __m512 w[P];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        _mm_prefetch(reinterpret_cast<const char*>(next + p * panel_bytes), _MM_HINT_T1);
        w[p] = Element::load(packed + p * panel_bytes);
        if (keep && !kFloats) _mm512_store_ps(buffer, w[p]);
      }
      sums.add(x, w);
    }
    sums.store(task.acc, task.acc_stride);
  }
};

}  // namespace

namespace avx512 {

void panels_f16(const PanelTask& task) { panels<Plain<Half>>(task); }
void panels_bf16(const PanelTask& task) { panels<Plain<Bfloat>>(task); }
void panels_f32(const PanelTask& task) { panels<Plain<Single>>(task); }

}  // namespace avx512
}  // namespace chairlift

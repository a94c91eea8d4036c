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

  static const float* dequantise(const uint8_t* panel, int64_t first_k, int64_t num_k, float* buffer) {
    const uint8_t* row = panel + first_k * kRowBytes;
    if (Element::kBytes == 4) return reinterpret_cast<const float*>(row);
    for (int64_t k = 0; k < num_k; ++k, row += kRowBytes) {
      _mm256_store_ps(buffer + k * kWidth, Element::load8(row));
      _mm256_store_ps(buffer + k * kWidth + 8, Element::load8(row + 8 * Element::kBytes));
    }
    return buffer;
  }

  template <int R, int P>
  static void direct(const PanelTask& task, const uint8_t* panel, float* acc) {
    Sums<R, P> sums;
    sums.clear();
    const uint8_t* row = panel;
#pragma GCC unroll 4
    for (int64_t k = 0; k < task.in; ++k, row += kRowBytes) {
      __m256 x[R];
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) x[r] = _mm256_broadcast_ss(task.x + r * task.x_stride + k);
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        const __m256 w0 = Element::load8(row + p * task.panel_bytes);
        const __m256 w1 = Element::load8(row + p * task.panel_bytes + 8 * Element::kBytes);
#pragma GCC unroll 4
        for (int r = 0; r < R; ++r) {
          sums.value[p][r][0] = _mm256_fmadd_ps(x[r], w0, sums.value[p][r][0]);
          sums.value[p][r][1] = _mm256_fmadd_ps(x[r], w1, sums.value[p][r][1]);
        }
      }
    }
    sums.store(acc);
  }
};

}  // namespace

namespace avx2 {

void panels_f16(const PanelTask& task) { panels<Plain<Half>>(task); }
void panels_bf16(const PanelTask& task) { panels<Plain<Bfloat>>(task); }
void panels_f32(const PanelTask& task) { panels<Plain<Single>>(task); }

}  // namespace avx2
}  // namespace chairlift

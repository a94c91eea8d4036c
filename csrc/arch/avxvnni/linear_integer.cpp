// Products with 8-bit activations by AVX-VNNI, for processors that have it and lack AVX-512: the tiles of AVX2 with
// another instruction in the middle.
#include "arch/avx2/integer_tiles.h"

namespace chairlift {
namespace {

// Four products at once, summed in 32 bits: nothing to widen, and 8-bit weights fit.
struct QuadDot {
  static CHAIRLIFT_INLINE __m256i first(__m256i w, __m256i x) { return next(_mm256_setzero_si256(), w, x); }
  static CHAIRLIFT_INLINE __m256i next(__m256i sum, __m256i w, __m256i x) {
    return _mm256_dpbusd_avx_epi32(sum, w, x);
  }
  template <int>
  static CHAIRLIFT_INLINE __m256i widen(__m256i sum) {
    return sum;
  }
};

void panels_int4(const PanelTask& task) { panels<QuadDot, Int4>(task); }
void panels_int8(const PanelTask& task) { panels<QuadDot, Int8>(task); }

int64_t int8_peak(int64_t iterations, int32_t* sink) {
  constexpr int kChains = 12;
  const __m256i w = _mm256_set1_epi8(15), x = _mm256_set1_epi8(-1);
  __m256i acc[kChains];
  for (int j = 0; j < kChains; ++j) acc[j] = _mm256_setzero_si256();
  for (int64_t i = 0; i < iterations; ++i) {
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) acc[j] = QuadDot::next(acc[j], w, x);
  }
  for (int j = 0; j < kChains; ++j) *sink ^= _mm256_extract_epi32(acc[j], 0);
  return iterations * kChains * 32;
}

}  // namespace

void register_avxvnni_linear(KernelTable& table) {
  table.linear.integer_origin = "avxvnni";
  table.linear.panels[static_cast<int>(Layout::Int4)] = panels_int4;
  table.linear.panels[static_cast<int>(Layout::Int8)] = panels_int8;
  table.probe.int8_peak = int8_peak;
}

}  // namespace chairlift

// The shape of the integer kernels on 256-bit vectors, for AVX2 and AVX-VNNI, which differ in how they multiply.
//
// A tile multiplies a panel, two vectors of 8 outputs, with up to 6 rows: a step is a group of 32 k, whose integer sums
// are exact in any order and are then scaled and added to floats. Every tile takes the weights apart in registers; kept
// in the first-level cache for the rows of the next tiles, they were no faster.
#pragma once

#include "arch/avx2/integer_layouts.h"
#include "arch/integer_panels.h"

namespace chairlift {
namespace {

constexpr int kWidth = 16;       // outputs of a panel
constexpr int kMaxTileRows = 6;  // 12 sums, 2 vectors of weights, 1 of x, 1 product

// How products are summed. AVX2: pairs in 16 bits. A weight of 4 bits and an activation give at most 15 * 127, so the
// 16 of a group and lane that are added up stay below 2^15; sums are widened once a group.
struct PairDot {
  static CHAIRLIFT_INLINE __m256i first(__m256i w, __m256i x) { return _mm256_maddubs_epi16(w, x); }
  // Written out because GCC 12 computes many products before it adds them, and then spills.
  static CHAIRLIFT_INLINE __m256i next(__m256i sum, __m256i w, __m256i x) {
    __m256i products;
    asm("vpmaddubsw %3, %2, %1\n\tvpaddw %1, %0, %0" : "+x"(sum), "=x"(products) : "x"(w), "x"(x));
    return sum;
  }
  template <int factor>
  static CHAIRLIFT_INLINE __m256i widen(__m256i sum) {
    return _mm256_madd_epi16(sum, _mm256_set1_epi16(factor));
  }
};

// Integer sums of a group: R rows, two vectors.
template <class Dot, class Source, int R>
struct Dots {
  __m256i value[R][2];

  template <int i>
  CHAIRLIFT_INLINE void add(const QuantGroup* x, int64_t x_stride, const uint8_t* group) {
    const __m256i w0 = Source::template vector<i>(group, 0), w1 = Source::template vector<i>(group, 1);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m256i four = _mm256_set1_epi32(reinterpret_cast<const int32_t*>(x[r * x_stride].q)[i % kVectors]);
      value[r][0] = i % kVectors == 0 ? Dot::first(w0, four) : Dot::next(value[r][0], w0, four);
      value[r][1] = i % kVectors == 0 ? Dot::first(w1, four) : Dot::next(value[r][1], w1, four);
    }
  }

  // Vectors i to the last of a pass.
  template <int i>
  CHAIRLIFT_INLINE void add_pass(const QuantGroup* x, int64_t x_stride, const uint8_t* group) {
    add<i>(x, x_stride, group);
    if constexpr (i % kVectors + 1 < kVectors) add_pass<i + 1>(x, x_stride, group);
  }

  template <int factor>
  CHAIRLIFT_INLINE void widen() {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      value[r][0] = Dot::template widen<factor>(value[r][0]);
      value[r][1] = Dot::template widen<factor>(value[r][1]);
    }
  }

  CHAIRLIFT_INLINE void compute(const QuantGroup* x, int64_t x_stride, const uint8_t* group) {
    add_pass<0>(x, x_stride, group);
    widen<1>();
    if constexpr (Source::kPasses == 2) {
      asm volatile("" : : : "memory");  // or x is broadcast once for both passes, and kept on the stack
      Dots high;
      high.template add_pass<kVectors>(x, x_stride, group);
      high.template widen<16>();
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        value[r][0] = _mm256_add_epi32(value[r][0], high.value[r][0]);
        value[r][1] = _mm256_add_epi32(value[r][1], high.value[r][1]);
      }
    }
  }
};

// Float sums of R rows.
template <int R>
struct Sums {
  __m256 value[R][2];

  CHAIRLIFT_INLINE void clear() {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) value[r][0] = value[r][1] = _mm256_setzero_ps();
  }

  template <class Source, class Dots>
  CHAIRLIFT_INLINE void add(const QuantGroup* x, int64_t x_stride, const Dots& dots, const uint8_t* group) {
#pragma GCC unroll 2
    for (int h = 0; h < 2; ++h) {
      const __m256 scale = Source::scale(group, h), min = Source::min(group, h);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const QuantGroup& row = x[r * x_stride];
        __m256i dot = dots.value[r][h];
        if (Source::kHasBias) dot = _mm256_add_epi32(dot, _mm256_set1_epi32(row.bias));
        const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(row.scale));
        value[r][h] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot), both, value[r][h]);
        if (Source::kHasMin) value[r][h] = _mm256_fmadd_ps(min, _mm256_set1_ps(row.scaled_sum), value[r][h]);
      }
    }
  }

  CHAIRLIFT_INLINE void store(float* acc) const {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      _mm256_store_ps(acc + r * kWidth, value[r][0]);
      _mm256_store_ps(acc + r * kWidth + 8, value[r][1]);
    }
  }
};

template <class Dot, class Source, int R>
void tile(const TileTask& task) {
  Sums<R> sums;
  sums.clear();
  const QuantGroup* x = task.x;
  const int64_t x_stride = task.x_stride;
  const uint8_t *group = task.panel, *next = task.next;
  for (int64_t g = task.num_groups; g > 0; --g, ++x, group += Source::kBytes, next += Source::kBytes) {
    prefetch_bytes<Source::kBytes>(next);
    Dots<Dot, Source, R> dots;
    dots.compute(x, x_stride, group);
    sums.template add<Source>(x, x_stride, dots, group);
  }
  sums.store(task.acc);
}

template <class Dot, class Source>
constexpr TileKernel kTiles[kMaxTileRows + 1] = {
    nullptr,       tile<Dot, Source, 1>, tile<Dot, Source, 2>, tile<Dot, Source, 3>, tile<Dot, Source, 4>,
    tile<Dot, Source, 5>, tile<Dot, Source, 6>};

template <class Dot, class Source>
void panels(const PanelTask& task) {
  walk_panels(task, kTiles<Dot, Source>);
}

}  // namespace
}  // namespace chairlift

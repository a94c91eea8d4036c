// The shape of the integer kernels: a vector is four adjacent k of a panel's 16 outputs, a step is a group of 32 k.
//
// A tile takes a group of weights apart in registers, multiplies it with up to 14 rows and adds their scaled sums.
// Taking apart costs 12 instructions where a row costs 13, so nothing of it is kept for the rows of the next tile.
#pragma once

#include "arch/avx512/row_pointers.h"
#include "arch/integer_panels.h"

namespace chairlift {
namespace {

constexpr int kWidth = 16;        // outputs of a panel
constexpr int kVectors = 8;       // of a group: 4 k each
constexpr int kMaxTileRows = 14;  // two sums each, beside 2 vectors of scales and what passes through

// sum += four products of unsigned w and signed x, in place and with the broadcast inside the instruction: see
// fma_into.
CHAIRLIFT_INLINE void dot_into(__m512i& sum, const int32_t& x, __m512i w) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(w), "m"(x));
}

template <int R>
struct Rows {
  RowPointers<R> pointers;

  CHAIRLIFT_INLINE Rows(const QuantGroup* x, int64_t x_stride)
      : pointers(x, x_stride * static_cast<int64_t>(sizeof(QuantGroup))) {}
  CHAIRLIFT_INLINE const QuantGroup& at(int r) const {
    return *reinterpret_cast<const QuantGroup*>(pointers.at(r));
  }
  CHAIRLIFT_INLINE void next() { pointers.advance(sizeof(QuantGroup)); }
};

// Integer sums of a group, of R rows.
template <int R>
struct Dots {
  __m512i value[R];

  template <bool has_bias>
  CHAIRLIFT_INLINE void start(const Rows<R>& x) {
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) value[r] = has_bias ? _mm512_set1_epi32(x.at(r).bias) : _mm512_setzero_si512();
  }

  // Vector i of the group.
  CHAIRLIFT_INLINE void add(const Rows<R>& x, int i, __m512i w) {
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) dot_into(value[r], reinterpret_cast<const int32_t*>(x.at(r).q)[i], w);
  }
};

// Float sums of R rows, in registers.
template <int R>
struct Sums {
  __m512 value[R];

  CHAIRLIFT_INLINE void clear() {
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) value[r] = _mm512_setzero_ps();
  }

  template <bool has_min>
  CHAIRLIFT_INLINE void add(const Rows<R>& x, const Dots<R>& dots, __m512 scale, __m512 min) {
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) {
      const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(x.at(r).scale));
      value[r] = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots.value[r]), both, value[r]);
      if (has_min) fma_into(value[r], x.at(r).scaled_sum, min);
    }
  }

  CHAIRLIFT_INLINE void store(float* acc) const {
#pragma GCC unroll 14
    for (int r = 0; r < R; ++r) _mm512_store_ps(acc + r * kWidth, value[r]);
  }
};

// Layout: see integer_layouts.h.
template <class Layout, int R>
void tile(const TileTask& task) {
  Sums<R> sums;
  sums.clear();
  Rows<R> x(task.x, task.x_stride);
  const uint8_t *group = task.panel, *next = task.next;
  for (int64_t g = task.num_groups; g > 0; --g, group += Layout::kBytes, next += Layout::kBytes) {
    prefetch_bytes<Layout::kBytes>(next);
    Dots<R> dots;
    dots.template start<Layout::kHasBias>(x);
#pragma GCC unroll 8
    for (int i = 0; i < kVectors; ++i) dots.add(x, i, Layout::vector(group, i));
    sums.template add<Layout::kHasMin>(x, dots, Layout::scale(group), Layout::min(group));
    x.next();
  }
  sums.store(task.acc);
}

template <class Layout>
constexpr TileKernel kTiles[kMaxTileRows + 1] = {
    nullptr,          tile<Layout, 1>,  tile<Layout, 2>,  tile<Layout, 3>,  tile<Layout, 4>,
    tile<Layout, 5>,  tile<Layout, 6>,  tile<Layout, 7>,  tile<Layout, 8>,  tile<Layout, 9>,
    tile<Layout, 10>, tile<Layout, 11>, tile<Layout, 12>, tile<Layout, 13>, tile<Layout, 14>};

template <class Layout>
void panels(const PanelTask& task) {
  walk_panels(task, kTiles<Layout>);
}

}  // namespace
}  // namespace chairlift

// The shape of every AVX2 linear kernel, for any weight layout.
//
// Many rows: a chunk of one panel is dequantised into the first-level cache once and serves all rows in tiles of up
// to 6 rows x 16 outputs (12 accumulators). Few rows: weights go from their packed form through registers straight
// into the fma. Both compute the same chain for every output: k ascending, one fma each.
#pragma once

#include <immintrin.h>

#include "arch/kernel_table.h"

namespace chairlift {
namespace {

constexpr int kWidth = 16;          // outputs of a panel: two vectors
constexpr int kMaxTileRows = 6;     // 12 accumulators, 2 vectors of weights, 1 of x
constexpr int64_t kMaxChunk = 192;  // k dequantised at once: 12 KB of the first-level cache

#define CHAIRLIFT_INLINE inline __attribute__((always_inline))

// acc[r][0..16) += x[r, 0..num_k) . w[0..num_k)[0..16)
template <int R>
void buffered_tile(const float* x, int64_t x_stride, const float* w, int64_t num_k, bool first, float* acc) {
  __m256 sum[R][2];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    sum[r][0] = first ? _mm256_setzero_ps() : _mm256_load_ps(acc + r * kWidth);
    sum[r][1] = first ? _mm256_setzero_ps() : _mm256_load_ps(acc + r * kWidth + 8);
  }
#pragma GCC unroll 4
  for (int64_t k = 0; k < num_k; ++k) {
    const __m256 w0 = _mm256_load_ps(w + k * kWidth);
    const __m256 w1 = _mm256_load_ps(w + k * kWidth + 8);
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m256 value = _mm256_broadcast_ss(x + r * x_stride + k);
      sum[r][0] = _mm256_fmadd_ps(value, w0, sum[r][0]);
      sum[r][1] = _mm256_fmadd_ps(value, w1, sum[r][1]);
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    _mm256_store_ps(acc + r * kWidth, sum[r][0]);
    _mm256_store_ps(acc + r * kWidth + 8, sum[r][1]);
  }
}

using BufferedTile = void (*)(const float*, int64_t, const float*, int64_t, bool, float*);
constexpr BufferedTile kBufferedTiles[kMaxTileRows + 1] = {
    nullptr,          buffered_tile<1>, buffered_tile<2>, buffered_tile<3>,
    buffered_tile<4>, buffered_tile<5>, buffered_tile<6>};

// All rows against one chunk of weights, in tiles of nearly equal height.
inline void buffered_rows(const PanelTask& task, const float* w, int64_t first_k, int64_t num_k, float* acc) {
  const int64_t num_tiles = (task.rows + kMaxTileRows - 1) / kMaxTileRows;
  const int64_t height = task.rows / num_tiles, num_higher = task.rows % num_tiles;
  const float* x = task.x + first_k;
  for (int64_t t = 0; t < num_tiles; ++t) {
    const int64_t r = height + (t < num_higher ? 1 : 0);
    kBufferedTiles[r](x, task.x_stride, w, num_k, first_k == 0, acc);
    x += r * task.x_stride;
    acc += r * kWidth;
  }
}

// Layout::dequantise(panel, first_k, num_k, buffer) returns where the floats [num_k][16] are.
template <class Layout>
void buffered_panels(const PanelTask& task) {
  alignas(64) float buffer[kMaxChunk * kWidth];
  const int64_t num_chunks = (task.in + kMaxChunk - 1) / kMaxChunk;
  const int64_t per_chunk = (task.in + num_chunks - 1) / num_chunks;
  const int64_t chunk = (per_chunk + 31) / 32 * 32;
  for (int64_t p = 0; p < task.num_panels; ++p) {
    for (int64_t k = 0; k < task.in; k += chunk) {
      const int64_t num_k = task.in - k < chunk ? task.in - k : chunk;
      const float* w = Layout::dequantise(task.panels + p * task.panel_bytes, k, num_k, buffer);
      buffered_rows(task, w, k, num_k, task.acc + p * task.rows * kWidth);
    }
  }
}

// Sums of R rows with P panels, in registers.
template <int R, int P>
struct Sums {
  __m256 value[P][R][2];

  CHAIRLIFT_INLINE void clear() {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) value[p][r][0] = value[p][r][1] = _mm256_setzero_ps();
    }
  }

  CHAIRLIFT_INLINE void store(float* acc) const {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        _mm256_store_ps(acc + (p * R + r) * kWidth, value[p][r][0]);
        _mm256_store_ps(acc + (p * R + r) * kWidth + 8, value[p][r][1]);
      }
    }
  }
};

// Layout::direct<R, P>(task, panel, acc) computes R rows with P panels. Several panels for few rows: one output is
// one chain of dependent fmas, so independent ones must hide its latency.
template <class Layout, int R, int P>
void direct_panels(const PanelTask& task) {
  int64_t p = 0;
  for (; p + P <= task.num_panels; p += P) {
    Layout::template direct<R, P>(task, task.panels + p * task.panel_bytes, task.acc + p * R * kWidth);
  }
  for (; p < task.num_panels; ++p) {
    Layout::template direct<R, 1>(task, task.panels + p * task.panel_bytes, task.acc + p * R * kWidth);
  }
}

template <class Layout>
void panels(const PanelTask& task) {
  switch (task.rows) {
    case 1: return direct_panels<Layout, 1, 2>(task);
    case 2: return direct_panels<Layout, 2, 2>(task);
    case 3: return direct_panels<Layout, 3, 1>(task);
    case 4: return direct_panels<Layout, 4, 1>(task);
    default: return buffered_panels<Layout>(task);
  }
}

}  // namespace
}  // namespace chairlift

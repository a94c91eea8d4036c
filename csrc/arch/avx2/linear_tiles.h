// The shape of every AVX2 linear kernel, for any weight layout.
//
// A fused tile takes weights from their packed form through registers straight into the fma of a few rows. When more
// rows follow, it also keeps a chunk of weights as floats in the first-level cache, and buffered tiles of up to
// 6 rows x 16 outputs (12 accumulators) work from there. Both compute the same chain for every output: k ascending,
// one fma each; between chunks the sums rest in memory, which loses nothing.
#pragma once

#include "arch/avx2/lanes.h"
#include "arch/kernel_table.h"

namespace chairlift {
namespace {

constexpr int kWidth = 16;          // outputs of a panel: two vectors
constexpr int kMaxTileRows = 6;     // 12 accumulators, 2 vectors of weights, 1 of x
constexpr int64_t kMaxChunk = 192;  // k kept as floats at once: 12 KB of the first-level cache

// sum += a * b, in place. Written out because GCC 12 likes the forms of the fma that overwrite a factor, and then
// moves and spills accumulators.
CHAIRLIFT_INLINE void fma_into(__m256& sum, __m256 a, __m256 b) {
  asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
}

// Sums of R rows with P panels, in registers.
template <int R, int P>
struct Sums {
  __m256 value[P][R > 0 ? R : 1][2];  // R = 0: a tile that only fills the buffer

  CHAIRLIFT_INLINE void load(const float* acc, bool first) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const float* row = acc + (p * R + r) * kWidth;
        value[p][r][0] = first ? _mm256_setzero_ps() : _mm256_load_ps(row);
        value[p][r][1] = first ? _mm256_setzero_ps() : _mm256_load_ps(row + 8);
      }
    }
  }

  CHAIRLIFT_INLINE void add(int p, const float* x, int64_t x_stride, __m256 w0, __m256 w1) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const __m256 broadcast = _mm256_broadcast_ss(x + r * x_stride);
      fma_into(value[p][r][0], broadcast, w0);
      fma_into(value[p][r][1], broadcast, w1);
    }
  }

  CHAIRLIFT_INLINE void store(float* acc) const {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        _mm256_store_ps(acc + (p * R + r) * kWidth, value[p][r][0]);
        _mm256_store_ps(acc + (p * R + r) * kWidth + 8, value[p][r][1]);
      }
    }
  }
};

// What a tile works on: num_k weights of P panels, and its rows of x.
struct TileTask {
  const float* x;         // [R][num_k], first k of the chunk
  int64_t x_stride;       // floats between rows
  const uint8_t* packed;  // first k of the chunk in the first panel
  int64_t panel_bytes;    // between panels
  const uint8_t* next;    // what the next fused tile reads, to be fetched ahead
  int64_t num_k;
  bool first;     // sums start from 0, else from acc
  float* acc;     // [P][R][16]
  float* buffer;  // [num_k][16] weights as floats
};
using TileKernel = void (*)(const TileTask&);

template <int R>
void buffered_tile(const TileTask& task) {
  Sums<R, 1> sums;
  sums.load(task.acc, task.first);
  const float *x = task.x, *w = task.buffer;
  const int64_t x_stride = task.x_stride, num_k = task.num_k;
#pragma GCC unroll 4
  for (int64_t k = 0; k < num_k; ++k) {
    sums.add(0, x + k, x_stride, _mm256_load_ps(w + k * kWidth), _mm256_load_ps(w + k * kWidth + 8));
  }
  sums.store(task.acc);
}

constexpr TileKernel kBufferedTiles[kMaxTileRows + 1] = {
    nullptr,          buffered_tile<1>, buffered_tile<2>, buffered_tile<3>,
    buffered_tile<4>, buffered_tile<5>, buffered_tile<6>};

// A layout offers
//   fused_tile<R, P, keep>   a TileKernel; with `keep` it also fills the buffer
//   kFloats                  whether the packed form is the buffer's form: nothing to fill
//   kFusedRows[rows % 6], kMaxFusedRows   rows of the fused tile when there are more than 4
//   kPanelsOfOneRow, kPanelsOfTwoRows     panels a fused tile takes at once when there are 1 or 2 rows
//   offset(k)                bytes from the start of a panel to k (a multiple of 32)
template <class Layout, int R>
constexpr TileKernel keeping_tile() {
  if constexpr (R <= Layout::kMaxFusedRows) return Layout::template fused_tile<R, 1, true>;
  return nullptr;
}

template <class Layout>
constexpr TileKernel kKeepingTiles[kMaxTileRows + 1] = {
    keeping_tile<Layout, 0>(), keeping_tile<Layout, 1>(), keeping_tile<Layout, 2>(), keeping_tile<Layout, 3>(),
    keeping_tile<Layout, 4>(), keeping_tile<Layout, 5>(), keeping_tile<Layout, 6>()};

// Rows from the second tile on, in tiles of nearly equal height.
inline void buffered_rows(int64_t rows, TileTask tile) {
  const int64_t num_tiles = (rows + kMaxTileRows - 1) / kMaxTileRows;
  for (int64_t t = 0; t < num_tiles; ++t) {
    const int64_t r = rows / num_tiles + (t < rows % num_tiles ? 1 : 0);
    kBufferedTiles[r](tile);
    tile.x += r * tile.x_stride;
    tile.acc += r * kWidth;
  }
}

// All rows against one chunk of one panel.
template <class Layout>
void chunk_rows(int64_t rows, TileTask tile) {
  if (Layout::kFloats) tile.buffer = const_cast<float*>(reinterpret_cast<const float*>(tile.packed));
  const int64_t fused = Layout::kFusedRows[rows % kMaxTileRows];
  kKeepingTiles<Layout>[fused](tile);
  tile.x += fused * tile.x_stride;
  tile.acc += fused * kWidth;
  rows -= fused;
  if (rows > 0) buffered_rows(rows, tile);
}

template <class Layout>
void many_rows(const PanelTask& task) {
  alignas(64) float buffer[kMaxChunk * kWidth];
  const int64_t num_chunks = (task.in + kMaxChunk - 1) / kMaxChunk;
  const int64_t chunk = ((task.in + num_chunks - 1) / num_chunks + 31) / 32 * 32;
  TileTask tile;
  tile.x_stride = task.x_stride;
  tile.panel_bytes = task.panel_bytes;
  tile.buffer = buffer;
  for (int64_t p = 0; p < task.num_panels; ++p) {
    for (int64_t k = 0; k < task.in; k += chunk) {
      tile.x = task.x + k;
      tile.packed = task.panels + p * task.panel_bytes + Layout::offset(k);
      tile.num_k = task.in - k < chunk ? task.in - k : chunk;
      const bool last = p + 1 == task.num_panels && k + tile.num_k == task.in;
      tile.next = last ? task.next_panels : tile.packed + Layout::offset(tile.num_k);
      tile.first = k == 0;
      tile.acc = task.acc + p * task.rows * kWidth;
      chunk_rows<Layout>(task.rows, tile);
    }
  }
}

// Few rows take several panels at once: an output is one chain of dependent fmas, and independent ones must hide its
// latency.
template <class Layout, int R, int P>
void few_rows(const PanelTask& task) {
  TileTask tile;
  tile.x = task.x;
  tile.x_stride = task.x_stride;
  tile.panel_bytes = task.panel_bytes;
  tile.num_k = task.in;
  tile.first = true;
  tile.buffer = nullptr;
  for (int64_t p = 0; p < task.num_panels;) {
    const int64_t taken = p + P <= task.num_panels ? P : 1;
    const TileKernel kernel =
        taken == P ? Layout::template fused_tile<R, P, false> : Layout::template fused_tile<R, 1, false>;
    tile.packed = task.panels + p * task.panel_bytes;
    tile.acc = task.acc + p * R * kWidth;
    p += taken;
    tile.next = p == task.num_panels ? task.next_panels : tile.packed + taken * task.panel_bytes;
    kernel(tile);
  }
}

template <class Layout>
void panels(const PanelTask& task) {
  switch (task.rows) {
    case 1: return few_rows<Layout, 1, Layout::kPanelsOfOneRow>(task);
    case 2: return few_rows<Layout, 2, Layout::kPanelsOfTwoRows>(task);
    case 3: return few_rows<Layout, 3, 1>(task);
    case 4: return few_rows<Layout, 4, 1>(task);
    default: return many_rows<Layout>(task);
  }
}

}  // namespace
}  // namespace chairlift

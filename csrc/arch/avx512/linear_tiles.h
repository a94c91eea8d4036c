// The shape of every AVX-512 linear kernel, for any weight layout: a vector is a panel.
//
// A fused tile takes weights from their packed form through registers straight into the fma of up to 24 rows, or of
// very few rows and a few panels. With more rows, the fused tile of the first ones also keeps a chunk of weights as
// floats in the first-level cache, and buffered tiles of up to 14 rows work from there. Both compute the same chain for
// every output: k ascending, one fma each; between chunks the sums rest in memory, which loses nothing.
#pragma once

#include <immintrin.h>

#include "arch/avx512/row_pointers.h"
#include "arch/kernel_table.h"

namespace chairlift {
namespace {

constexpr int kWidth = 16;  // outputs of a panel
constexpr int kMaxRowsAtOnce = 24;   // sums of one fused tile, beside 2 vectors of scales and what passes through
constexpr int kMaxTileRows = 14;     // of a chunk; fewer than 4 don't hide the latency of the fma
constexpr int64_t kMaxChunk = 288;  // k kept as floats at once: 18 KB of the first-level cache

// Rows of x at the current k.
template <int R>
struct Rows {
  RowPointers<R> pointers;

  CHAIRLIFT_INLINE Rows(const float* x, int64_t x_stride) : pointers(x, 4 * x_stride) {}
  CHAIRLIFT_INLINE const float& at(int r) const { return *reinterpret_cast<const float*>(pointers.at(r)); }
  CHAIRLIFT_INLINE void next() { pointers.advance(4); }
};

// Sums of R rows with P panels, in registers.
template <int R, int P>
struct Sums {
  __m512 value[P][R];

  CHAIRLIFT_INLINE void load(const float* acc, int64_t acc_stride, bool first) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 24
      for (int r = 0; r < R; ++r) {
        value[p][r] = first ? _mm512_setzero_ps() : _mm512_load_ps(acc + p * acc_stride + r * kWidth);
      }
    }
  }

  CHAIRLIFT_INLINE void add(const Rows<R>& x, const __m512 (&w)[P]) {
#pragma GCC unroll 24
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) fma_into(value[p][r], x.at(r), w[p]);
    }
  }

  CHAIRLIFT_INLINE void store(float* acc, int64_t acc_stride) const {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 24
      for (int r = 0; r < R; ++r) _mm512_store_ps(acc + p * acc_stride + r * kWidth, value[p][r]);
    }
  }
};

// What a tile works on: num_k weights of P panels, and its R rows of x.
struct TileTask {
  const float* x;         // first k of the chunk
  int64_t x_stride;       // floats between rows
  const uint8_t* packed;  // first k of the chunk in the first panel
  int64_t panel_bytes;    // between panels
  const uint8_t* next;    // what the next fused tile reads, to be fetched ahead
  int64_t num_k;
  bool first;          // sums start from 0, else from acc
  float* acc;          // [P][acc_stride], of which [R][16] are the tile's
  int64_t acc_stride;  // floats
  float* buffer;       // [num_k][16] weights as floats
};
using TileKernel = void (*)(const TileTask&);

template <int R>
void buffered_tile(const TileTask& task) {
  Sums<R, 1> sums;
  sums.load(task.acc, task.acc_stride, task.first);
  Rows<R> x(task.x, task.x_stride);
  const float* weights = task.buffer;
#pragma GCC unroll 4
  for (int64_t k = task.num_k; k > 0; --k, weights += kWidth, x.next()) {
    const __m512 w[1] = {_mm512_load_ps(weights)};
    sums.add(x, w);
  }
  sums.store(task.acc, task.acc_stride);
}

constexpr TileKernel kBufferedTiles[kMaxTileRows + 1] = {
    nullptr,           nullptr,           nullptr,          nullptr,           buffered_tile<4>,
    buffered_tile<5>,  buffered_tile<6>,  buffered_tile<7>, buffered_tile<8>,  buffered_tile<9>,
    buffered_tile<10>, buffered_tile<11>, buffered_tile<12>, buffered_tile<13>, buffered_tile<14>};

// A layout offers
//   fused_tile<R, P, keep>   a TileKernel; with `keep` it also fills the buffer
//   kFloats                  whether the packed form is the buffer's form: nothing to fill
//   offset(k)                bytes from the start of a panel to k (a multiple of 32)
template <class Layout, int R>
constexpr TileKernel kKeepingTile = Layout::template fused_tile<R, 1, true>;

template <class Layout>
constexpr TileKernel kKeepingTiles[kMaxTileRows + 1] = {
    nullptr,                  nullptr,                  nullptr,                  nullptr,
    kKeepingTile<Layout, 4>,  kKeepingTile<Layout, 5>,  kKeepingTile<Layout, 6>,  kKeepingTile<Layout, 7>,
    kKeepingTile<Layout, 8>,  kKeepingTile<Layout, 9>,  kKeepingTile<Layout, 10>, kKeepingTile<Layout, 11>,
    kKeepingTile<Layout, 12>, kKeepingTile<Layout, 13>, kKeepingTile<Layout, 14>};

// Rows a multiple of 4 KB apart share the 8 ways of one set of the first-level cache, others of 2 KB those of two.
inline bool all_in_one_set(int64_t x_stride) { return x_stride % 1024 == 0; }
inline int64_t max_tile_rows(int64_t x_stride) { return all_in_one_set(x_stride) ? 7 : kMaxTileRows; }
inline int64_t max_rows_at_once(int64_t x_stride) {
  return all_in_one_set(x_stride) ? 10 : x_stride % 512 == 0 ? 20 : kMaxRowsAtOnce;
}

// All rows against one chunk of one panel, in tiles of nearly equal height.
template <class Layout>
void chunk_rows(int64_t rows, TileTask tile) {
  if (Layout::kFloats) tile.buffer = const_cast<float*>(reinterpret_cast<const float*>(tile.packed));
  const int64_t max_height = max_tile_rows(tile.x_stride);
  int64_t num_tiles = (rows + max_height - 1) / max_height;
  const TileKernel* kernels = kKeepingTiles<Layout>;
  for (; num_tiles > 0; --num_tiles) {
    const int64_t height = rows / num_tiles;
    kernels[height](tile);
    kernels = kBufferedTiles;
    tile.x += height * tile.x_stride;
    tile.acc += height * kWidth;
    rows -= height;
  }
}

inline TileTask tile_task(const PanelTask& task) {
  TileTask tile = {};
  tile.x = task.x;
  tile.x_stride = task.x_stride;
  tile.panel_bytes = task.panel_bytes;
  tile.num_k = task.in;
  tile.first = true;
  tile.acc_stride = task.rows * kWidth;
  return tile;
}

template <class Layout>
void many_rows(const PanelTask& task) {
  alignas(64) float buffer[kMaxChunk * kWidth];
  const int64_t num_chunks = (task.in + kMaxChunk - 1) / kMaxChunk;
  const int64_t chunk = ((task.in + num_chunks - 1) / num_chunks + 31) / 32 * 32;
  TileTask tile = tile_task(task);
  tile.buffer = buffer;
  for (int64_t p = 0; p < task.num_panels; ++p) {
    for (int64_t k = 0; k < task.in; k += chunk) {
      tile.x = task.x + k;
      tile.packed = task.panels + p * task.panel_bytes + Layout::offset(k);
      tile.num_k = task.in - k < chunk ? task.in - k : chunk;
      const bool last = p + 1 == task.num_panels && k + tile.num_k == task.in;
      tile.next = last ? task.next_panels : tile.packed + Layout::offset(tile.num_k);
      tile.first = k == 0;
      tile.acc = task.acc + p * tile.acc_stride;
      chunk_rows<Layout>(task.rows, tile);
    }
  }
}

// Very few rows take several panels at once: an output is one chain of dependent fmas, and independent ones must hide
// its latency.
template <class Layout, int R, int P>
void few_rows(const PanelTask& task, int64_t panel = 0) {
  TileTask tile = tile_task(task);
  for (; panel + P <= task.num_panels; panel += P) {
    tile.packed = task.panels + panel * task.panel_bytes;
    tile.acc = task.acc + panel * tile.acc_stride;
    tile.next = panel + P == task.num_panels ? task.next_panels : tile.packed + P * task.panel_bytes;
    Layout::template fused_tile<R, P, false>(tile);
  }
  if constexpr (P > 1) few_rows<Layout, R, P / 2>(task, panel);
}

template <class Layout, int R>
void rows_at_once(const PanelTask& task) {
  few_rows<Layout, R, R <= 4 ? 2 : 1>(task);
}

template <class Layout>
constexpr PanelKernel kRowsAtOnce[kMaxRowsAtOnce + 1] = {
    nullptr,
    rows_at_once<Layout, 1>,  rows_at_once<Layout, 2>,  rows_at_once<Layout, 3>,  rows_at_once<Layout, 4>,
    rows_at_once<Layout, 5>,  rows_at_once<Layout, 6>,  rows_at_once<Layout, 7>,  rows_at_once<Layout, 8>,
    rows_at_once<Layout, 9>,  rows_at_once<Layout, 10>, rows_at_once<Layout, 11>, rows_at_once<Layout, 12>,
    rows_at_once<Layout, 13>, rows_at_once<Layout, 14>, rows_at_once<Layout, 15>, rows_at_once<Layout, 16>,
    rows_at_once<Layout, 17>, rows_at_once<Layout, 18>, rows_at_once<Layout, 19>, rows_at_once<Layout, 20>,
    rows_at_once<Layout, 21>, rows_at_once<Layout, 22>, rows_at_once<Layout, 23>, rows_at_once<Layout, 24>};

template <class Layout>
void panels(const PanelTask& task) {
  task.rows <= max_rows_at_once(task.x_stride) ? kRowsAtOnce<Layout>[task.rows](task) : many_rows<Layout>(task);
}

}  // namespace
}  // namespace chairlift

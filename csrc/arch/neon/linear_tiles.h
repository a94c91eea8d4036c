// The shape of every NEON linear kernel, for any weight layout.
//
// Few rows take weights from their packed form through registers straight into the fma. With more rows, a chunk of
// weights is first turned into floats in the first-level cache, and tiles of up to 6 rows x 16 outputs (24
// accumulators of the 32 registers) work from there. Both compute the same chain for every output: k ascending, one fma
// each; between chunks the sums rest in memory, which loses nothing.
#pragma once

#include "arch/kernel_table.h"
#include "arch/neon/lanes.h"

namespace chairlift {
namespace {

constexpr int kMaxTileRows = 6;
constexpr int kMaxFusedRows = 4;
constexpr int64_t kMaxChunk = 192;  // k kept as floats at once: 12 KB of the first-level cache

// Sums of R rows with P panels, in registers.
template <int R, int P>
struct Sums {
  float32x4_t value[P][R][kVectors];
  const float* x;
  int64_t x_stride;

  CHAIRLIFT_INLINE Sums(const float* rows, int64_t stride) : x(rows), x_stride(stride) {}

  CHAIRLIFT_INLINE void load(const float* acc, bool first) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          value[p][r][v] = first ? vdupq_n_f32(0.0f) : vld1q_f32(acc + (p * R + r) * kWidth + 4 * v);
        }
      }
    }
  }

  // Adds x[r, k] * w to panel p.
  CHAIRLIFT_INLINE void take(int64_t k, int p, const Panel& w) {
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
      const float32x4_t broadcast = vld1q_dup_f32(x + r * x_stride + k);
#pragma GCC unroll 4
      for (int v = 0; v < kVectors; ++v) value[p][r][v] = vfmaq_f32(value[p][r][v], broadcast, w.value[v]);
    }
  }

  CHAIRLIFT_INLINE void store(float* acc) const {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) vst1q_f32(acc + (p * R + r) * kWidth + 4 * v, value[p][r][v]);
      }
    }
  }
};

// Rows of x against one chunk of a panel's weights as floats.
struct TileTask {
  const float* x;       // [R][num_k], first k of the chunk
  int64_t x_stride;     // floats between rows
  const float* weights;  // [num_k][16]
  int64_t num_k;
  bool first;  // sums start from 0, else from acc
  float* acc;  // [R][16]
};
using TileKernel = void (*)(const TileTask&);

template <int R>
void buffered_tile(const TileTask& task) {
  Sums<R, 1> sums(task.x, task.x_stride);
  sums.load(task.acc, task.first);
  const float* weights = task.weights;
  const int64_t num_k = task.num_k;
  for (int64_t k = 0; k < num_k; ++k) sums.take(k, 0, load_panel(weights + k * kWidth));
  sums.store(task.acc);
}

constexpr TileKernel kBufferedTiles[kMaxTileRows + 1] = {
    nullptr,          buffered_tile<1>, buffered_tile<2>, buffered_tile<3>,
    buffered_tile<4>, buffered_tile<5>, buffered_tile<6>};

// All rows against one chunk, in tiles of nearly equal height.
inline void chunk_rows(int64_t rows, TileTask tile) {
  for (int64_t left = (rows + kMaxTileRows - 1) / kMaxTileRows; left > 0; --left) {
    const int64_t height = rows / left;
    kBufferedTiles[height](tile);
    tile.x += height * tile.x_stride;
    tile.acc += height * kWidth;
    rows -= height;
  }
}

// A layout offers
//   for_each<P>(panel, panel_bytes, num_k, use)  use.take(k, p, Panel) for P adjacent panels and every k, ascending
//   floats(packed, num_k, buffer)                the weights as floats: in the buffer, or where they are
//   offset(k)                                    bytes from the start of a panel to k (a multiple of 32)
//   kPanelsOfOneRow                              panels taken at once when there is one row
template <class Layout>
void many_rows(const PanelTask& task) {
  alignas(64) float buffer[kMaxChunk * kWidth];
  const int64_t num_chunks = (task.in + kMaxChunk - 1) / kMaxChunk;
  const int64_t chunk = ((task.in + num_chunks - 1) / num_chunks + 31) / 32 * 32;
  for (int64_t p = 0; p < task.num_panels; ++p) {
    for (int64_t k = 0; k < task.in; k += chunk) {
      TileTask tile;
      tile.x = task.x + k;
      tile.x_stride = task.x_stride;
      tile.num_k = task.in - k < chunk ? task.in - k : chunk;
      tile.weights = Layout::floats(task.panels + p * task.panel_bytes + Layout::offset(k), tile.num_k, buffer);
      tile.first = k == 0;
      tile.acc = task.acc + p * task.rows * kWidth;
      chunk_rows(task.rows, tile);
    }
  }
}

template <class Layout, int R, int P>
CHAIRLIFT_INLINE void fused_tile(const PanelTask& task, int64_t panel) {
  Sums<R, P> sums(task.x, task.x_stride);
  sums.load(nullptr, true);
  Layout::template for_each<P>(task.panels + panel * task.panel_bytes, task.panel_bytes, task.in, sums);
  sums.store(task.acc + panel * R * kWidth);
}

// One row takes several panels at once: an output is one chain of dependent fmas, and independent ones must hide its
// latency.
template <class Layout, int R, int P>
void few_rows(const PanelTask& task) {
  int64_t panel = 0;
  for (; panel + P <= task.num_panels; panel += P) fused_tile<Layout, R, P>(task, panel);
  for (; panel < task.num_panels; ++panel) fused_tile<Layout, R, 1>(task, panel);
}

template <class Layout>
void panels(const PanelTask& task) {
  switch (task.rows) {
    case 1: return few_rows<Layout, 1, Layout::kPanelsOfOneRow>(task);
    case 2: return few_rows<Layout, 2, 1>(task);
    case 3: return few_rows<Layout, 3, 1>(task);
    case kMaxFusedRows: return few_rows<Layout, kMaxFusedRows, 1>(task);
    default: return many_rows<Layout>(task);
  }
}

// Layout::floats for packed forms that are no floats.
struct Unpacked {
  float* buffer;
  CHAIRLIFT_INLINE void take(int64_t k, int, const Panel& w) { store_panel(buffer + k * kWidth, w); }
};

template <class Layout>
CHAIRLIFT_INLINE const float* unpack(const uint8_t* packed, int64_t num_k, float* buffer) {
  Unpacked unpacked{buffer};
  Layout::template for_each<1>(packed, 0, num_k, unpacked);
  return buffer;
}

}  // namespace
}  // namespace chairlift

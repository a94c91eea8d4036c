// Products with 8-bit activations by AMX: a step is a group of 32 k for up to 16 rows, whose exact sums go through the
// first-level cache to be scaled and added to floats.
//
// Weights of a chunk of a panel are taken apart once and serve all rows.
#include "arch/amx/tiles.h"
#include "arch/avx512vnni/integer_layouts.h"
#include "arch/avx512vnni/linear.h"
#include "arch/integer_panels.h"

namespace chairlift {
namespace {

constexpr int64_t kMinRows = 8;       // below, a tile is too empty to be faster than vectors
constexpr int64_t kChunkGroups = 16;  // 10 KB of the first-level cache

// Groups of a panel, as the tiles want them.
struct alignas(64) Chunk {
  uint8_t weights[kChunkGroups][kWeightRows * kWeightRowBytes];
  float scale[kChunkGroups][kWidth];
  float min[kChunkGroups][kWidth];
};

template <class Layout>
CHAIRLIFT_INLINE void fill(const uint8_t* groups, const uint8_t* next, int64_t num_groups, Chunk& chunk) {
  for (int64_t g = 0; g < num_groups; ++g, groups += Layout::kBytes, next += Layout::kBytes) {
    prefetch_bytes<Layout::kBytes>(next);
#pragma GCC unroll 8
    for (int i = 0; i < kWeightRows; ++i) {
      _mm512_store_si512(chunk.weights[g] + i * kWeightRowBytes, Layout::vector(groups, i));
    }
    _mm512_store_ps(chunk.scale[g], Layout::scale(groups));
    _mm512_store_ps(chunk.min[g], Layout::min(groups));
  }
  finish_stores(&chunk);
}

// acc[r] += what a group adds, for rows that lie x_stride groups apart.
template <class Layout>
CHAIRLIFT_INLINE void add_scaled(const int32_t* sums, const QuantGroup* x, int64_t x_stride, int64_t height,
                                 __m512 scale, __m512 min, float* acc) {
  for (int64_t r = 0; r < height; ++r, x += x_stride, sums += kWidth, acc += kWidth) {
    __m512i dot = _mm512_load_si512(sums);
    if (Layout::kHasBias) dot = _mm512_add_epi32(dot, _mm512_set1_epi32(x->bias));
    const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(x->scale));
    __m512 sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot), both, _mm512_load_ps(acc));
    if (Layout::kHasMin) sum = _mm512_fmadd_ps(min, _mm512_set1_ps(x->scaled_sum), sum);
    _mm512_store_ps(acc, sum);
  }
}

// A tile of rows against a chunk.
template <class Layout, bool taller>
void tile(const QuantGroup* x, int64_t x_stride, int64_t height, const Chunk& chunk, int64_t num_groups, float* acc) {
  alignas(64) int32_t sums[2][kMaxTileRows * kWidth];  // one is read while the other is written
  const int64_t x_bytes = x_stride * static_cast<int64_t>(sizeof(QuantGroup));
  for (int64_t g = 0; g < num_groups; ++g) {
    multiply<taller>(x[g].q, x_bytes, chunk.weights[g], sums[g % 2]);
    add_scaled<Layout>(sums[g % 2], x + g, x_stride, height, _mm512_load_ps(chunk.scale[g]),
                       _mm512_load_ps(chunk.min[g]), acc);
  }
}

// How rows are cut: `num_taller` tiles of low + 1 rows, then tiles of `low`.
struct Heights {
  int64_t num_tiles, low, num_taller;

  explicit Heights(int64_t rows)
      : num_tiles((rows + kMaxTileRows - 1) / kMaxTileRows), low(rows / num_tiles), num_taller(rows % num_tiles) {}
};

template <class Layout>
void all_rows(const Heights& heights, const QuantGroup* x, int64_t x_stride, const Chunk& chunk, int64_t num_groups,
              float* acc) {
  for (int64_t t = 0; t < heights.num_tiles; ++t) {
    const bool taller = t < heights.num_taller;
    const int64_t height = heights.low + (taller ? 1 : 0);
    (taller ? tile<Layout, true> : tile<Layout, false>)(x, x_stride, height, chunk, num_groups, acc);
    x += height * x_stride;
    acc += height * kWidth;
  }
}

void clear(float* acc, int64_t n) {
  for (int64_t i = 0; i < n; i += kWidth) _mm512_store_ps(acc + i, _mm512_setzero_ps());
}

template <class Layout>
void panels(const PanelTask& task) {
  Chunk chunk;
  const Heights heights(task.rows);
  const Tiles tiles(static_cast<int>(heights.low));
  const int64_t num_groups = task.in / kGroupBytes;
  clear(task.acc, task.num_panels * task.rows * kWidth);
  for (int64_t p = 0; p < task.num_panels; ++p) {
    const uint8_t* panel = task.panels + p * task.panel_bytes;
    const uint8_t* next = p + 1 == task.num_panels ? task.next_panels : panel + task.panel_bytes;
    for (int64_t g = 0; g < num_groups; g += kChunkGroups) {
      const int64_t taken = num_groups - g < kChunkGroups ? num_groups - g : kChunkGroups;
      fill<Layout>(panel + g * Layout::kBytes, next + g * Layout::kBytes, taken, chunk);
      all_rows<Layout>(heights, task.xq + g, task.x_stride, chunk, taken, task.acc + p * task.rows * kWidth);
    }
  }
}

void panels_int4(const PanelTask& task) {
  return task.rows < kMinRows ? avx512vnni::panels_int4(task) : panels<Int4>(task);
}

void panels_int8(const PanelTask& task) {
  return task.rows < kMinRows ? avx512vnni::panels_int8(task) : panels<Int8>(task);
}

// Products of full tiles, twice as many k as a group has: what the unit does at most.
int64_t int8_peak(int64_t iterations, int32_t* sink) {
  TileConfig config;
  for (int i = 0; i < 6; ++i) config.shape(i, 16, 64);
  finish_stores(&config);
  _tile_loadconfig(&config);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t i = 0; i < iterations; ++i) {
    _tile_dpbsud(0, 4, 5);
    _tile_dpbsud(1, 4, 5);
    _tile_dpbsud(2, 4, 5);
    _tile_dpbsud(3, 4, 5);
  }
  alignas(64) int32_t sums[16 * 16];
  _tile_stored(0, sums, 64);
  _tile_release();
  *sink ^= sums[0];
  return iterations * 4 * 16 * 16 * 64;
}

}  // namespace

void register_amx_linear(KernelTable& table) {
  table.linear.integer_origin = "amx";
  table.linear.panels[static_cast<int>(Layout::Int4)] = panels_int4;
  table.linear.panels[static_cast<int>(Layout::Int8)] = panels_int8;
  table.probe.int8_peak = int8_peak;
}

}  // namespace chairlift

// Tile registers for products of up to 16 rows of 32 activations with a group of a panel.
//
// Rows come in tiles of two heights that differ by one, so the registers have two shapes of rows and sums, and one
// configuration lasts a whole task.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "arch/avx512/lanes.h"

namespace chairlift {
namespace {

constexpr int kWidth = 16;          // outputs of a panel
constexpr int kGroupBytes = 32;     // activations of a row, or k of an output
constexpr int kWeightRows = 8;      // of a tile of weights: 4 adjacent k of 16 outputs each
constexpr int kWeightRowBytes = 64;
constexpr int kMaxTileRows = 16;

// The compiler doesn't know what the tile instructions read: what they need at p must be in memory before.
CHAIRLIFT_INLINE void finish_stores(const void* p) { asm volatile("" : : "r"(p) : "memory"); }

// Operand of ldtilecfg: Intel SDM, volume 1, 18.3.
struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void shape(int tile, int num_rows, int num_bytes) {
    rows[tile] = static_cast<uint8_t>(num_rows);
    row_bytes[tile] = static_cast<uint16_t>(num_bytes);
  }
};

// While it lives, this thread's tile registers are set up; afterwards they are in their initial state, in which a
// switch of threads need not save them. Registers: sums 0 and 1, rows 2 and 3, weights 4.
class Tiles {
 public:
  explicit Tiles(int low) {  // rows of tiles 0 and 2; 1 and 3 have one more
    TileConfig config;
    for (int taller = 0; taller < 2; ++taller) {
      const int height = low + taller <= kMaxTileRows ? low + taller : kMaxTileRows;
      config.shape(taller, height, kWidth * 4);
      config.shape(2 + taller, height, kGroupBytes);
    }
    config.shape(4, kWeightRows, kWeightRowBytes);
    finish_stores(&config);
    _tile_loadconfig(&config);
  }
  ~Tiles() { _tile_release(); }
  Tiles(const Tiles&) = delete;
  Tiles& operator=(const Tiles&) = delete;
};

// sums[r][j] = the dot product of row r with output j.
//   x: [height][32] signed bytes, x_bytes between rows   w: [8][64] unsigned bytes   sums: [height][16]
template <bool taller>
CHAIRLIFT_INLINE void multiply(const int8_t* x, int64_t x_bytes, const uint8_t* w, int32_t* sums) {
  if constexpr (taller) {  // register numbers are literals
    _tile_zero(1);
    _tile_loadd(3, x, x_bytes);
    _tile_loadd(4, w, kWeightRowBytes);
    _tile_dpbsud(1, 3, 4);
    _tile_stored(1, sums, kWidth * 4);
  } else {
    _tile_zero(0);
    _tile_loadd(2, x, x_bytes);
    _tile_loadd(4, w, kWeightRowBytes);
    _tile_dpbsud(0, 2, 4);
    _tile_stored(0, sums, kWidth * 4);
  }
}

}  // namespace
}  // namespace chairlift

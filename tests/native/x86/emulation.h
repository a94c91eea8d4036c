// Included before a kernel's source to run it where the processor lacks the instructions: the intrinsics that
// csrc/arch/amx and csrc/arch/avxvnni use, in software. Only for tests.
//
// Tiles follow the Intel SDM (TILELOADD, TDPBSUD, LDTILECFG): rows and bytes per row come from the configuration, what a
// load doesn't cover is zero, shapes that don't fit stop the program as the processor would.
#pragma once

#include <immintrin.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace emulation {

struct Tile {
  int rows = 0, row_bytes = 0;
  uint8_t data[16][64] = {};
};

inline thread_local Tile tiles[8];
inline thread_local bool configured = false;

inline void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "a tile instruction would fault: %s\n", what);
  std::abort();
}

inline void load_config(const void* config) {
  const auto* bytes = static_cast<const uint8_t*>(config);
  require(bytes[0] == 1, "palette");
  for (int i = 1; i < 16; ++i) require(bytes[i] == 0, "start row and reserved bytes are zero");
  for (int i = 0; i < 16; ++i) {
    uint16_t row_bytes;
    std::memcpy(&row_bytes, bytes + 16 + 2 * i, 2);
    require(bytes[48 + i] <= 16 && row_bytes <= 64 && (i < 8 || (bytes[48 + i] == 0 && row_bytes == 0)), "shape");
    require((bytes[48 + i] == 0) == (row_bytes == 0), "rows and bytes per row are both zero or neither");
    if (i < 8) tiles[i] = {bytes[48 + i], row_bytes, {}};
  }
  configured = true;
}

inline void release() {
  for (Tile& tile : tiles) tile = {};
  configured = false;
}

inline Tile& get(int i) {
  require(configured && tiles[i].rows > 0, "the tile is not configured");
  return tiles[i];
}

inline void zero(int i) { std::memset(get(i).data, 0, sizeof(Tile::data)); }

inline void load(int i, const void* base, int64_t stride) {
  Tile& tile = get(i);
  zero(i);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(tile.data[r], static_cast<const uint8_t*>(base) + r * stride, static_cast<size_t>(tile.row_bytes));
  }
}

inline void store(int i, void* base, int64_t stride) {
  const Tile& tile = get(i);
  for (int r = 0; r < tile.rows; ++r) {
    std::memcpy(static_cast<uint8_t*>(base) + r * stride, tile.data[r], static_cast<size_t>(tile.row_bytes));
  }
}

// Adds to each dword of `sum` the products of four adjacent signed bytes of a row of `x` and unsigned ones of `w`.
inline void multiply(int sum, int x, int w) {
  Tile &c = get(sum), &a = get(x), &b = get(w);
  require(sum != x && x != w && sum != w, "three tiles");
  require(c.rows == a.rows && a.row_bytes == 4 * b.rows && c.row_bytes == b.row_bytes, "shapes fit");
  for (int r = 0; r < c.rows; ++r) {
    for (int j = 0; j < c.row_bytes / 4; ++j) {
      int32_t total;
      std::memcpy(&total, &c.data[r][4 * j], 4);
      for (int k = 0; k < a.row_bytes; ++k) total += static_cast<int8_t>(a.data[r][k]) * b.data[k / 4][4 * j + k % 4];
      std::memcpy(&c.data[r][4 * j], &total, 4);
    }
  }
}

// vpdpbusd by AVX2 instructions: bytes are widened first, so that nothing saturates.
inline __m256i dot_bytes(__m256i sum, __m256i w, __m256i x) {
  alignas(32) uint8_t unsigned_bytes[32];
  alignas(32) int8_t signed_bytes[32];
  alignas(32) int32_t sums[8];
  _mm256_store_si256(reinterpret_cast<__m256i*>(unsigned_bytes), w);
  _mm256_store_si256(reinterpret_cast<__m256i*>(signed_bytes), x);
  _mm256_store_si256(reinterpret_cast<__m256i*>(sums), sum);
  for (int i = 0; i < 32; ++i) sums[i / 4] += unsigned_bytes[i] * signed_bytes[i];
  return _mm256_load_si256(reinterpret_cast<const __m256i*>(sums));
}

}  // namespace emulation

#ifdef EMULATE_AMX
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbsud
#define _tile_loadconfig emulation::load_config
#define _tile_release emulation::release
#define _tile_zero emulation::zero
#define _tile_loadd emulation::load
#define _tile_stored emulation::store
#define _tile_dpbsud emulation::multiply
#endif

#if defined(EMULATE_AVXVNNI_BY_AVX512)  // the same instruction in the encoding of AVX-512 VNNI and VL
#define _mm256_dpbusd_avx_epi32 _mm256_dpbusd_epi32
#elif defined(EMULATE_AVXVNNI)
#define _mm256_dpbusd_avx_epi32 emulation::dot_bytes
#endif

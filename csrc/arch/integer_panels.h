// The walk of the x86 integer kernels over panels and rows. Which instructions a tile is made of is the caller's.
#pragma once

#include <immintrin.h>

#include "arch/kernel_table.h"

namespace chairlift {
namespace {

// What a tile works on: a panel, and a few rows of x.
struct TileTask {
  const QuantGroup* x;
  int64_t x_stride;  // groups between rows
  const uint8_t* panel;
  const uint8_t* next;  // what is read soon, to be fetched ahead
  int64_t num_groups;
  float* acc;  // [rows, 16]
};
using TileKernel = void (*)(const TileTask&);

template <int64_t bytes>
inline __attribute__((always_inline)) void prefetch_bytes(const uint8_t* p) {
#pragma GCC unroll 9
  for (int64_t byte = 0; byte < bytes; byte += 64) {
    _mm_prefetch(reinterpret_cast<const char*>(p + byte), _MM_HINT_T0);
  }
}

// All panels for the rows of one tile, then for the next: rows stay in the first-level cache, weights in the second.
// tiles[R] takes R rows, 1 to count - 1.
template <int count>
void walk_panels(const PanelTask& task, const TileKernel (&tiles)[count]) {
  constexpr int64_t kOutputs = 16, kMaxHeight = count - 1;
  TileTask part = {};
  part.x = task.xq;
  part.x_stride = task.x_stride;
  part.num_groups = task.in / 32;
  int64_t first_row = 0;
  for (int64_t num_tiles = (task.rows + kMaxHeight - 1) / kMaxHeight; num_tiles > 0; --num_tiles) {
    const int64_t height = (task.rows - first_row) / num_tiles;
    for (int64_t p = 0; p < task.num_panels; ++p) {
      part.panel = task.panels + p * task.panel_bytes;
      part.next = p + 1 == task.num_panels ? task.next_panels : part.panel + task.panel_bytes;
      part.acc = task.acc + (p * task.rows + first_row) * kOutputs;
      tiles[height](part);
    }
    part.x += height * part.x_stride;
    first_row += height;
  }
}

}  // namespace
}  // namespace chairlift

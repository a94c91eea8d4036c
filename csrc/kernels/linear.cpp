// Cutting a linear op into tiles (a few panels x a block of rows) and spreading them over the threads.
#include <algorithm>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/packed_weight.h"
#include "kernels/row_loop.h"
#include "kernels/scratch.h"
#include "runtime/context.h"

namespace chairlift {
namespace {

constexpr int64_t kMaxTileRows = 128;
constexpr int64_t kMinTileRows = 12;  // below, dequantising costs as much as the products
// Panels x rows of a tile: its accumulators stay in the first-level cache beside a chunk of weights. A tile of a large
// result takes more, to write more of each row at a time.
constexpr int64_t kAccRows = 192;
constexpr int64_t kMaxAccRows = 512;
static_assert(2 * kMaxTileRows <= kMaxAccRows, "gate and up of the tallest tile fit");
// Results from this size on (logits of many rows) go past the caches: nobody reads them before they would be evicted,
// and their rows, a large power of two apart, evict each other.
constexpr int64_t kLargeResultBytes = int64_t{4} << 20;

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

// How a segment is cut. Bits don't depend on it.
struct Tiling {
  int64_t rows_per_tile = 1;
  int64_t panels_per_tile = 1;
  int64_t row_blocks = 1;
  int64_t panel_blocks = 1;

  int64_t num_tiles() const { return row_blocks * panel_blocks; }
};

// How many panels a tile takes at most.
struct PanelLimits {
  int64_t panels;
  int64_t acc_rows;          // panels x rows
  int64_t tiles_per_thread;  // so many are left to share out
};

// Up to so many rows, products of integers wait for memory.
constexpr int64_t kFewRows = 8;

// Many rows: one unit of panels at a time, so that a chunk of weights is dequantised once for the row block.
// Few rows: more panels a tile, to have independent chains of fma and fewer claims, but tiles enough to share out.
// Where memory is waited for: long stretches of it, so that what is fetched ahead is what this thread reads next.
PanelLimits panel_limits(int64_t rows, const Segment& segment, bool large_result) {
  const int64_t acc_rows = large_result ? kMaxAccRows : kAccRows;
  if (is_integer(segment.layout) && rows <= kFewRows) return {32, acc_rows, 3};
  return {8, acc_rows, 8};
}

// Float kernels of few rows take four or two panels at once.
int64_t whole_panels(int64_t wanted, Layout layout) {
  if (is_integer(layout)) return wanted;
  return wanted >= 4 ? wanted / 4 * 4 : wanted / 2 * 2;
}

Tiling choose_tiling(int64_t rows, const Segment& segment, int64_t panel_unit, bool large_result, int num_threads) {
  Tiling tiling;
  const int64_t panels = segment.num_panels;
  const int64_t for_sharing = std::min(ceil_div(2 * num_threads * panel_unit, panels), ceil_div(rows, kMinTileRows));
  tiling.rows_per_tile = ceil_div(rows, std::max(ceil_div(rows, kMaxTileRows), for_sharing));
  tiling.row_blocks = ceil_div(rows, tiling.rows_per_tile);
  const PanelLimits limits = panel_limits(rows, segment, large_result);
  const int64_t by_scratch = limits.acc_rows / tiling.rows_per_tile;
  const int64_t by_sharing = panels * tiling.row_blocks / (limits.tiles_per_thread * num_threads);
  const int64_t wanted = whole_panels(std::min({by_scratch, by_sharing, limits.panels}), segment.layout);
  tiling.panels_per_tile = std::max(panel_unit, wanted / panel_unit * panel_unit);
  tiling.panel_blocks = ceil_div(panels, tiling.panels_per_tile);
  return tiling;
}

struct Tile {
  int64_t first_row, num_rows, first_panel, num_panels;
  int64_t next_panel;  // first one of the tile that this thread will probably claim next
};

Tile tile_at(const Tiling& tiling, int64_t index, int64_t rows, int64_t panels) {
  Tile tile;
  // A block of rows stays in the second-level cache while the weights stream by.
  tile.first_row = index / tiling.panel_blocks * tiling.rows_per_tile;
  tile.num_rows = std::min(tiling.rows_per_tile, rows - tile.first_row);
  tile.first_panel = index % tiling.panel_blocks * tiling.panels_per_tile;
  tile.num_panels = std::min(tiling.panels_per_tile, panels - tile.first_panel);
  const int64_t next = (index + 1) % tiling.panel_blocks * tiling.panels_per_tile;
  tile.next_panel = next;
  return tile;
}

// The rows of an op, and their 8-bit form where a segment of the weight wants it.
struct Input {
  const float* x = nullptr;        // [rows, in]
  const QuantGroup* xq = nullptr;  // [rows, xq_stride], of which in / 32 are used
  int64_t in = 0;
  int64_t xq_stride = 0;
};

// Rounding few rows takes less time than sharing them out.
constexpr int64_t kFewFloats = 8192;

void quantise_rows(Context& context, const float* x, int64_t rows, int64_t in, QuantGroup* xq, int64_t xq_stride) {
  const QuantiseKernel quantise = context.kernels().linear.quantise;
  const auto quantise_row = [&](int64_t r) { quantise(x + r * in, in / kGroupSize, xq + r * xq_stride); };
  if (rows * in > kFewFloats) return for_each_row(context, rows, in, quantise_row);
  context.pool().parallel_for(1, [&](int64_t) {
    for (int64_t r = 0; r < rows; ++r) quantise_row(r);
  });
}

Input make_input(Context& context, const float* x, int64_t rows, const PackedWeight& w) {
  Input input{x, nullptr, w.in, 0};
  if (!w.has_integers()) return input;
  static thread_local Scratch scratch;
  input.xq_stride = w.in / kGroupSize | 1;  // odd: rows a power of two apart would share sets of the caches
  const size_t bytes = static_cast<size_t>(rows * input.xq_stride) * sizeof(QuantGroup);
  auto* xq = reinterpret_cast<QuantGroup*>(scratch.floats(bytes / sizeof(float)));
  quantise_rows(context, x, rows, w.in, xq, input.xq_stride);
  input.xq = xq;
  return input;
}

PanelTask panel_task(const Input& input, const Tile& tile, const Segment& segment, float* acc) {
  PanelTask task;
  if (is_integer(segment.layout)) {
    task.x_stride = input.xq_stride;
    task.xq = input.xq + tile.first_row * task.x_stride;
  } else {
    task.x_stride = input.in;
    task.x = input.x + tile.first_row * task.x_stride;
  }
  task.rows = tile.num_rows;
  task.in = input.in;
  task.panels = segment.panel(tile.first_panel);
  task.panel_bytes = segment.panel_bytes;
  task.num_panels = tile.num_panels;
  task.next_panels = segment.panel(tile.next_panel);
  task.acc = acc;
  return task;
}

enum class Store { Replace, Accumulate, Stream };

void store_outputs(const float* __restrict acc, int64_t n, float* __restrict y, Store store) {
  if (store == Store::Accumulate) {
    for (int64_t j = 0; j < n; ++j) y[j] += acc[j];
  } else {
    for (int64_t j = 0; j < n; ++j) y[j] = acc[j];
  }
}

void stream_panel(const float* acc, float* y) {
#if defined(__SSE2__)
  for (int64_t j = 0; j < kPanelWidth; j += 4) _mm_stream_ps(y + j, _mm_load_ps(acc + j));
#else
  store_outputs(acc, kPanelWidth, y, Store::Replace);
#endif
}

// y[0, n) = acc, or += acc.   n <= 16
void store_panel(const float* acc, int64_t n, float* y, Store store) {
  if (n != kPanelWidth) return store_outputs(acc, n, y, store);
  if (store == Store::Stream) return stream_panel(acc, y);
  store_outputs(acc, kPanelWidth, y, store);  // of a constant length: no loop
}

// Streamed stores may still be on their way when a thread says that it is done.
void finish_stores(Store store) {
#if defined(__SSE2__)
  if (store == Store::Stream) _mm_sfence();
#else
  static_cast<void>(store);
#endif
}

Store choose_store(int64_t rows, const PackedWeight& w, const float* y, bool accumulate) {
  if (accumulate) return Store::Accumulate;
  const bool aligned = reinterpret_cast<uintptr_t>(y) % 16 == 0 && w.out % 4 == 0;
  return aligned && rows * w.out * 4 >= kLargeResultBytes ? Store::Stream : Store::Replace;
}

void linear_tile(const KernelTable& kernels, const Input& input, const PackedWeight& w, const Segment& segment,
                 const Tile& tile, float* y, Store store) {
  alignas(64) float acc[kMaxAccRows * kPanelWidth];
  kernels.linear.panels[static_cast<int>(segment.layout)](panel_task(input, tile, segment, acc));
  const int64_t first_out = tile.first_panel * kPanelWidth;
  for (int64_t r = 0; r < tile.num_rows; ++r) {
    float* row = y + (tile.first_row + r) * w.out + segment.first_out + first_out;
    for (int64_t p = 0; p < tile.num_panels; ++p) {
      const int64_t n = std::min(kPanelWidth, segment.num_out - first_out - p * kPanelWidth);
      store_panel(acc + (p * tile.num_rows + r) * kPanelWidth, n, row + p * kPanelWidth, store);
    }
  }
  finish_stores(store);
}

// Dot products of a gated tile: acc = gate 0, up 0, gate 1, up 1, ... [rows, 16] each.
void gated_products(const KernelTable& kernels, const Input& input, const PackedWeight& w, const Tile& tile,
                    float* acc) {
  for (size_t s = 0; s < w.segments.size(); ++s) {
    const Segment& segment = w.segments[s];
    float* segment_acc = acc + static_cast<int64_t>(s) * tile.num_rows * kPanelWidth;
    kernels.linear.panels[static_cast<int>(segment.layout)](panel_task(input, tile, segment, segment_acc));
  }
}

void gated_tile(const KernelTable& kernels, const Input& input, const PackedWeight& w, GateActivation activation,
                const Tile& tile, int64_t first_out, float* y) {
  alignas(64) float acc[kMaxAccRows * kPanelWidth];
  gated_products(kernels, input, w, tile, acc);
  const GateKernel gate = kernels.linear.gate[static_cast<int>(activation)];
  const int64_t panel_size = tile.num_rows * kPanelWidth;
  const int64_t num_pairs = tile.num_panels * static_cast<int64_t>(w.segments.size()) / 2;
  for (int64_t pair = 0; pair < num_pairs; ++pair) {
    float* gate_acc = acc + 2 * pair * panel_size;
    gate(gate_acc, gate_acc + panel_size, panel_size, gate_acc);
    const int64_t out = first_out + pair * kPanelWidth;
    const int64_t n = std::min(kPanelWidth, w.out - out);
    for (int64_t r = 0; r < tile.num_rows; ++r) {
      store_panel(gate_acc + r * kPanelWidth, n, y + (tile.first_row + r) * w.out + out, Store::Replace);
    }
  }
}

}  // namespace

void linear(Context& context, const float* x, int64_t rows, const PackedWeight& w, float* y, bool accumulate) {
  if (rows == 0) return;
  const KernelTable& kernels = context.kernels();
  const Input input = make_input(context, x, rows, w);
  const Store store = choose_store(rows, w, y, accumulate);
  const bool large_result = store == Store::Stream;
  for (const Segment& segment : w.segments) {
    const Tiling tiling = choose_tiling(rows, segment, 1, large_result, context.num_threads());
    context.pool().parallel_for_local(tiling.num_tiles(), [&](int64_t index) {
      const Tile tile = tile_at(tiling, index, rows, segment.num_panels);
      linear_tile(kernels, input, w, segment, tile, y, store);
    });
  }
}

void gated_linear(Context& context, const float* x, int64_t rows, const PackedWeight& w, GateActivation activation,
                  float* y) {
  if (rows == 0) return;
  const KernelTable& kernels = context.kernels();
  const Input input = make_input(context, x, rows, w);
  const int64_t panels_per_output = 2 / static_cast<int64_t>(w.segments.size());  // 2 interleaved, 1 in two segments
  const int64_t num_panels = w.segments[0].num_panels;
  Tiling tiling = choose_tiling(rows, w.segments[0], panels_per_output, false, context.num_threads());
  if (panels_per_output == 1) {
    tiling.panels_per_tile = 1;
    tiling.panel_blocks = num_panels;
  }
  context.pool().parallel_for_local(tiling.num_tiles(), [&](int64_t index) {
    const Tile tile = tile_at(tiling, index, rows, num_panels);
    gated_tile(kernels, input, w, activation, tile, tile.first_panel / panels_per_output * kPanelWidth, y);
  });
}

}  // namespace chairlift

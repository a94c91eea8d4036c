// Paged attention: walks the tiles and splits of a plan and joins what the leaf kernels (attention_generic.cpp and
// arch/) compute for each.
#include <algorithm>

#include "chairlift/ops.h"
#include "kernels/attention_plan.h"
#include "kernels/kv_pool.h"
#include "kernels/math.h"
#include "runtime/context.h"

namespace chairlift {
namespace {

using Partial = AttentionPartial;
using Tile = AttentionTile;

constexpr int64_t kWidenPairs = 7;  // f16 and int8 are widened once for all when at least so many pairs read a split

struct Call {
  const StepKernels& kernels;
  const BatchView& batch;
  const float* qkv;
  const KVPool& pool;
  int64_t layer;
  float scale;
  float* out;
  int64_t group;  // q heads of a kv head

  int64_t dim() const { return pool.head_dim; }
  int64_t qkv_stride() const { return (group + 2) * pool.num_kv_heads * pool.head_dim; }
  int64_t out_stride() const { return group * pool.num_kv_heads * pool.head_dim; }
};

// What a thread needs beside the results: scores, one split's K and V in f32, a Partial of one group and of a tile.
struct Workspace {
  Workspace(Scratch& scratch, int64_t num_pairs, int64_t head_dim) {
    const int64_t score_floats = kMaxPairs * kSplitKeys, split_floats = kSplitKeys * head_dim;
    const int64_t group_floats = Partial::floats(kMaxPairs, head_dim);
    const int64_t tile_floats = Partial::floats(num_pairs, head_dim);
    scores = scratch.floats(static_cast<size_t>(score_floats + 2 * split_floats + group_floats + tile_floats));
    keys = scores + score_floats;
    values = keys + split_floats;
    group = values + split_floats;
    tile = group + group_floats;
  }

  float *scores, *keys, *values, *group, *tile;
};

void join(const Call& call, const Partial& into, const Partial& next) {
  const float max = *next.max > *into.max ? *next.max : *into.max;
  const float a = exp_f32(*into.max - max), b = exp_f32(*next.max - max);
  *into.max = max;
  *into.sum = fma_f32(*into.sum, a, *next.sum * b);
  call.kernels.attention.blend(into.acc, a, next.acc, b, call.dim());
}

void write_rows(const Call& call, const Tile& tile, const Partial& result) {
  for (int64_t pair = 0; pair < tile.num_pairs; ++pair) {
    const int64_t head = tile.kv_head * call.group + pair % call.group;
    float* out = call.out + (tile.first_row + pair / call.group) * call.out_stride() + head * call.dim();
    const Partial one = result.from(pair, call.dim());
    call.kernels.attention.scale(one.acc, 1.0f / *one.sum, call.dim(), out);
  }
}

// First pair that sees a split; later rows, hence later pairs, see more.
int64_t first_pair(const Call& call, const Tile& tile, int64_t split) {
  return std::max<int64_t>(0, split * kSplitKeys - tile.first_position) * call.group;
}

void locate_tiles(const Call& call, const Tile& tile, int64_t first_key, SplitTask& task) {
  const KVPool& pool = call.pool;
  const int32_t* table = call.batch.block_tables + tile.request * call.batch.max_blocks;
  const int64_t tiles_left = (tile.last_position - first_key) / kKeyTile + 1;
  task.num_tiles = std::min(tiles_left, kSplitTiles + kTilesAhead);
  for (int64_t i = 0; i < task.num_tiles; ++i) {
    const int64_t key = first_key + i * kKeyTile;
    const std::byte* k = pool.tile(call.layer, table[key / pool.block_size], tile.kv_head, key % pool.block_size);
    task.k_tiles[i] = k;
    if (i >= kSplitTiles) continue;
    const std::byte* v = k + pool.half_tile_bytes();
    task.v_tiles[i] = v;
    task.k_scales[i] = reinterpret_cast<const float*>(k + pool.scales_offset());
    task.v_scales[i] = reinterpret_cast<const float*>(v + pool.scales_offset());
  }
  task.dtype = pool.dtype;
  task.is_scaled = pool.dtype == KVDtype::Int8;
}

void widen(const Call& call, const void* tile, float* out) {
  const RowKernels& row = call.kernels.row;
  const int64_t count = kKeyTile * call.dim();
  if (call.pool.dtype == KVDtype::F16) {
    row.widen(static_cast<const uint16_t*>(tile), count, out);
  } else {
    row.widen_int8(static_cast<const int8_t*>(tile), count, out);
  }
}

void widen_tiles(const Call& call, const Workspace& space, SplitTask& task) {
  const int64_t floats = kKeyTile * call.dim();
  for (int64_t i = 0; i < std::min(task.num_tiles, kSplitTiles); ++i) {
    float *k = space.keys + i * floats, *v = space.values + i * floats;
    widen(call, task.k_tiles[i], k);
    widen(call, task.v_tiles[i], v);
    task.k_tiles[i] = k;
    task.v_tiles[i] = v;
  }
  task.dtype = KVDtype::F32;
}

// Points the task at `count` pairs of the tile, from `pair` on.
void aim(const Call& call, const Tile& tile, int64_t first_key, int64_t pair, int64_t count, SplitTask& task) {
  task.num_pairs = count;
  for (int64_t p = 0; p < count; ++p) {
    const int64_t row = (pair + p) / call.group;  // of the tile
    const int64_t head = tile.kv_head * call.group + (pair + p) % call.group;
    task.q[p] = call.qkv + (tile.first_row + row) * call.qkv_stride() + head * call.dim();
    task.num_keys[p] = std::min(kSplitKeys, tile.first_position + row + 1 - first_key);
  }
}

// Attends all pairs that see the split. `fresh`: `into` gets the result; else it is joined to what is there.
void attend_split(const Call& call, const Tile& tile, int64_t split, const Workspace& space, const Partial& into,
                  bool fresh) {
  const int64_t first_key = split * kSplitKeys;
  int64_t pair = first_pair(call, tile, split);
  SplitTask task;
  task.head_dim = call.dim();
  task.scale = call.scale;
  task.scores = space.scores;
  locate_tiles(call, tile, first_key, task);
  if (task.dtype != KVDtype::F32 && tile.num_pairs - pair >= kWidenPairs) widen_tiles(call, space, task);
  while (pair < tile.num_pairs) {
    const int64_t left = tile.num_pairs - pair, groups = (left + kMaxPairs - 1) / kMaxPairs;
    const int64_t count = (left + groups - 1) / groups;  // groups of about the same size
    const Partial target = fresh ? into.from(pair, call.dim()) : Partial::at(space.group, kMaxPairs, call.dim());
    aim(call, tile, first_key, pair, count, task);
    task.max = target.max;
    task.sum = target.sum;
    task.acc = target.acc;
    call.kernels.attention.attend_split(task);
    for (int64_t p = 0; !fresh && p < count; ++p) {
      join(call, into.from(pair + p, call.dim()), target.from(p, call.dim()));
    }
    pair += count;
  }
}

Partial shared_partial(const Call& call, const Tile& tile, int64_t split) {
  float* memory = tile.partials + split * Partial::floats(tile.num_pairs, call.dim());
  return Partial::at(memory, tile.num_pairs, call.dim());
}

void run_item(const Call& call, const Tile& tile, const AttentionItem& item) {
  static thread_local Scratch scratch;
  const Workspace space(scratch, tile.num_pairs, call.dim());
  const Partial running = Partial::at(space.tile, tile.num_pairs, call.dim());
  for (int64_t split = item.first_split; split < item.end_split; ++split) {
    if (tile.partials != nullptr) {
      attend_split(call, tile, split, space, shared_partial(call, tile, split), true);
    } else {
      attend_split(call, tile, split, space, running, split == 0);
    }
  }
  if (tile.partials == nullptr) write_rows(call, tile, running);
}

void join_splits(const Call& call, const Tile& tile) {
  const Partial running = shared_partial(call, tile, 0);
  for (int64_t split = 1; split < tile.num_splits(); ++split) {
    const Partial next = shared_partial(call, tile, split);
    for (int64_t pair = first_pair(call, tile, split); pair < tile.num_pairs; ++pair) {
      join(call, running.from(pair, call.dim()), next.from(pair, call.dim()));
    }
  }
  write_rows(call, tile, running);
}

}  // namespace

void attention(Context& context, const BatchView& batch, const float* qkv, int64_t num_q_heads, const KVPool& pool,
               int64_t layer, float scale, float* out) {
  static thread_local AttentionPlan reused;
  AttentionPlan& plan = reused;  // the caller's: inside the loops below the name would mean each thread's own
  const int64_t group = num_q_heads / pool.num_kv_heads;
  const Call call{context.kernels().step, batch, qkv, pool, layer, scale, out, group};
  plan.build(batch, pool.num_kv_heads, group, pool.head_dim, context.num_threads());
  const auto num_items = static_cast<int64_t>(plan.items().size());
  const int64_t per_claim = plan.is_small() ? std::max<int64_t>(1, num_items) : 1;
  context.pool().parallel_for((num_items + per_claim - 1) / per_claim, [&](int64_t claim) {
    for (int64_t i = claim * per_claim; i < std::min(num_items, (claim + 1) * per_claim); ++i) {
      const AttentionItem& item = plan.items()[static_cast<size_t>(i)];
      run_item(call, plan.tile_of(item), item);
    }
  });
  if (!plan.has_shared_tiles()) return;
  context.pool().parallel_for(static_cast<int64_t>(plan.tiles().size()), [&](int64_t index) {
    const Tile& tile = plan.tiles()[static_cast<size_t>(index)];
    if (tile.partials != nullptr) join_splits(call, tile);
  });
}

}  // namespace chairlift

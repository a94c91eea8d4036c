// Paged attention: walks the tiles and splits of a plan and joins what the leaf kernels (attention_generic.cpp and
// arch/) compute for each.
#include <algorithm>
#include <cstring>
#include <utility>

#include "chairlift/ops.h"
#include "kernels/attention_plan.h"
#include "kernels/kv_pool.h"
#include "kernels/math.h"
#include "runtime/context.h"

namespace chairlift {
namespace {

using Partial = AttentionPartial;
using Tile = AttentionTile;

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

// How K, V and their scales lie in a tile; see SplitTask.
struct TileLayout {
  KVDtype dtype;
  int64_t scale_offset, value_offset, bytes;

  static TileLayout of(const KVPool& pool) {
    const bool is_scaled = pool.dtype == KVDtype::Int8;
    return {pool.dtype, is_scaled ? pool.scales_offset() : 0, pool.half_tile_bytes(), 2 * pool.half_tile_bytes()};
  }
  static TileLayout widened(const KVPool& pool) {
    const bool is_scaled = pool.dtype == KVDtype::Int8;
    const int64_t numbers = kKeyTile * pool.head_dim * 4, half = numbers + (is_scaled ? kKeyTile * 4 : 0);
    return {KVDtype::F32, is_scaled ? numbers : 0, half, 2 * half};
  }
};

// Where the keys of one split lie.
struct SplitTiles {
  const std::byte* tiles[kSplitTiles];  // those past the last key repeat it
  int64_t count;
};

// What a thread needs beside the results: scores, one split's K and V in f32, a Partial of one group and of a tile.
struct Workspace {
  Workspace(Scratch& scratch, int64_t num_pairs, const KVPool& pool) {
    const int64_t score_floats = kMaxPairs * kSplitKeys, tile_floats = TileLayout::widened(pool).bytes / 4;
    const int64_t group_floats = Partial::floats(kMaxPairs, pool.head_dim);
    const int64_t pair_floats = Partial::floats(num_pairs, pool.head_dim);
    scores = scratch.floats(
        static_cast<size_t>(score_floats + kSplitTiles * tile_floats + group_floats + pair_floats));
    widened = scores + score_floats;
    group = widened + kSplitTiles * tile_floats;
    tile = group + group_floats;
  }

  float *scores, *widened, *group, *tile;
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

void locate(const Call& call, const Tile& tile, int64_t split, SplitTiles& found) {
  const KVPool& pool = call.pool;
  const int64_t first = split * kSplitTiles, tiles_of_block = pool.block_size / kKeyTile;
  const int32_t* block = call.batch.block_tables + tile.request * call.batch.max_blocks + first / tiles_of_block;
  int64_t in_block = first % tiles_of_block;
  found.count = std::min(kSplitTiles, tile.last_position / kKeyTile + 1 - first);
  for (int64_t i = 0; i < found.count; ++i) {
    found.tiles[i] = pool.tile(call.layer, *block, tile.kv_head, in_block * kKeyTile);
    if (++in_block < tiles_of_block) continue;
    in_block = 0;
    ++block;
  }
  for (int64_t i = found.count; i < kSplitTiles; ++i) found.tiles[i] = found.tiles[found.count - 1];
}

// Fetches a split's K into the second-level cache.
void fetch_keys(const Call& call, const SplitTiles& split) {
  for (int64_t i = 0; i < split.count; ++i) {
    for (int64_t byte = 0; byte < call.pool.half_tile_bytes(); byte += 64) {
      __builtin_prefetch(split.tiles[i] + byte, 0, 2);
    }
  }
}

void widen(const Call& call, const std::byte* half_tile, std::byte* out) {
  const RowKernels& row = call.kernels.row;
  const int64_t count = kKeyTile * call.dim();
  auto* floats = reinterpret_cast<float*>(out);
  if (call.pool.dtype == KVDtype::F16) {
    row.widen(reinterpret_cast<const uint16_t*>(half_tile), count, floats);
  } else {
    row.widen_int8(reinterpret_cast<const int8_t*>(half_tile), count, floats);
    std::memcpy(floats + count, half_tile + call.pool.scales_offset(), kKeyTile * sizeof(float));
  }
}

// Widens the tiles of a split to f32 and points at what was made.
void widen_tiles(const Call& call, const Workspace& space, SplitTiles& split) {
  const TileLayout from = TileLayout::of(call.pool), to = TileLayout::widened(call.pool);
  auto* out = reinterpret_cast<std::byte*>(space.widened);
  for (int64_t i = 0; i < split.count; ++i, out += to.bytes) {
    widen(call, split.tiles[i], out);
    widen(call, split.tiles[i] + from.value_offset, out + to.value_offset);
    split.tiles[i] = out;
  }
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

// Attends all pairs that see the split and meanwhile fetches K of `next`, or what else lies there.
// `fresh`: `into` gets the result; else it is joined to what is there.
void attend_split(const Call& call, const Tile& tile, int64_t split, const Workspace& space, SplitTiles keys,
                  const SplitTiles& next, const Partial& into, bool fresh) {
  int64_t pair = first_pair(call, tile, split);
  const bool is_wide = call.pool.dtype != KVDtype::F32 && tile.num_pairs - pair >= call.kernels.attention.widen_pairs;
  if (is_wide) widen_tiles(call, space, keys);
  const TileLayout layout = is_wide ? TileLayout::widened(call.pool) : TileLayout::of(call.pool);
  SplitTask task;
  task.head_dim = call.dim();
  task.tiles = keys.tiles;
  task.dtype = layout.dtype;
  task.value_offset = layout.value_offset;
  task.scale_offset = layout.scale_offset;
  task.scale = call.scale;
  task.scores = space.scores;
  while (pair < tile.num_pairs) {
    const int64_t left = tile.num_pairs - pair, groups = (left + kMaxPairs - 1) / kMaxPairs;
    const int64_t count = (left + groups - 1) / groups;  // groups of about the same size
    const Partial target = fresh ? into.from(pair, call.dim()) : Partial::at(space.group, kMaxPairs, call.dim());
    aim(call, tile, split * kSplitKeys, pair, count, task);
    task.next_tiles = groups == 1 ? next.tiles : keys.tiles;
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

// A thread at work on some items, one after the other: while it attends a split, K of the following one is fetched.
class Worker {
 public:
  Worker(const Call& call, const AttentionPlan& plan) : call_(call), plan_(plan) {}

  // Computes the items of a claim; `after` is the item that this thread will probably do then.
  void run(const AttentionClaim& claim, int64_t after) {
    locate_first(claim.first_item);
    std::swap(keys_, next_);
    fetch_keys(call_, keys_);
    for (int64_t item = claim.first_item; item < claim.end_item; ++item) {
      run_item(plan_.item(item), item + 1 < claim.end_item ? item + 1 : after);
    }
  }

 private:
  void locate_first(int64_t index) {
    const AttentionItem& item = plan_.item(index);
    locate(call_, plan_.tile_of(item), item.first_split, next_);
  }

  void run_item(const AttentionItem& item, int64_t following) {
    static thread_local Scratch scratch;
    const Tile& tile = plan_.tile_of(item);
    const Workspace space(scratch, tile.num_pairs, call_.pool);
    const Partial running = Partial::at(space.tile, tile.num_pairs, call_.dim());
    for (int64_t split = item.first_split; split < item.end_split; ++split) {
      if (split + 1 < item.end_split) {
        locate(call_, tile, split + 1, next_);
      } else {
        locate_first(following);
      }
      const bool is_shared = tile.partials != nullptr;
      const Partial& into = is_shared ? shared_partial(call_, tile, split) : running;
      attend_split(call_, tile, split, space, keys_, next_, into, is_shared || split == 0);
      std::swap(keys_, next_);
    }
    if (tile.partials == nullptr) write_rows(call_, tile, running);
  }

  const Call& call_;
  const AttentionPlan& plan_;
  SplitTiles keys_, next_;
};

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
  const auto& claims = plan.claims();
  const auto num_claims = static_cast<int64_t>(claims.size());
  context.pool().parallel_for(num_claims, [&](int64_t index) {
    const int64_t after = std::min(index + context.num_threads(), num_claims - 1);
    Worker(call, plan).run(claims[static_cast<size_t>(index)], claims[static_cast<size_t>(after)].first_item);
  });
  if (!plan.has_shared_tiles()) return;
  context.pool().parallel_for(static_cast<int64_t>(plan.tiles().size()), [&](int64_t index) {
    const Tile& tile = plan.tiles()[static_cast<size_t>(index)];
    if (tile.partials != nullptr) join_splits(call, tile);
  });
}

}  // namespace chairlift

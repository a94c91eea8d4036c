// Paged attention: who computes what, and how the pieces are joined. The arithmetic itself is in *_generic.cpp and
// arch/.
//
// The unit of arithmetic is (row, q head, split of 256 keys): its softmax is computed from scratch, and a row's
// splits are joined in ascending order. Everything above that unit (tiles of rows, ranges of splits, threads) only
// decides who computes it, so none of it can change a bit.
#include <algorithm>
#include <vector>

#include "chairlift/ops.h"
#include "kernels/kv_pool.h"
#include "kernels/math.h"
#include "kernels/scratch.h"
#include "runtime/context.h"

namespace chairlift {
namespace {

constexpr int64_t kTilePairs = 192;       // (row, q head) pairs that share one widening of K and V to f32
constexpr int64_t kWidenPairs = 7;        // widen when at least so many pairs read the split
constexpr int64_t kItemsPerThread = 4;    // cut long items until each thread has about so many
constexpr int64_t kInlinePairKeys = 512;  // less work than this isn't worth waking anybody

struct Call {
  const StepKernels& kernels;
  const BatchView& batch;
  const float* qkv;
  const KVPool& pool;
  int64_t layer;
  float scale;
  float* out;
  int64_t group;       // q heads of a kv head
  int64_t qkv_stride;  // floats of a row
  int64_t out_stride;
};

// Softmax of some pairs over some keys, not yet divided by the sum.
struct Partial {
  float* max;  // [pairs]
  float* sum;  // [pairs]
  float* acc;  // [pairs][head_dim]

  Partial from(int64_t pair, int64_t head_dim) const { return {max + pair, sum + pair, acc + pair * head_dim}; }
  static int64_t floats(int64_t pairs, int64_t head_dim) { return pairs * (head_dim + 2); }
  static Partial at(float* memory, int64_t pairs, int64_t head_dim) {
    return {memory + pairs * head_dim, memory + pairs * (head_dim + 1), memory};
  }
};

// Some rows of a request and the q heads of one kv head. Pair p is row first_row + p / group, head p % group.
struct Tile {
  int64_t request, kv_head, first_row, num_pairs;
  int64_t first_position, last_position;
  float* partials = nullptr;  // [splits] Partials when several threads share the tile

  int64_t num_splits() const { return last_position / kSplitKeys + 1; }
  int64_t work() const { return num_pairs * (last_position + 1); }
};

struct Item {
  int64_t tile, first_split, end_split;
};

int64_t position_of(const Call& call, const Tile& tile, int64_t pair) {
  return tile.first_position + pair / call.group;
}

void join(const Call& call, const Partial& into, const Partial& next) {
  const float max = *next.max > *into.max ? *next.max : *into.max;
  const float a = exp_f32(*into.max - max), b = exp_f32(*next.max - max);
  *into.max = max;
  *into.sum = fma_f32(*into.sum, a, *next.sum * b);
  call.kernels.attention.blend(into.acc, a, next.acc, b, call.pool.head_dim);
}

void write_rows(const Call& call, const Tile& tile, const Partial& result) {
  const int64_t dim = call.pool.head_dim;
  for (int64_t pair = 0; pair < tile.num_pairs; ++pair) {
    const int64_t head = tile.kv_head * call.group + pair % call.group;
    float* out = call.out + (tile.first_row + pair / call.group) * call.out_stride + head * dim;
    const Partial one = result.from(pair, dim);
    call.kernels.attention.scale(one.acc, 1.0f / *one.sum, dim, out);
  }
}

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

void locate_tiles(const Call& call, const Tile& tile, int64_t first_key, SplitTask& task) {
  const KVPool& pool = call.pool;
  const int32_t* table = call.batch.block_tables + tile.request * call.batch.max_blocks;
  const int64_t tiles_left = (tile.last_position - first_key) / kKeyTile + 1;
  task.num_tiles = std::min(tiles_left, kSplitTiles + kTilesAhead);
  for (int64_t i = 0; i < task.num_tiles; ++i) {
    const int64_t key = first_key + i * kKeyTile;
    const std::byte* k = pool.tile(call.layer, table[key / pool.block_size], tile.kv_head, key % pool.block_size);
    task.k_tiles[i] = k;
    if (i < kSplitTiles) task.v_tiles[i] = k + pool.half_tile_bytes();
  }
  task.is_half = pool.dtype == KVDtype::F16;
}

void widen_tiles(const Call& call, int64_t num_keys, const Workspace& space, SplitTask& task) {
  const int64_t floats = kKeyTile * call.pool.head_dim;
  for (int64_t i = 0; i * kKeyTile < num_keys; ++i) {
    float *k = space.keys + i * floats, *v = space.values + i * floats;
    call.kernels.row.widen(static_cast<const uint16_t*>(task.k_tiles[i]), floats, k);
    call.kernels.row.widen(static_cast<const uint16_t*>(task.v_tiles[i]), floats, v);
    task.k_tiles[i] = k;
    task.v_tiles[i] = v;
  }
  task.is_half = false;
}

// Points the task at `count` pairs of the tile, from `pair` on.
void aim(const Call& call, const Tile& tile, int64_t first_key, int64_t pair, int64_t count, SplitTask& task) {
  const int64_t dim = call.pool.head_dim;
  task.num_pairs = count;
  for (int64_t p = 0; p < count; ++p) {
    const int64_t row = tile.first_row + (pair + p) / call.group;
    const int64_t head = tile.kv_head * call.group + (pair + p) % call.group;
    task.q[p] = call.qkv + row * call.qkv_stride + head * dim;
    task.num_keys[p] = std::min(kSplitKeys, position_of(call, tile, pair + p) + 1 - first_key);
  }
}

// Attends all pairs that see the split. `fresh`: `into` gets the result; else it is joined to what is there.
void attend_split(const Call& call, const Tile& tile, int64_t split, const Workspace& space, const Partial& into,
                  bool fresh) {
  const int64_t dim = call.pool.head_dim, first_key = split * kSplitKeys;
  const int64_t end_key = std::min(first_key + kSplitKeys, tile.last_position + 1);
  int64_t pair = std::max<int64_t>(0, first_key - tile.first_position) * call.group;  // rows before it see nothing
  SplitTask task;
  task.head_dim = dim;
  task.scale = call.scale;
  task.scores = space.scores;
  locate_tiles(call, tile, first_key, task);
  if (task.is_half && tile.num_pairs - pair >= kWidenPairs) widen_tiles(call, end_key - first_key, space, task);
  while (pair < tile.num_pairs) {
    const int64_t left = tile.num_pairs - pair, groups = (left + kMaxPairs - 1) / kMaxPairs;
    const int64_t count = (left + groups - 1) / groups;
    aim(call, tile, first_key, pair, count, task);
    const Partial target = fresh ? into.from(pair, dim) : Partial::at(space.group, kMaxPairs, dim);
    task.max = target.max;
    task.sum = target.sum;
    task.acc = target.acc;
    call.kernels.attention.attend_split(task);
    for (int64_t p = 0; !fresh && p < count; ++p) join(call, into.from(pair + p, dim), target.from(p, dim));
    pair += count;
  }
}

Partial shared_partial(const Tile& tile, int64_t split, int64_t dim) {
  return Partial::at(tile.partials + split * Partial::floats(tile.num_pairs, dim), tile.num_pairs, dim);
}

void run_item(const Call& call, const Tile& tile, const Item& item) {
  static thread_local Scratch scratch;
  const int64_t dim = call.pool.head_dim;
  const Workspace space(scratch, tile.num_pairs, dim);
  if (tile.partials != nullptr) {
    for (int64_t split = item.first_split; split < item.end_split; ++split) {
      attend_split(call, tile, split, space, shared_partial(tile, split, dim), true);
    }
    return;
  }
  const Partial running = Partial::at(space.tile, tile.num_pairs, dim);
  for (int64_t split = 0; split < item.end_split; ++split) {
    attend_split(call, tile, split, space, running, split == 0);
  }
  write_rows(call, tile, running);
}

void join_splits(const Call& call, const Tile& tile) {
  const int64_t dim = call.pool.head_dim;
  const Partial running = shared_partial(tile, 0, dim);
  for (int64_t split = 1; split < tile.num_splits(); ++split) {
    const Partial next = shared_partial(tile, split, dim);
    const int64_t first = std::max<int64_t>(0, split * kSplitKeys - tile.first_position) * call.group;
    for (int64_t pair = first; pair < tile.num_pairs; ++pair) {
      join(call, running.from(pair, dim), next.from(pair, dim));
    }
  }
  write_rows(call, tile, running);
}

struct Plan {
  std::vector<Tile> tiles;
  std::vector<Item> items;
  int64_t work = 0;
  int64_t partial_floats = 0;

  void clear() {
    tiles.clear();
    items.clear();
    work = partial_floats = 0;
  }
};

void add_tiles(const Call& call, int64_t request, Plan& plan) {
  const int64_t begin = call.batch.query_start_loc[request], end = call.batch.query_start_loc[request + 1];
  const int64_t tile_rows = std::max<int64_t>(1, kTilePairs / call.group);
  for (int64_t last = end; last > begin; last -= tile_rows) {  // the longest first, so that threads end together
    const int64_t first = std::max(begin, last - tile_rows), rows = last - first;
    for (int64_t kv_head = 0; kv_head < call.pool.num_kv_heads; ++kv_head) {
      const Tile tile{request, kv_head, first, rows * call.group, call.batch.positions[first],
                      call.batch.positions[first] + rows - 1};
      plan.work += tile.work();
      plan.tiles.push_back(tile);
    }
  }
}

// Cuts tiles that are long against a thread's share into ranges of splits.
void add_items(int64_t index, int64_t num_threads, int64_t dim, Plan& plan) {
  Tile& tile = plan.tiles[static_cast<size_t>(index)];
  const int64_t splits = tile.num_splits(), share = plan.work / (num_threads * kItemsPerThread) + 1;
  const int64_t parts = num_threads == 1 ? 1 : std::min(splits, tile.work() / share + 1);
  if (parts > 1) plan.partial_floats += splits * Partial::floats(tile.num_pairs, dim);
  for (int64_t part = 0; part < parts; ++part) {
    plan.items.push_back({index, splits * part / parts, splits * (part + 1) / parts});
  }
}

bool is_shared(const Plan& plan, const Item& item) {
  return item.end_split - item.first_split < plan.tiles[static_cast<size_t>(item.tile)].num_splits();
}

void hand_out_partials(Plan& plan, int64_t dim, float* memory) {
  for (const Item& item : plan.items) {
    Tile& tile = plan.tiles[static_cast<size_t>(item.tile)];
    if (!is_shared(plan, item) || item.first_split != 0) continue;
    tile.partials = memory;
    memory += tile.num_splits() * Partial::floats(tile.num_pairs, dim);
  }
}

}  // namespace

void attention(Context& context, const BatchView& batch, const float* qkv, int64_t num_q_heads, const KVPool& pool,
               int64_t layer, float scale, float* out) {
  static thread_local Plan plan;
  static thread_local Scratch partials;
  const int64_t dim = pool.head_dim;
  const Call call{context.kernels().step, batch, qkv, pool, layer, scale, out, num_q_heads / pool.num_kv_heads,
                  (num_q_heads + 2 * pool.num_kv_heads) * dim, num_q_heads * dim};
  plan.clear();
  for (int64_t request = 0; request < batch.num_reqs; ++request) add_tiles(call, request, plan);
  const int64_t num_threads = plan.work < kInlinePairKeys ? 1 : context.num_threads();
  const auto num_tiles = static_cast<int64_t>(plan.tiles.size());
  for (int64_t index = 0; index < num_tiles; ++index) add_items(index, num_threads, dim, plan);
  if (plan.partial_floats > 0) {
    hand_out_partials(plan, dim, partials.floats(static_cast<size_t>(plan.partial_floats)));
  }
  // Threads see the caller's plan through a reference: a thread_local name would mean their own.
  Plan& shared = plan;
  context.pool().parallel_for(static_cast<int64_t>(shared.items.size()), [&](int64_t index) {
    const Item& item = shared.items[static_cast<size_t>(index)];
    run_item(call, shared.tiles[static_cast<size_t>(item.tile)], item);
  });
  if (shared.partial_floats == 0) return;
  context.pool().parallel_for(num_tiles, [&](int64_t index) {
    const Tile& tile = shared.tiles[static_cast<size_t>(index)];
    if (tile.partials != nullptr) join_splits(call, tile);
  });
}

}  // namespace chairlift

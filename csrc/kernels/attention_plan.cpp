#include "kernels/attention_plan.h"

#include <algorithm>

namespace chairlift {
namespace {

constexpr int64_t kTilePairs = 192;       // pairs that share K and V, widened to f32 where that pays
constexpr int64_t kItemsPerThread = 4;    // of one long tile: enough for threads to end together
constexpr int64_t kClaimsPerThread = 16;  // of many short ones
constexpr int64_t kSmallPairKeys = 2048;  // some microseconds

}  // namespace

void AttentionPlan::build(const BatchView& batch, int64_t num_kv_heads, int64_t group, int64_t head_dim,
                          int64_t num_threads) {
  tiles_.clear();
  claims_.clear();
  items_.clear();
  work_ = partial_floats_ = 0;
  for (int64_t request = 0; request < batch.num_reqs; ++request) add_tiles(batch, request, num_kv_heads, group);
  const auto num_tiles = static_cast<int64_t>(tiles_.size());
  for (int64_t tile = 0; tile < num_tiles; ++tile) add_items(tile, is_small() ? 1 : num_threads, head_dim);
  if (partial_floats_ > 0) hand_out_partials(head_dim);
  group_items(is_small() ? 1 : num_threads * kClaimsPerThread);
}

bool AttentionPlan::is_small() const { return work_ < kSmallPairKeys; }

void AttentionPlan::add_tiles(const BatchView& batch, int64_t request, int64_t num_kv_heads, int64_t group) {
  const int64_t begin = batch.query_start_loc[request], end = batch.query_start_loc[request + 1];
  const int64_t tile_rows = std::max<int64_t>(1, kTilePairs / group);
  for (int64_t last = end; last > begin; last -= tile_rows) {  // the longest first, so that threads end together
    const int64_t first = std::max(begin, last - tile_rows), rows = last - first;
    const int64_t position = batch.positions[first];
    for (int64_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
      tiles_.push_back({request, kv_head, first, rows * group, position, position + rows - 1});
      work_ += tiles_.back().work();
    }
  }
}

void AttentionPlan::add_items(int64_t index, int64_t num_threads, int64_t head_dim) {
  const AttentionTile& tile = tiles_[static_cast<size_t>(index)];
  const int64_t splits = tile.num_splits(), share = work_ / (num_threads * kItemsPerThread) + 1;
  const int64_t parts = num_threads == 1 ? 1 : std::min(splits, tile.work() / share + 1);
  if (parts > 1) partial_floats_ += splits * AttentionPartial::floats(tile.num_pairs, head_dim);
  for (int64_t part = 0; part < parts; ++part) {
    items_.push_back({index, splits * part / parts, splits * (part + 1) / parts});
  }
}

int64_t AttentionPlan::work_of(const AttentionItem& item) const {
  return tile_of(item).work() * (item.end_split - item.first_split) / tile_of(item).num_splits();
}

// Claims of at most a share of the work, or of one item; the longest first, so that threads end together.
void AttentionPlan::group_items(int64_t num_claims) {
  const int64_t share = work_ / num_claims + 1;
  for (int64_t index = 0; index < static_cast<int64_t>(items_.size()); ++index) {
    const int64_t work = work_of(item(index));
    if (claims_.empty() || claims_.back().work + work > share) claims_.push_back({index, index, 0});
    claims_.back().end_item = index + 1;
    claims_.back().work += work;
  }
  std::stable_sort(claims_.begin(), claims_.end(),
                   [](const AttentionClaim& a, const AttentionClaim& b) { return a.work > b.work; });
}

void AttentionPlan::hand_out_partials(int64_t head_dim) {
  float* memory = partials_.floats(static_cast<size_t>(partial_floats_));
  for (const AttentionItem& item : items_) {
    AttentionTile& tile = tiles_[static_cast<size_t>(item.tile)];
    if (item.first_split != 0 || item.end_split == tile.num_splits()) continue;
    tile.partials = memory;
    memory += tile.num_splits() * AttentionPartial::floats(tile.num_pairs, head_dim);
  }
}

}  // namespace chairlift

// Who computes what in one attention call. None of it can change a bit: the unit of arithmetic is (row, q head, split
// of 256 keys), and the splits of a row are joined in ascending order whoever computed them.
#pragma once

#include <cstdint>
#include <vector>

#include "chairlift/ops.h"
#include "kernels/scratch.h"
#include "kernels/step_kernels.h"

namespace chairlift {

// Softmax of some (row, q head) pairs over some keys, not yet divided by the sum.
struct AttentionPartial {
  float* max;  // [pairs]
  float* sum;  // [pairs]
  float* acc;  // [pairs][head_dim]

  AttentionPartial from(int64_t pair, int64_t head_dim) const {
    return {max + pair, sum + pair, acc + pair * head_dim};
  }
  static int64_t floats(int64_t pairs, int64_t head_dim) { return pairs * (head_dim + 2); }
  static AttentionPartial at(float* memory, int64_t pairs, int64_t head_dim) {
    return {memory + pairs * head_dim, memory + pairs * (head_dim + 1), memory};
  }
};

// Some rows of a request and the q heads of one kv head: pair p is row first_row + p / group, head p % group.
struct AttentionTile {
  int64_t request, kv_head, first_row, num_pairs;
  int64_t first_position, last_position;
  float* partials = nullptr;  // one AttentionPartial a split, when several items share the tile

  int64_t num_splits() const { return last_position / kSplitKeys + 1; }
  int64_t work() const { return num_pairs * (last_position + 1); }  // pair-keys
};

// Splits [first_split, end_split) of a tile.
struct AttentionItem {
  int64_t tile, first_split, end_split;
};

// Items that follow each other: what a thread claims.
struct AttentionClaim {
  int64_t first_item, end_item, work;
};

class AttentionPlan {
 public:
  // Cuts a step into tiles, and tiles that are long against a thread's share into items.
  void build(const BatchView&, int64_t num_kv_heads, int64_t group, int64_t head_dim, int64_t num_threads);

  const std::vector<AttentionTile>& tiles() const { return tiles_; }
  const std::vector<AttentionClaim>& claims() const { return claims_; }
  const AttentionItem& item(int64_t index) const { return items_[static_cast<size_t>(index)]; }
  const AttentionTile& tile_of(const AttentionItem& item) const { return tiles_[static_cast<size_t>(item.tile)]; }
  bool has_shared_tiles() const { return partial_floats_ > 0; }

 private:
  bool is_small() const;  // not worth waking other threads
  void add_tiles(const BatchView&, int64_t request, int64_t num_kv_heads, int64_t group);
  void add_items(int64_t tile, int64_t num_threads, int64_t head_dim);
  void hand_out_partials(int64_t head_dim);
  int64_t work_of(const AttentionItem&) const;
  void group_items(int64_t num_claims);

  std::vector<AttentionTile> tiles_;
  std::vector<AttentionItem> items_;
  std::vector<AttentionClaim> claims_;
  int64_t work_ = 0;
  int64_t partial_floats_ = 0;
  Scratch partials_;
};

}  // namespace chairlift

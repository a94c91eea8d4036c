// The paged KV cache: one lazily backed mapping that holds the blocks of every layer.
//
// Inside a block, tokens lie in tiles of 16 whatever the block size is, so that arithmetic never sees the block size.
// A block holds its tokens in every layer, so that the mapping is used from its start on and huge pages waste nothing.
//
//   [num_blocks][num_layers * num_kv_heads, rotated][block_size / 16] tiles of
//       K  [head_dim][16 tokens]   transposed: the scores of 16 keys are 16 lanes, one fma chain each
//       V  [16 tokens][head_dim]
//   each followed by the f32 scales of its 16 tokens when the numbers are int8
//
// Heads are rotated by the block's id: where a block's size is a power of two, a head's tiles of all blocks would
// otherwise fall into the same few sets of a cache.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/step_kernels.h"

namespace chairlift {

constexpr int64_t kTileTokens = 16;

struct KVPool {
  // Maps the pool; pages that are never written cost no memory. Throws std::invalid_argument for a shape that the
  // kernels don't take and std::bad_alloc when there is no address space.
  KVPool(int64_t num_layers, int64_t num_blocks, int64_t block_size, int64_t num_kv_heads, int64_t head_dim,
         KVDtype dtype);
  ~KVPool();
  KVPool(const KVPool&) = delete;
  KVPool& operator=(const KVPool&) = delete;

  // Copies a whole block in every layer. Both ids must be in the pool.
  void copy_block(int64_t from, int64_t to);

  int64_t item_bytes() const { return dtype == KVDtype::Int8 ? 1 : dtype == KVDtype::F16 ? 2 : 4; }
  int64_t scales_offset() const { return kTileTokens * head_dim * item_bytes(); }  // in half a tile: K or V
  int64_t half_tile_bytes() const { return scales_offset() + (dtype == KVDtype::Int8 ? kTileTokens * 4 : 0); }
  int64_t block_bytes() const { return block_size / kTileTokens * 2 * half_tile_bytes(); }  // of one head of a layer
  int64_t heads() const { return num_layers * num_kv_heads; }
  size_t total_bytes() const { return static_cast<size_t>(num_blocks * heads() * block_bytes()); }

  // K of the tile that holds token `offset` of a block; V follows half_tile_bytes() later.
  std::byte* tile(int64_t layer, int64_t block, int64_t kv_head, int64_t offset) const {
    // Below 2^32, where division is quick.
    const auto turned = static_cast<uint32_t>(layer * num_kv_heads + kv_head + block);
    const int64_t head = turned % static_cast<uint32_t>(heads());
    return data + (block * heads() + head) * block_bytes() + offset / kTileTokens * 2 * half_tile_bytes();
  }

  const int64_t num_layers, num_blocks, block_size, num_kv_heads, head_dim;
  const KVDtype dtype;
  std::byte* data = nullptr;
};

}  // namespace chairlift

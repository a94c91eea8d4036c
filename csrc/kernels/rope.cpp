#include <cstring>

#include "chairlift/ops.h"
#include "kernels/kv_pool.h"
#include "kernels/row_loop.h"

namespace chairlift {
namespace {

constexpr int64_t kMaxHeadDim = 256;

// Writes one head's key and value of one token, rounded to the pool's dtype.
class TokenWriter {
 public:
  TokenWriter(const RowKernels& kernels, const KVPool& pool, int64_t layer, int64_t slot)
      : kernels_(kernels),
        pool_(pool),
        layer_(layer),
        block_(slot / pool.block_size),
        offset_(slot % pool.block_size),
        lane_(slot % kTileTokens) {}

  void store(int64_t kv_head, const float* k, const float* v) const {
    std::byte* tile = pool_.tile(layer_, block_, kv_head, offset_);
    std::byte* values = tile + pool_.half_tile_bytes();
    switch (pool_.dtype) {
      case KVDtype::F16: return store_halves(k, v, tile, values);
      case KVDtype::F32: return store_floats(k, v, tile, values);
      case KVDtype::Int8: return store_integers(k, v, tile, values);
    }
  }

 private:
  void store_halves(const float* k, const float* v, std::byte* tile, std::byte* values) const {
    uint16_t rounded[kMaxHeadDim];
    kernels_.narrow(k, pool_.head_dim, rounded);
    scatter(rounded, reinterpret_cast<uint16_t*>(tile));
    kernels_.narrow(v, pool_.head_dim, reinterpret_cast<uint16_t*>(values) + lane_ * pool_.head_dim);
  }

  void store_floats(const float* k, const float* v, std::byte* tile, std::byte* values) const {
    scatter(k, reinterpret_cast<float*>(tile));
    std::memcpy(reinterpret_cast<float*>(values) + lane_ * pool_.head_dim, v,
                static_cast<size_t>(pool_.head_dim) * sizeof(float));
  }

  void store_integers(const float* k, const float* v, std::byte* tile, std::byte* values) const {
    int8_t rounded[kMaxHeadDim];
    kernels_.quantise(k, pool_.head_dim, rounded, scale_in(tile));
    scatter(rounded, reinterpret_cast<int8_t*>(tile));
    kernels_.quantise(v, pool_.head_dim, reinterpret_cast<int8_t*>(values) + lane_ * pool_.head_dim, scale_in(values));
  }

  float* scale_in(std::byte* half_tile) const {
    return reinterpret_cast<float*>(half_tile + pool_.scales_offset()) + lane_;
  }

  template <typename T>
  void scatter(const T* k, T* tile) const {
    for (int64_t d = 0; d < pool_.head_dim; ++d) tile[d * kTileTokens + lane_] = k[d];
  }

  const RowKernels& kernels_;
  const KVPool& pool_;
  int64_t layer_, block_, offset_, lane_;
};

}  // namespace

void rope_and_store(Context& context, const BatchView& batch, float* qkv, int64_t num_q_heads, const float* cos,
                    const float* sin, KVPool& pool, int64_t layer) {
  const RowKernels& kernels = context.kernels().step.row;
  const int64_t dim = pool.head_dim, half = dim / 2;
  const int64_t rotated = num_q_heads + pool.num_kv_heads, stride = (rotated + pool.num_kv_heads) * dim;
  for_each_row(context, batch.num_tokens, stride, [&](int64_t row) {
    float* heads = qkv + row * stride;  // [q heads | k heads | v heads][dim]
    const int64_t table_row = batch.positions[row] * half;
    for (int64_t head = 0; head < rotated; ++head) {
      kernels.rotate(heads + head * dim, cos + table_row, sin + table_row, half);
    }
    const TokenWriter writer(kernels, pool, layer, batch.slot_mapping[row]);
    for (int64_t head = 0; head < pool.num_kv_heads; ++head) {
      writer.store(head, heads + (num_q_heads + head) * dim, heads + (rotated + head) * dim);
    }
  });
}

}  // namespace chairlift
